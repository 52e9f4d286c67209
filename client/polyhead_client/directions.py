"""Directions in the stream: what two sets of texts differ in, to be added or projected out.

Shape letters: T tokens, D d_model.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.archive import read_format, write_npz
from polyhead_client.arguments import check_texts
from polyhead_client.calls import Operation
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.frozen import Picklable
from polyhead_client.operations import Operations, Progress
from polyhead_client.places import Edit, is_integer
from polyhead_client.server_operations import Timeout

_FORMAT = 1
"""Of saved directions; incremented when a reader of the old format would misread the new one."""

_AT_ONCE = 256
"""Texts that are read at once: their vectors are held until their mean is known."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Direction(Picklable):
    """A vector of the stream: a difference of means (Marks & Tegmark 2023, arXiv 2310.06824)."""

    model: str
    version: str
    layer: int
    """0 to L - 1, or L: after the last."""
    vector: NDArray[np.float32]
    """[D]."""

    def add(self, scale: float = 1.0, *, token: int | None = None) -> Edit:
        """Return the edit that adds it, times `scale`, to a token; None means every token."""
        return Edit(self.layer, token, self.vector, scale=scale)

    def project_out(self, *, token: int | None = None) -> Edit:
        """Return the edit that removes what a token, or every token, has along it."""
        return Edit(self.layer, token, self.vector, mode="project_out")

    def save(self, path: Path | str) -> None:
        """Write it as an .npz file, which `load` reads, and NumPy does.

        Raises:
            ValueError: The name of the file does not end with .npz.
        """
        write_npz(path, {"direction_format": _FORMAT} | asdict(self))

    @classmethod
    def load(cls, path: Path | str) -> "Direction":
        """Read what `save` wrote.

        Raises:
            ValueError: It is no such file, or of a later polyhead.
            OSError: It cannot be read.
        """
        return cls(**read_format(path, "a direction", key="direction_format", number=_FORMAT))


class Steering(Operations):
    """The operation that finds directions."""

    def direction(
        self,
        positive: Sequence[str],
        negative: Sequence[str],
        *,
        layer: int,
        token: int | None = None,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[Direction]:
        """Compute a steering vector: the mean of the stream for some texts less that for others.

        Args:
            positive: Texts that have something.
            negative: Texts that lack it.
            layer: Before which the stream is read, 0 to L - 1; L: after the last.
            token: The position to read, such as 0 for the first; None means the mean of all of a text.
            model: The family, exported with `--graphs stream`; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each group of texts with the number of those that are done, and of all.
            timeout: Seconds for each group; None means no limit, ... the client's default.

        Returns:
            The direction, whose `add()` and `project_out()` are edits for `encode`.

        Raises:
            InvalidRequest: The request is not valid.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        for name, value in (("layer", layer), ("token", token)):
            if not is_integer(value) and not (name == "token" and value is None):
                raise InvalidRequest(f"{name} must be an integer, was {value!r:.80}")
        options: dict[str, Any] = {
            "model": model,
            "version": version,
            "truncate": truncate,
            "timeout": timeout,
        }
        options |= {"output": False, "pooled": False, "logits": False}
        sides = [check_texts("positive", positive), check_texts("negative", negative)]
        if not all(sides):
            raise InvalidRequest("positive and negative must be one or more texts each")
        done, of = 0, sum(map(len, sides))
        means: list[NDArray[np.float64]] = []
        found = None
        for texts in sides:
            total: Any = 0.0
            for start in range(0, len(texts), _AT_ONCE):
                some = texts[start : start + _AT_ONCE]
                places: Any = [(layer, token)]
                if token is None:
                    counted = yield from self.encode(some, tokens=True, **options)
                    places = [[(layer, at) for at in range(count)] for count in np.asarray(counted.lengths)]
                try:
                    found = yield from self.encode(some, read=places, tokens=False, **options)
                except InvalidRequest as error:  # the caller knows no list of places
                    if error.fault is not None:
                        error.rephrase(replace(error.fault, aspect=""))
                    raise
                total = total + sum(np.mean(each, axis=0, dtype=np.float64) for each in _rows(found))
                done += len(some)
                if progress is not None:
                    progress(done, of)
            means.append(total / len(texts))
        if found is None:
            raise RuntimeError("no text was read")
        vector = (means[0] - means[1]).astype(np.float32)
        return Direction(model=found.model, version=found.version, layer=layer, vector=vector)


def _rows(found: Encoding) -> Sequence[NDArray[Any]]:
    """Return what was read of each text."""
    rows: Any = found.stream
    return list(rows)
