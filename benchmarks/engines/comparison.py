"""What was measured of engines, what should be reached, and the page of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.encoders import MINILM
from benchmarks.engines.contenders import (
    ALONE,
    ALONE_BF16,
    ATTENTION_BF16,
    BF16,
    CTRANSLATE2_INT8,
    ONNXRUNTIME,
    OPENVINO,
    Footprint,
)
from benchmarks.frame import Condition, at_least, markdown_table, spell_number, spell_ratios
from benchmarks.natural.comparison import PACKED, PADDED, PER_LIST, Cosines, TextComparison, TextTraffic

AS_THEY_COME = f"{PADDED}, batches of {PER_LIST} as they come"
LONE = TextTraffic(per_call=1, in_flight=1, tokens=16)
FULL, LONG = (TextTraffic(per_call=8, in_flight=4, tokens=tokens) for tokens in (64, 128))
LISTS = TextTraffic(per_call=PER_LIST, in_flight=1)
SINGLE = TextTraffic(per_call=1, in_flight=32)
LARGE = tuple(TextTraffic(per_call=8, in_flight=1, tokens=tokens) for tokens in (64, 128))
"""Of the large encoder, whose calls take long."""
LOADS = {True: (LONE, FULL, LONG, LISTS, SINGLE), False: (LONE, *LARGE)}
"""By whether the encoder is the small one."""

_FOOTPRINT_MOST = 1.5


class Least(NamedTuple):
    """The least ratio of rates."""

    name: str
    other: str
    ratio: float


def _of_equal_lengths(gain: float) -> Sequence[Least]:
    return [
        Least(BF16, ONNXRUNTIME, gain),
        Least(BF16, ALONE_BF16, 0.92),
        Least(OPENVINO, f"{ALONE}, fp32", 0.92),
        Least(ATTENTION_BF16, PACKED, 1.5),
    ]


_OF_NATURAL_LENGTHS = [
    Least(BF16, AS_THEY_COME, 4.5),
    Least(BF16, ALONE_BF16, 1.3),
    Least(OPENVINO, f"{ALONE}, fp32", 1.3),
    Least(BF16, CTRANSLATE2_INT8, 1.0),
]
_LEAST: Mapping[TextTraffic, Sequence[Least]] = {
    LONE: [Least(OPENVINO, ONNXRUNTIME, 1.3), Least(BF16, ONNXRUNTIME, 1.3)],
    FULL: _of_equal_lengths(1.9),
    LONG: _of_equal_lengths(2.1),
    LISTS: _OF_NATURAL_LENGTHS,
    SINGLE: _OF_NATURAL_LENGTHS,
}


@dataclass(frozen=True, kw_only=True)
class EncoderResult:
    """All that was measured of one encoder."""

    encoder: str
    footprints: Mapping[str, Footprint]
    cosines: Mapping[str, Cosines]
    comparisons: Sequence[TextComparison]


def targets(results: Sequence[EncoderResult]) -> list[Condition]:
    """Return what the small encoder should reach; what takes no part is not judged."""
    return [
        condition
        for each in results
        if each.encoder == MINILM
        for condition in (*_speed(each.comparisons), *_footprint(each.footprints))
    ]


def _speed(comparisons: Sequence[TextComparison]) -> list[Condition]:
    return [
        at_least(f"{each.traffic.title}: {name}", least, other, each.ratios(name, other))
        for each in comparisons
        for name, other, least in _LEAST[each.traffic]
        if name in each.samples and other in each.samples
    ]


def _footprint(footprints: Mapping[str, Footprint]) -> list[Condition]:
    found, base = [], footprints[ONNXRUNTIME]
    for name in (OPENVINO, BF16):
        if name not in footprints:
            continue
        own = footprints[name]
        for what, ratio in {
            "first answer": own.first_answer_seconds / base.first_answer_seconds,
            "memory": own.memory_mib / base.memory_mib,
        }.items():
            found.append(
                Condition(
                    name=f"{what}: {name} ≤ {_FOOTPRINT_MOST} × {ONNXRUNTIME}",
                    holds=ratio <= _FOOTPRINT_MOST,
                    seen=f"{ratio:.2f}",
                )
            )
    return found


def sections(
    results: Sequence[EncoderResult], versions: Mapping[str, str], *, cores: int, rounds: int
) -> list[str]:
    """Return the page's tables."""
    lines: list[str] = []
    for each in results:
        lines += [f"## {_TITLES.get(each.encoder, each.encoder)}", ""]
        for comparison in each.comparisons:
            rows = markdown_table(_row(name, comparison) for name in comparison.samples)
            lines += [f"### {comparison.traffic.title}", "", *rows]
        rows = markdown_table(_footprint_row(name, each) for name in each.footprints)
        lines += ["### Memory, first answer, and precision", "", *rows]
    return [
        *lines,
        "## How it was measured",
        "",
        f"* All use {cores} threads in all. Each server and each engine has a process of its own, and",
        "  nothing to do while another is measured. One asyncio client calls the servers, and shares the",
        "  machine with them.",
        "* Sequences of equal length are given as token ids; the rest starts from text, and tokenising",
        "  counts. In process an engine gets at once what a server has in flight; its p50 is the time for",
        "  all of it. A search picks its plan: one run with all threads or one-thread runs on each core",
        "  (streams, for OpenVINO), and for texts also the batch size, with or without sorting by length.",
        "  Calls of equal lengths keep the plan of the shorter ones.",
        f"* “{AS_THEY_COME}” is what a server without packing would do.",
        "* The padded graph is ours without packing, as other exporters make it. OpenVINO and",
        "  onnxruntime's quantizer (`quantize_dynamic`, signed weights, one scale per tensor) read that",
        "  file. OpenVINO's attention graph returns the attention of all layers.",
        "* Memory is what a process holds right after the first answer, imports included; a file that it",
        "  has mapped several times counts once. A server has two sessions of the fast and two of the",
        "  attention graph, an engine in process one graph. The first answer",
        f"  counts from the start of the process; of servers it is the median of {rounds} starts, in turn.",
        "* Cosines compare pooled vectors of natural texts with those of the padded graph in fp32, one",
        "  text a run. The large encoder has random weights: its cosines say nothing of a trained one's.",
        "",
        *markdown_table({"": name, "version": version} for name, version in versions.items()),
    ]


_TITLES = {
    MINILM: "all-MiniLM-L6-v2: D = 384, H = 12, 6 layers",
    "bert-base": "BERT-base's size, random weights: D = 768, H = 12, 12 layers",
}


def _row(name: str, each: TextComparison) -> dict[str, str]:
    return {
        "": _spelt(name),
        "sequences/s": spell_number(each.median(name)),
        "×": "" if name == ONNXRUNTIME else spell_ratios(each.ratios(name, ONNXRUNTIME)),
        "p50 of a call, ms": spell_number(each.median(name, "p50_ms")),
        "plan": each.plans.get(name, ""),
        "errors": str(each.errors(name)),
    }


def _footprint_row(name: str, each: EncoderResult) -> dict[str, str]:
    own, cosines = each.footprints[name], each.cosines[name]
    return {
        "": _spelt(name),
        "memory, MiB": f"{own.memory_mib:.0f}",
        "first answer, s": f"{own.first_answer_seconds:.1f}",
        "lowest cosine": f"{cosines.lowest:.5f}",
        "mean cosine": f"{cosines.mean:.5f}",
    }


def _spelt(name: str) -> str:
    return f"**{name}**" if name.startswith("polyhead") else name
