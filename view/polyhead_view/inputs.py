"""What to encode where a family takes no texts: vectors and token ids, from files or made up.

Shape letters: T tokens, S tokens of the memory, D d_model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import InvalidRequest, ModelInfo
from polyhead_client.files import load_sequence
from polyhead_proto.names import INPUT_IDS, MASK, MEMORY, MEMORY_MASK

SEED = 0


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The files of one sequence, and of the memory that it attends to; what has none is made up."""

    input: Path | None = None
    memory: Path | None = None

    def arguments(self, info: ModelInfo, length: int) -> dict[str, Any]:
        """Return the arguments of `encode` that are inputs: `inputs`, and where needed `memory` and masks.

        What is made up is random, and the same in each call. Masks let everything attend to everything.

        Args:
            info: The family's fast graph.
            length: T, and S, of what is made up.

        Raises:
            InvalidRequest: A file holds something else, or the family has no use for it.
            OSError: A file cannot be read.
        """
        if self.memory is not None and MEMORY not in info.inputs:
            raise InvalidRequest(f"--memory must be left out: {info.family} attends to no memory")
        files = {"inputs": ("--input", self.input), "memory": ("--memory", self.memory)}
        found: dict[str, Any] = {}
        for at, (name, (option, path)) in enumerate(files.items()):
            if name in names(info):
                found[name] = _random(info, length, at) if path is None else load_sequence(option, path)
        for name, keys in ((MASK, "inputs"), (MEMORY_MASK, "memory")):
            if name in info.inputs:
                found[name] = np.ones((len(found["inputs"]), len(found[keys])), np.bool_)
        return found


NO_FILES = SequenceFiles()


def names(info: ModelInfo) -> list[str]:
    """Return the arguments of `encode` that a family needs as inputs."""
    return ["inputs", *(name for name in (MEMORY, MASK, MEMORY_MASK) if name in info.inputs)]


def takes_ids(info: ModelInfo) -> bool:
    """Return whether a family takes token ids, and no vectors."""
    return INPUT_IDS in info.inputs


def _random(info: ModelInfo, length: int, stream: int) -> NDArray[Any]:
    random = np.random.default_rng([SEED, stream])
    if takes_ids(info):
        return random.integers(0, info.vocabulary or 1, length)
    if info.d_model is None:
        raise InvalidRequest(f"--input must be given: the server does not say what D is for {info.family}")
    return random.standard_normal((length, info.d_model), np.float32)
