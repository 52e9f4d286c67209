"""The encoders that every engine runs: their checkpoints, and what is exported and converted of them."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.encoders import GRAPH, MINILM, export_padded, minilm_checkpoint
from benchmarks.natural.lineup import convert
from polyhead_export import Precision, export_family, from_checkpoint

BERT = "bert-base"


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
    def tokenizer(self) -> str:
        """A `tokenizer.json`."""
        return str(self.graph("tokenizer.json").absolute())


def prepare(encoder: str, models: Path, folder: Path, peers: Path) -> EngineFiles:
    """Export, quantise and convert what is missing.

    Args:
        encoder: `MINILM` or `BERT`.
        models: The folder of the model repositories.
        folder: Where the rest goes.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers.

    Raises:
        PeerError: That environment is missing or damaged.
    """
    files = EngineFiles(encoder=encoder, repositories=models.absolute(), folder=(folder / encoder).absolute())
    files.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = minilm_checkpoint() if encoder == MINILM else _random_bert(files.folder / "checkpoint")
    built = from_checkpoint(checkpoint, encoder).build()
    precisions: Sequence[Precision] = ("fp32", "int8")
    for precision in precisions:
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
        _quantise(files.padded, files.dynamic_int8)
    convert(peers, checkpoint, files.folder, "--openvino")
    return files


def _quantise(graph: Path, to: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(graph, to, weight_type=QuantType.QInt8)


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
