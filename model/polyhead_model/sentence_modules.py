"""Read what sentence-transformers adds to a checkpoint: pooling, normalisation, prompts, length limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from polyhead_model.checkpoint_files import CheckpointError, inside, integer, read_json, read_object
from polyhead_model.config import Pooling
from polyhead_model.tokenizer_files import TOKENIZER, lowercases

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


_CALLS = ("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args")
"""The keys under which sentence-transformers stores extra arguments for tokenizers and configurations."""


@dataclass(frozen=True, kw_only=True)
class SentenceModules:
    """The modules of modules.json; a folder without that file is a transformer alone."""

    transformer: Path
    """The folder of config.json and the weights."""
    pooling: Pooling | None = None
    normalise: bool = False
    max_tokens: int | None = None
    """The length, in tokens, at which sentence-transformers truncates text, if given."""
    prompt: str = ""
    """Put before every text by default."""

    @classmethod
    def read(cls, folder: Path, *, prompt: bool = True) -> Self:
        """Read modules.json and the files that it names.

        Args:
            folder: A folder with modules.json, or a transformer alone.
            prompt: Whether to use the default prompt.

        Raises:
            CheckpointError: The modules are not ones that polyhead supports.
        """
        path = folder / "modules.json"
        if not path.is_file():
            return cls(transformer=folder)
        modules = read_json(path)
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            raise CheckpointError(f"{path}: must be a list of modules")
        # Releases of sentence-transformers moved these classes between modules, under the same names.
        kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
        if not kinds or kinds != ["Transformer", "Pooling", "Normalize"][: len(kinds)]:
            raise CheckpointError(
                f"{path}: modules must be Transformer, then (if wanted) Pooling, then Normalize, "
                f"were {', '.join(kinds) or 'none'}"
            )
        folders = [inside(path, module.get("path", "")) for module in modules]
        default_prompt = _read_prompt(folder / "config_sentence_transformers.json") if prompt else ""
        if len(kinds) > 2:
            _check_normalize(folders[2] / "config.json")
        return cls(
            transformer=folders[0],
            pooling=_read_pooling(folders[1] / "config.json", default_prompt) if len(kinds) > 1 else None,
            normalise=len(kinds) > 2,
            max_tokens=_read_max_tokens(folders[0]),
            prompt=default_prompt,
        )


def _read_prompt(path: Path) -> str:
    config = read_object(path) if path.is_file() else {}
    prompts, name = config.get("prompts") or {}, config.get("default_prompt_name")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        known = ", ".join(map(repr, prompts)) if isinstance(prompts, dict) else repr(prompts)
        raise CheckpointError(f"{path}: default_prompt_name must be one of prompts ({known}), was {name!r}")
    return prompt


def _check_normalize(path: Path) -> None:
    config = read_object(path) if path.is_file() else {}
    scaled = config.get("module_input_name", "sentence_embedding")
    if scaled != "sentence_embedding" or config.get("module_output_name", scaled) not in (scaled, None):
        raise CheckpointError(
            f"{path}: module_input_name and module_output_name must be 'sentence_embedding', were {scaled!r} "
            f"and {config.get('module_output_name')!r}: only pooled vectors are scaled to length 1"
        )


def _read_pooling(path: Path, prompt: str) -> Pooling:
    config = read_object(path)
    if prompt and not config.get("include_prompt", True):
        raise CheckpointError(
            f"{path}: include_prompt must be true where there is a default prompt ({prompt!r}), was false: "
            "pooling without the prompt's tokens is not supported; leave the prompt out (--no-prompt)"
        )
    modes = config.get("pooling_mode")
    if modes is None:  # older releases wrote one flag for each mode
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
        task = config.get("transformer_task", "feature-extraction")
        if task != "feature-extraction":
            raise CheckpointError(f"{path}: transformer_task must be 'feature-extraction', was {task!r}")
        for name in _CALLS:
            given = config.get(name) or {}
            if not isinstance(given, dict) or given.keys() - {"trust_remote_code"}:
                raise CheckpointError(f"{path}: {name} must be empty, was {given!r}: it is not supported")
        if config.get("do_lower_case") and not lowercases(read_object(folder / TOKENIZER)):
            raise CheckpointError(
                f"{path}: do_lower_case must be false, was true: polyhead leaves that to tokenizer.json, "
                "whose normalizer keeps upper case"
            )
        if config.get("max_seq_length") is not None:
            max_tokens = integer(path, config, "max_seq_length")
            if max_tokens < 1:
                raise CheckpointError(f"{path}: max_seq_length must be at least 1, was {max_tokens}")
    return max_tokens
