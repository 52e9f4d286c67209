"""What was measured side by side, and the page of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.encoders import ENCODERS
from benchmarks.load_generator import LoadResult
from benchmarks.report import Condition, conditions_rows, heading, markdown_table, spell_number, spell_ratios
from benchmarks.serving_report import strongest
from benchmarks.turns import paired_ratios

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
class PeerSample:
    """One load, or one run in process."""

    rate: float
    """Sequences per second."""
    p50_ms: float
    batch: int = 1
    """Sequences per run, in process."""
    errors: int = 0
    client_cores: float = 0.0
    server_cores: float = 0.0

    @classmethod
    def of_load(cls, load: LoadResult, per_call: int = 1) -> "PeerSample":
        """Make one from a load of calls of so many sequences."""
        return cls(
            rate=per_call * load.rate,
            p50_ms=load.percentile_ms(50),
            errors=load.errors,
            client_cores=load.client_cores,
            server_cores=load.server_cores,
        )


@dataclass(frozen=True, kw_only=True)
class PeerComparison:
    """All rounds of one encoder with so many requests in flight."""

    encoder: str
    in_flight: int
    samples: Mapping[str, Sequence[PeerSample]]
    """By contender, one of each round."""
    share: float | None = None
    """Of the tokens in padded batches of so many requests, those that exist; None if lengths are equal."""

    def strongest(self, prefix: str, among: Sequence[str] = ()) -> str:
        """Return which of those whose names begin so has the highest median rate.

        Args:
            prefix: How the names begin.
            among: The names; by default all.
        """
        names = [name for name in among or self.samples if name.startswith(prefix)]
        rates = [[sample.rate for sample in self.samples[name]] for name in names]
        return names[strongest(list(zip(*rates, strict=True)))]

    @property
    def triton(self) -> str:
        """The Triton variant with the highest median rate, of those with padded graphs if there are any."""
        padded = [name for name in self.samples if name.startswith(TRITON) and name.endswith(PADDED)]
        return self.strongest(TRITON, padded)

    def median(self, name: str, field: str) -> float:
        """Return the median of a contender's rounds."""
        return float(median(getattr(sample, field) for sample in self.samples[name]))

    def against(self, name: str, other: str) -> list[float]:
        """Return a contender's rates divided by another's in the same round, ascending."""
        return paired_ratios(*([sample.rate for sample in self.samples[each]] for each in (name, other)))

    def ratios(self, name: str) -> list[float]:
        """Return a contender's rates divided by Triton's in the same round, ascending."""
        return self.against(name, self.triton)


def targets(comparisons: Sequence[PeerComparison]) -> list[Condition]:
    """Return what polyhead should reach."""
    found = []
    for encoder, mixed in dict.fromkeys((each.encoder, each.share is not None) for each in comparisons):
        least = _MIXED_LEAST.get(encoder) if mixed else 1.0
        if least is None:
            continue
        ratios = {
            each.in_flight: median(each.ratios(POLYHEAD))
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
            ratio = median(each.ratios(ENCODE))
            name = (
                f"{each.encoder}: {each.in_flight} × `AsyncClient.encode` ≥ {_ENCODE_LEAST} × Triton's calls"
            )
            found.append(Condition(name=name, holds=ratio >= _ENCODE_LEAST, seen=f"{ratio:.2f}"))
    return found


def page(result: Mapping[str, Any]) -> str:
    """Return the comparison as a page in Markdown."""
    comparisons: Sequence[PeerComparison] = result["comparisons"]
    lines = [
        *heading("polyhead and its peers", "peers", result),
        f"Medians of {result['rounds']} rounds, in each of which every server is loaded for "
        f"{result['seconds']:g} s or more.",
        "The same encoders behind other servers, under the same load on the same machine, in turn, and in",
        "every second round backwards. Ratios compare within this run; the rest is this machine's. “×",
        "Triton” divides by its better variant, with the lowest and the highest round in brackets.",
        "",
        *conditions_rows(result["targets"]),
    ]
    for encoder in ENCODERS:
        mine = [each for each in comparisons if each.encoder == encoder.name]
        equal, mixed = (
            [each for each in mine if (each.share is not None) == is_mixed] for is_mixed in (0, 1)
        )
        config = encoder.config
        layers = f"{config.layers} layer{'s' * (config.layers > 1)}"
        feed_forward = " with feed-forward" if config.feed_forward else " of attention"
        described = f"{encoder.name}: D = {config.d_model}, H = {config.heads}, {layers}{feed_forward}"
        shares = ", ".join(f"{each.share:.2f} in batches of {each.in_flight}" for each in mixed)
        for some, lengths in (
            (equal, f"T = {encoder.tokens}"),
            (mixed, f"mixed lengths (tokens that exist: {shares})"),
        ):
            names = dict.fromkeys(name for each in some for name in each.samples)
            if names:
                rows = markdown_table(_row(name, some) for name in names)
                lines += [f"## {described}, {lengths}", "", *rows]
    lines += [
        "## How it was measured",
        "",
        "* One asyncio client keeps 1, 8 or 32 requests in flight, one sequence each, built before the",
        "  clock starts and not decoded. `AsyncClient.encode` is polyhead's own client, which builds and",
        "  decodes. Client and server share the machine.",
        "* Every server runs the same graph and weights with the same onnxruntime, without spinning.",
        "  Before anything is measured, 32 answers of each to requests at once are compared with",
        "  onnxruntime's own.",
        "* Triton: the server binary of nvidia-pytriton with its Python back end and without batching",
        "  delay; the requests of a batch are joined, and one run answers them. KServe: a custom model in",
        "  its model server, which has no batching. polyhead: as it comes.",
        "* In process: onnxruntime with the machine to itself, at its best batch size for one run with",
        "  all threads, and for one-thread runs on each core. A server can at most reach the better of",
        "  the two.",
        "* Mixed lengths are log-normal, 8 to 128 tokens. There Triton's model pads the requests of a batch",
        "  to the longest and runs the graph that is served, and a padded one, which computes all that;",
        "  ratios divide by the better one with the padded graph, as other exporters make it.",
        "",
        *markdown_table({"server": name, "version": version} for name, version in result["versions"].items()),
    ]
    return "\n".join(lines)


def _row(name: str, comparisons: Sequence[PeerComparison]) -> dict[str, str]:
    """Return a contender's row: three cells for each number of requests in flight."""
    row = {"": f"**{name}**" if name.startswith(POLYHEAD) else name}
    for each in comparisons:
        cells = ["", "", ""]
        if name in each.samples:
            batch = each.samples[name][0].batch
            cells = [
                spell_number(each.median(name, "rate")),
                f"B = {batch}" if batch > 1 else spell_number(each.median(name, "p50_ms")),
                spell_ratios(each.ratios(name)),
            ]
        heads = (
            f"{each.in_flight} in flight: seq/s",
            f"{each.in_flight}: p50 ms",
            f"{each.in_flight}: × Triton",
        )
        row |= dict(zip(heads, cells, strict=True))
    return row
