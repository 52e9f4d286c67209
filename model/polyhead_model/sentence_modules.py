"""What sentence-transformers adds to a checkpoint folder: pooling, normalisation, a limit on text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from polyhead_model.checkpoint_files import CheckpointError, inside, integer, read_json, read_object
from polyhead_model.config import Pooling

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The steps of modules.json; a folder without one is a transformer alone."""

    transformer: Path
    """The folder with config.json and the weights."""
    pooling: Pooling | None = None
    normalise: bool = False
    max_tokens: int | None = None
    """Where sentence-transformers cuts text, if it says so."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read modules.json and what it names.

        Raises:
            CheckpointError: It asks for steps that polyhead does not do.
        """
        path = folder / "modules.json"
        if not path.is_file():
            return cls(transformer=folder)
        modules = read_json(path)
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{path}: must be a list of modules")
        # The classes moved between releases of sentence-transformers; their names stayed.
        kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
        if not kinds or kinds != ["Transformer", "Pooling", "Normalize"][: len(kinds)]:
            raise CheckpointError(
                f"{path}: modules must be Transformer, then (if wanted) Pooling, then Normalize, "
                f"were {', '.join(kinds) or 'none'}"
            )
        folders = [inside(path, module.get("path", "")) for module in modules]
        return cls(
            transformer=folders[0],
            pooling=_read_pooling(folders[1] / "config.json") if len(kinds) > 1 else None,
            normalise=len(kinds) > 2,
            max_tokens=_read_max_tokens(folders[0]),
        )


def _read_pooling(path: Path) -> Pooling:
    config = read_object(path)
    modes = config.get("pooling_mode")
    if modes is None:  # older releases wrote a flag for each
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    wanted = modes if isinstance(modes, list) else [modes]
    for pooling in ("mean", "cls", "max"):
        if wanted == [pooling]:
            return pooling
    raise CheckpointError(
        f"{path}: pooling must be one of mean, cls, max, was {' + '.join(map(str, wanted))}"
    )


def _read_max_tokens(folder: Path) -> int | None:
    max_tokens = None
    for path in sorted(folder.glob("sentence_*_config.json")):  # sentence_bert_…, sentence_roberta_…
        config = read_object(path)
        if config.get("do_lower_case") and not _lowercases(folder / "tokenizer.json"):
            raise CheckpointError(
                f"{path}: do_lower_case must be false, was true: polyhead leaves that to tokenizer.json, "
                "whose normalizer keeps upper case"
            )
        if config.get("max_seq_length") is not None:
            max_tokens = integer(path, config, "max_seq_length")
            if max_tokens < 1:
                raise CheckpointError(f"{path}: max_seq_length must be at least 1, was {max_tokens}")
    return max_tokens


def _lowercases(path: Path) -> bool:
    normalizer = read_object(path).get("normalizer")
    parts = [normalizer]
    if isinstance(normalizer, dict) and isinstance(normalizer.get("normalizers"), list):
        parts += normalizer["normalizers"]
    return any(
        isinstance(part, dict) and (part.get("type") == "Lowercase" or part.get("lowercase") is True)
        for part in parts
    )
