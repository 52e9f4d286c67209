"""What is wrong with a part of a request, as fields: servers say it, clients need not read words."""

# ruff: noqa: N818 - the names say what happened; "Error" after each would add nothing.

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

_MOST_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a field of a request. `str` returns it in words."""

    field: str
    """Its name, such as `text`."""
    problem: str
    """What it must be, and was: words that follow the name."""
    index: tuple[int, ...] = ()
    """Which of its elements; of an input, the first number is that of a sequence. Empty for all of them."""
    also: str = ""
    """A second field whose elements have part in it, such as `text_pair`."""
    aspect: str = ""
    """What of the field: words that precede its name."""
    remedy: str = ""
    """What to do: words that follow a colon."""
    parameter: str = ""
    """The parameter of the request that would have it accepted, such as `truncate`."""

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        names = " and ".join(f"{name}{place}" for name in (self.field, self.also) if name)
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.aspect}{names} {self.problem}{remedy}"

    def to_json(self) -> bytes:
        """Write the fields; nothing, where they are too long for metadata."""
        written = json.dumps({name: value for name, value in asdict(self).items() if value}).encode()
        return written if len(written) <= _MOST_BYTES else b""

    @classmethod
    def from_json(cls, written: bytes) -> "Fault | None":
        """Read what `to_json` wrote; None where it is anything else."""
        try:
            given: dict[str, Any] = json.loads(written)
            index = tuple(map(int, given.get("index", ())))
            words = {each.name: str(given.get(each.name, "")) for each in fields(cls) if each.name != "index"}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        return cls(index=index, **words)


class PolyheadError(Exception):
    """A call failed; the message is for people.

    Attributes:
        code: The `grpc.StatusCode`, or None if the client itself raised the error.
        details: The server's message, unchanged.
        request_id: The id of the call in the server's log.
        fault: What is wrong with a field of the request, where that is known: its name and index.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Any = None,
        details: str | None = None,
        request_id: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.code = code
        self.details = details
        self.request_id = request_id

    def rephrase(self, fault: Fault) -> None:
        """Say what is wrong with a field in the terms of another caller."""
        self.args, self.fault = (str(self).replace(str(self.fault), str(fault), 1),), fault


class InvalidRequest(PolyheadError, ValueError):
    """The request is not valid; the message names the field, what it must be and what it was."""
