"""What to encode where a family takes no texts: vectors and token ids, from files or made up.

Shape letters: T tokens, S tokens of the memory, D d_model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import InvalidRequest, ModelInfo
from polyhead_client.files import load_sequence
from polyhead_proto.names import INPUT_IDS, MEMORY

SEED = 0


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The files of one sequence, and of the memory that it attends to; what has none is made up."""

    input: Path | None = None
    memory: Path | None = None

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What the files hold, by argument of `encode`; they are read once.

        Raises:
            InvalidRequest: A file holds something else.
            OSError: A file cannot be read.
        """
        files = {"inputs": ("--input", self.input), MEMORY: ("--memory", self.memory)}
        return {name: load_sequence(option, path) for name, (option, path) in files.items() if path}

    def arguments(self, info: ModelInfo, length: int) -> dict[str, NDArray[Any]]:
        """Return the arguments of `encode` that are inputs: `inputs`, and where needed `memory`.

        What is made up is random, and the same in each call.

        Args:
            info: The family's fast graph.
            length: T, and S, of what is made up.

        Raises:
            InvalidRequest: A file holds something else, or D is not known.
            OSError: A file cannot be read.
        """
        return {
            name: self.arrays[name] if name in self.arrays else _random(info, length, stream)
            for stream, name in enumerate(names(info))
        }


NO_FILES = SequenceFiles()


def names(info: ModelInfo) -> list[str]:
    """Return the arguments of `encode` that a family needs as inputs."""
    return ["inputs", *([MEMORY] if MEMORY in info.inputs else [])]


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
