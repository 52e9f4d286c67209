"""What engines open of an encoder of texts: what is exported and converted of its checkpoint."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from benchmarks.contenders import ContenderError, run_module
from benchmarks.encoders import GRAPH, BenchEncoder, export_missing
from polyhead_export import Precision
from polyhead_export.graphs import build_graph
from polyhead_export.kinds import KINDS
from polyhead_export.weights import names_of, share_weights
from polyhead_model import Encoder

_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")


@dataclass(frozen=True, kw_only=True)
class EngineFiles:
    """What engines open of one encoder."""

    encoder: str
    folder: Path

    def repository(self, precision: str) -> Path:
        """Return the model repository of one precision, with this encoder alone."""
        return self.folder / precision

    def graph(self, file: str = GRAPH, *, precision: str = "fp32") -> Path:
        """Return a graph that polyhead serves."""
        return self.repository(precision) / self.encoder / "1" / file

    @property
    def padded(self) -> Path:
        """The fast graph that computes padding, too."""
        return self.folder / "fp32-padded" / self.encoder / "1" / GRAPH

    @property
    def tokenizer(self) -> Path:
        """A `tokenizer.json`."""
        return self.graph("tokenizer.json")

    def converted(self, engine: str) -> Path:
        """Return what `benchmarks.compare.convert` made for an engine."""
        return self.folder / "converted" / engine


def prepare(encoder: BenchEncoder, models: Path, peers: Path | None) -> EngineFiles:
    """Export and convert what is missing.

    Args:
        encoder: Takes texts.
        models: A model repository, beside which they lie.
        peers: The Python of the environment that has CTranslate2 and sentence-transformers, if there is one;
            they need a checkpoint.

    Raises:
        ContenderError: That environment is damaged.
    """
    files = EngineFiles(
        encoder=encoder.name, folder=models.absolute().with_name(f"{models.name}-texts") / encoder.name
    )
    for precision in _PRECISIONS:
        export_missing([encoder], files.repository(precision), precision=precision)
    if not files.padded.exists():
        export_padded(encoder.build().encoder, encoder.name, files.repository("fp32"))
    if peers and encoder.checkpoint:
        _convert(peers, encoder.checkpoint(), files.converted(""))
    return files


def export_padded(encoder: Encoder, name: str, models: Path) -> Path:
    """Export the fast graph of an encoder that computes padding, too, unless that was done.

    Args:
        encoder: The encoder.
        name: What it is called.
        models: The model repository beside which the graph lies; no server reads it.
    """
    folder = models.absolute().with_name(f"{models.name}-padded") / name / "1"
    if not (folder / GRAPH).exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = build_graph(encoder.eval(), KINDS["fast"](), pack=False)
        share_weights([model], folder, names_of(encoder))
        ir.save(model, folder / GRAPH)
    return folder / GRAPH


def computes_padding(graph: Path) -> bool:
    """Return whether layers of a graph run over padding, too, by the manifest beside it."""
    graphs = json.loads(graph.with_name("manifest.json").read_text())["graphs"]
    (record,) = (each for each in graphs.values() if each["file"] == graph.name)
    return "N" not in record.get("activations", ())


def _convert(python: Path, checkpoint: Path, converted: Path) -> None:
    done = converted / "done"
    if done.exists():
        return
    try:
        run_module(python, "benchmarks.compare.convert", checkpoint, converted)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ContenderError(
            f"{python} must convert the checkpoint: `make compare` installs what it needs"
        ) from error
    done.touch()
