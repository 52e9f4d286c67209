"""What engines open of an encoder: what is exported, quantised and converted of its checkpoint."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.encoders import GRAPH, MINILM, export_padded, minilm_checkpoint
from benchmarks.peers.contenders import PeerError
from polyhead_export import Precision, export_family, from_checkpoint

BERT = "bert-base"
_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class EngineFiles:
    """What engines open of one encoder."""

    encoder: str
    repositories: Path
    """A folder with a model repository for each precision."""
    folder: Path
    """What was converted, and logs."""

    def repository(self, precision: str) -> Path:
        """Return the model repository of one precision, with this encoder alone."""
        return self.repositories / f"{self.encoder}-{precision}"

    def graph(self, file: str = GRAPH, *, precision: str = "fp32") -> Path:
        """Return a graph that polyhead serves."""
        return self.repository(precision) / self.encoder / "1" / file

    @property
    def padded(self) -> Path:
        """The fast graph that computes padding, too."""
        beside = self.repository("fp32")
        return beside.with_name(f"{beside.name}-padded") / self.encoder / "1" / GRAPH

    @property
    def dynamic_int8(self) -> Path:
        """The same as onnxruntime quantises it."""
        return self.folder / "dynamic-int8.onnx"

    @property
    def tokenizer(self) -> Path:
        """A `tokenizer.json`."""
        return self.graph("tokenizer.json")

    def converted(self, engine: str) -> Path:
        """Return what `benchmarks.texts.convert` made for an engine."""
        return self.folder / "converted" / engine


def prepare(encoder: str, models: Path, peers: Path) -> EngineFiles:
    """Export, quantise and convert what is missing.

    Args:
        encoder: `MINILM` or `BERT`.
        models: The folder of the model repositories; the rest goes beside it.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers.

    Raises:
        PeerError: That environment is missing or damaged.
    """
    repositories = models.absolute()
    files = EngineFiles(
        encoder=encoder, repositories=repositories, folder=repositories / "converted" / encoder
    )
    files.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = minilm_checkpoint() if encoder == MINILM else _random_bert(files.folder / "checkpoint")
    built = from_checkpoint(checkpoint, encoder).build()
    for precision in _PRECISIONS:
        if not files.graph(precision=precision).exists():
            export_family(
                built.encoder,
                encoder,
                files.repository(precision),
                precision=precision,
                tokenizer=built.tokenizer,
                left_out=built.left_out,
            )
    export_padded(built.encoder, encoder, files.repository("fp32"))
    if not files.dynamic_int8.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(files.padded, files.dynamic_int8, weight_type=QuantType.QInt8)
    _convert(peers, checkpoint, files.converted(""))
    return files


def _convert(python: Path, checkpoint: Path, converted: Path) -> None:
    done = converted / "done"
    if done.exists():
        return
    try:
        subprocess.run(
            [python, "-m", "benchmarks.texts.convert", checkpoint, converted],
            env=os.environ | {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"},
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(
            f"{python} must convert the checkpoint: `make` installs what it needs with what compares engines"
        ) from error
    done.touch()


def _random_bert(folder: Path) -> Path:
    """Write a checkpoint of BERT-base's size with random weights, unless it is there."""
    from transformers import BertConfig, BertModel

    if (folder / "model.safetensors").exists():
        return folder
    shutil.copytree(
        minilm_checkpoint(),
        folder,
        ignore=shutil.ignore_patterns("*.safetensors", "config.json", "__pycache__"),
        dirs_exist_ok=True,
    )
    config = BertConfig()
    pooling = {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder
