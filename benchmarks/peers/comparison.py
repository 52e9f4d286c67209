"""What was measured side by side, and the page of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.encoders import ENCODERS, describe
from benchmarks.frame import Condition, Rounds, at_least, markdown_table

POLYHEAD = "polyhead"
ENCODE = "polyhead, `AsyncClient.encode`"
TRITON = "Triton"
"""How the names of its variants begin."""
PADDED = "padded graph"
"""How the names of those end that run a graph which computes padding."""
IN_PROCESS = "onnxruntime in process"
ECHO = "`grpc.aio` echo, computes nothing"

_ENCODE_LEAST = 1.5
_MIXED_LEAST = {"bench-384": 1.4}
"""Of mixed lengths, by encoder."""


@dataclass(frozen=True, kw_only=True)
class PeerComparison(Rounds):
    """All rounds of one encoder with so many requests in flight."""

    encoder: str
    in_flight: int
    share: float | None = None
    """Of the tokens in padded batches of so many requests, those that exist; None if lengths are equal."""

    def against_triton(self, name: str) -> list[float]:
        """Return a contender's rates divided by Triton's in the same round, ascending."""
        return self.ratios(name, strongest_triton(self))


def strongest_triton(comparison: Rounds) -> str:
    """Return the Triton variant with the highest median rate; only padded graphs count if there are any."""
    every = [name for name in comparison.samples if name.startswith(TRITON)]
    return comparison.strongest([name for name in every if name.endswith(PADDED)] or every)


def targets(comparisons: Sequence[PeerComparison]) -> list[Condition]:
    """Return what polyhead should reach."""
    found = []
    for encoder, mixed in dict.fromkeys((each.encoder, each.share is not None) for each in comparisons):
        least = _MIXED_LEAST.get(encoder) if mixed else 1.0
        if least is None:
            continue
        ratios = {
            each.in_flight: median(each.against_triton(POLYHEAD))
            for each in comparisons
            if each.encoder == encoder and (each.share is not None) == mixed
        }
        found.append(
            Condition(
                name=f"{encoder}{', mixed lengths' * mixed}: polyhead ≥ {least} × Triton",
                holds=min(ratios.values()) >= least,
                seen=", ".join(f"{ratio:.2f} at {in_flight}" for in_flight, ratio in ratios.items()),
            )
        )
    for each in comparisons:
        if ENCODE in each.samples:
            name = f"{each.encoder}: {each.in_flight} × `AsyncClient.encode`"
            found.append(at_least(name, _ENCODE_LEAST, "Triton's calls", each.against_triton(ENCODE)))
    return found


def sections(comparisons: Sequence[PeerComparison], versions: Mapping[str, str]) -> list[str]:
    """Return the page's tables, with the versions of all servers."""
    lines: list[str] = []
    described = {each.name: f"{each.name}: {describe(each)}" for each in ENCODERS}
    tokens = {each.name: each.tokens for each in ENCODERS}
    for each in comparisons:
        lengths = f"T = {tokens[each.encoder]}"
        if each.share is not None:
            lengths = f"mixed lengths ({each.share:.2f} of the tokens in padded batches exist)"
        base = strongest_triton(each)
        lines += [f"## {described[each.encoder]}, {lengths}, {each.in_flight} in flight", ""]
        lines += markdown_table(each.row(name, base) for name in each.samples)
    rows = ({"server": name, "version": version} for name, version in versions.items())
    return [*lines, *markdown_table(rows)]
