"""Who takes part, on processors with bf16 and without."""

from pathlib import Path

from benchmarks.engines.contenders import BF16, ONNXRUNTIME, engines_in_process, served_engines
from benchmarks.engines.encoders import EngineFiles
from benchmarks.natural.comparison import PADDED


def test_bf16_takes_part_where_the_processor_has_it() -> None:
    files = EngineFiles(encoder="it", repositories=Path("models"), folder=Path("folder"))
    every, fewer = (
        {**served_engines(bf16=bf16), **engines_in_process(files, Path("python"), bf16=bf16)}
        for bf16 in (True, False)
    )

    assert {ONNXRUNTIME, PADDED} <= fewer.keys()
    assert BF16 in every
    assert not [name for name in fewer if "bf16" in name]


def test_engines_have_processes_of_their_own_environment() -> None:
    files = EngineFiles(encoder="it", repositories=Path("models"), folder=Path("folder"))

    found = engines_in_process(files, Path("peers"), bf16=True)

    kinds = {model.kind: python == Path("peers") for python, model in found.values()}
    assert kinds == {
        "onnxruntime": False,
        "openvino": False,
        "ctranslate2": True,
        "sentence-transformers": True,
    }
