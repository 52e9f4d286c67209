"""What was measured on natural texts, and the page of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.frame import (
    Condition,
    Rounds,
    at_least,
    at_most,
    markdown_table,
    spell_number,
    spell_ratios,
    spell_threads,
)
from benchmarks.peers.comparison import POLYHEAD, TRITON, strongest_triton
from benchmarks.sentences import share_of_tokens

PADDED = "onnxruntime in process, padded graph"
PACKED = "onnxruntime in process, packed graph"
CTRANSLATE2 = "CTranslate2 in process, fp32"
INT8 = "int8"
SENTENCE_TRANSFORMERS = "sentence-transformers in process"
"""How the names of its back ends begin."""

PER_LIST = 32
_EQUAL_MOST = 1.03
_MIXED_CALL_PLUS = 0.08
_QUARTILES = (5, 25, 50, 75, 95, 100)


@dataclass(frozen=True, kw_only=True)
class TextTraffic:
    """A load of calls."""

    per_call: int
    """Sequences of each call."""
    in_flight: int
    tokens: int | None = None
    """T of sequences that are given as token ids; None for texts of natural lengths."""

    @property
    def title(self) -> str:
        """It in words."""
        if self.tokens is not None:
            calls = "one call at a time" if self.in_flight == 1 else f"{self.in_flight} calls in flight"
            return f"B × T = {self.per_call} × {self.tokens}, {calls}"
        if self.per_call > 1:
            return f"Lists of {self.per_call} texts, one call at a time"
        return f"Single texts, {self.in_flight} calls in flight"


TRAFFIC = (
    TextTraffic(per_call=PER_LIST, in_flight=1),
    TextTraffic(per_call=1, in_flight=8),
    TextTraffic(per_call=1, in_flight=32),
)


@dataclass(frozen=True, kw_only=True)
class TextComparison(Rounds):
    """All rounds of one traffic."""

    traffic: TextTraffic
    plans: Mapping[str, str] = field(default_factory=dict)
    """How engines in process batch, by name."""


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """How near vectors are to those that they should be."""

    lowest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class MixedCall:
    """A call of sequences of mixed lengths beside the same call at full length."""

    share: float
    """Of its tokens, those that exist."""
    ratios: Sequence[float]
    """Of the p50, ascending."""


@dataclass(frozen=True, kw_only=True)
class EqualLengths:
    """The packed graph beside the padded one where nothing is padded."""

    batch: int
    tokens: int
    threads: int
    ratios: Sequence[float]
    """Of the seconds of a run, ascending."""


def targets(
    comparisons: Sequence[TextComparison], call: MixedCall, equal: Sequence[EqualLengths]
) -> list[Condition]:
    """Return what polyhead should reach."""
    found: list[Condition] = []
    for each in comparisons:
        bounds = {PADDED: 1.05 if each.traffic.in_flight == 32 else 1.0, TRITON: 1.4}
        if each.traffic.per_call > 1:
            bounds = {CTRANSLATE2: 1.0, SENTENCE_TRANSFORMERS: 1.3}
        for prefix, least in bounds.items():
            others = [name for name in each.samples if name.startswith(prefix)]
            other = strongest_triton(each) if prefix == TRITON else each.strongest(others)
            found.append(at_least(f"{each.traffic.title}:", least, other, each.ratios(POLYHEAD, other)))
    name = f"a call of 8 sequences of 8–128 tokens, of which {call.share:.2f} exist:"
    found.append(at_most(name, call.share + _MIXED_CALL_PLUS, "the same call at full length", call.ratios))
    for one in equal:
        name = (
            f"equal lengths, B × T = {one.batch} × {one.tokens}, {spell_threads(one.threads)}: packed graph"
        )
        found.append(at_most(name, _EQUAL_MOST, "padded graph", one.ratios))
    return found


def describe_lengths(lengths: Sequence[int]) -> list[str]:
    """Return lines on the lengths of texts, and what padding them costs."""
    shown = ", ".join(
        f"{percentile:.0f} ({share} %)"
        for share, percentile in zip(_QUARTILES, np.percentile(lengths, _QUARTILES), strict=True)
    )
    shares = {f"batches of {batch}": share_of_tokens(lengths, batch) for batch in (8, PER_LIST)} | {
        f"batches of {PER_LIST}, all texts sorted by length": share_of_tokens(sorted(lengths), PER_LIST)
    }
    return [
        f"{len(lengths)} texts of {sum(lengths):,} tokens; so many have at most: {shown}.",
        "",
        *markdown_table(
            {"padded in": name, "share of tokens that exist": f"{share:.2f}"}
            for name, share in shares.items()
        ),
    ]


def sections(
    comparisons: Sequence[TextComparison],
    lengths: Sequence[int],
    cosines: Mapping[str, Cosines],
    versions: Mapping[str, str],
    *,
    cores: int,
) -> list[str]:
    """Return the page's tables."""
    lines = ["## The texts", "", *describe_lengths(lengths)]
    for each in comparisons:
        lines += [f"## {each.traffic.title}", "", *markdown_table(_row(name, each) for name in each.samples)]
    return [
        *lines,
        "## How it was measured",
        "",
        "* Everyone gets texts, tokenises them within the measured time, and gives one normalised vector a",
        "  text. polyhead, Triton's model, onnxruntime in process and CTranslate2 use the `tokenizers`",
        "  library; sentence-transformers calls it through transformers.",
        f"* All use {cores} threads in all. In process each engine has a process of its own. Of lists it",
        "  gets one at a time; of single texts all at once, which no server can have: it may sort them all",
        "  by length. A search picks the fastest batches, by size and order, as one run with all threads or",
        "  one-thread runs on each core. sentence-transformers sorts by itself.",
        "* Servers are called over gRPC by one asyncio client that shares the machine. Triton's Python",
        "  back end joins the requests of a batch, tokenises, pads and runs once.",
        "* CTranslate2 removes padding by itself and does not pool: NumPy does. The padded graph is ours",
        "  without packing, as other servers would run it.",
        "* Before anything is measured, every vector is compared with the padded graph's, one text a run.",
        "",
        *markdown_table(
            {"": name, "lowest cosine": f"{cosine.lowest:.5f}"} for name, cosine in cosines.items()
        ),
        *markdown_table({"": name, "version": version} for name, version in versions.items()),
    ]


def _row(name: str, each: TextComparison) -> dict[str, str]:
    own = name == POLYHEAD
    return {
        "": f"**{name}**" if own else name,
        "texts/s": spell_number(each.median(name)),
        "polyhead ×": "" if own else spell_ratios(each.ratios(POLYHEAD, name)),
        "p50 of a call, ms": ""
        if name in each.plans and each.traffic.per_call == 1
        else spell_number(each.median(name, "p50_ms")),
        "batches": each.plans.get(name, ""),
        "errors": str(each.errors(name)),
    }
