"""`make engines`: onnxruntime, OpenVINO, CTranslate2 and sentence-transformers, each in its precisions.

A trained MiniLM, and an encoder of BERT-base's size with random weights; polyhead over gRPC on onnxruntime
and OpenVINO, all others in process. They take turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.encoders import MINILM
from benchmarks.frame import Condition, finish, in_rounds, markdown_table, options
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import version_of
from benchmarks.sentences import natural_texts
from benchmarks.texts.comparison import (
    AS_THEY_COME,
    PER_LIST,
    Least,
    TextComparison,
    TextTraffic,
    measure,
    needs,
)
from benchmarks.texts.files import BERT, prepare
from benchmarks.texts.lineup import (
    ALONE,
    ALONE_BF16,
    BF16,
    CTRANSLATE2_INT8,
    OPENVINO,
    POLYHEAD,
    SERVED,
    Cosines,
    Footprint,
    check,
    engines_in_process,
    start,
)
from polyhead_server.doctor import this_machine

_BATCH_SIZES = (1, 4, PER_LIST)
_TEXTS = 96
"""How many different ones."""
LONE = TextTraffic(per_call=1, in_flight=1, tokens=16)
FULL, LONG = (TextTraffic(per_call=8, in_flight=4, tokens=tokens) for tokens in (64, 128))
LISTS = TextTraffic(per_call=PER_LIST, in_flight=1)
SINGLE = TextTraffic(per_call=1, in_flight=32)
LARGE = tuple(TextTraffic(per_call=8, in_flight=1, tokens=tokens) for tokens in (64, 128))
"""Of the large encoder, whose calls take long."""
_LOADS: Mapping[str, tuple[str, int, Sequence[TextTraffic]]] = {
    MINILM: ("all-MiniLM-L6-v2: D = 384, H = 12, 6 layers", 96, (LONE, FULL, LONG, LISTS, SINGLE)),
    BERT: ("BERT-base's size, random weights: D = 768, H = 12, 12 layers", 24, (LONE, *LARGE)),
}
"""Of each encoder its title, the texts whose vectors are compared, and the loads."""

_FOOTPRINT_MOST = 1.5
_OF_NATURAL_LENGTHS = [
    Least(BF16, AS_THEY_COME, 4.5),
    Least(BF16, ALONE_BF16, 1.3),
    Least(OPENVINO, ALONE, 1.3),
    Least(BF16, CTRANSLATE2_INT8, 1.0),
]
_LEAST: Mapping[TextTraffic, Sequence[Least]] = {
    LONE: [Least(OPENVINO, POLYHEAD, 1.3), Least(BF16, POLYHEAD, 1.3)],
    **{
        traffic: [Least(BF16, POLYHEAD, gain), Least(BF16, ALONE_BF16, 0.92), Least(OPENVINO, ALONE, 0.92)]
        for traffic, gain in ((FULL, 1.9), (LONG, 2.1))
    },
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
        for condition in (
            *(one for compared in each.comparisons for one in compared.judge(_LEAST[compared.traffic])),
            *_footprint(each.footprints),
        )
    ]


def _footprint(footprints: Mapping[str, Footprint]) -> list[Condition]:
    base = footprints[POLYHEAD]
    return [
        Condition(
            name=f"{what}: {name} ≤ {_FOOTPRINT_MOST} × {POLYHEAD}",
            holds=(ratio := getattr(footprints[name], field) / getattr(base, field)) <= _FOOTPRINT_MOST,
            seen=f"{ratio:.2f}",
        )
        for name in (OPENVINO, BF16)
        if name in footprints
        for what, field in (("first answer", "first_answer_seconds"), ("memory", "memory_mib"))
    ]


def sections(results: Sequence[EncoderResult]) -> list[str]:
    """Return the page's tables."""
    lines: list[str] = []
    for each in results:
        lines += [f"## {_LOADS[each.encoder][0]}", ""]
        lines += [line for compared in each.comparisons for line in compared.lines()]
        lines += needs(each.footprints, each.cosines)
    return lines


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "engines", models="texts", seconds=0.5, rounds=3)
    parser.add_argument("--encoders", nargs="+", choices=(MINILM, BERT), default=[MINILM, BERT])
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen = parser.parse_args()
    peers = chosen.sentences_venv.absolute() / "bin" / "python"
    machine = this_machine()
    bf16 = "BF16" in machine.instructions
    if machine.versions["openvino"] is None:
        raise PeerError("OpenVINO must work here, and does not: polyhead doctor --device openvino says why")
    versions = {
        "onnxruntime": machine.versions["onnxruntime"],
        "OpenVINO": machine.versions["openvino"],
        "CTranslate2": version_of(peers, "ctranslate2"),
        "sentence-transformers": version_of(peers, "sentence_transformers"),
        "OpenVINO of sentence-transformers": version_of(peers, "openvino"),
    }
    texts = natural_texts(_TEXTS)
    results = []
    for encoder in chosen.encoders:
        _, checked, loads = _LOADS[encoder]
        files = prepare(encoder, chosen.models, peers)
        engines = {
            name: engine
            for name, engine in engines_in_process(files, peers).items()
            if bf16 or name != ALONE_BF16
        }
        served = [name for name in SERVED if bf16 or name != BF16]
        with start(files, engines, served, rounds=chosen.rounds) as lineup:
            results.append(
                EncoderResult(
                    encoder=encoder,
                    footprints=lineup.footprints,
                    cosines=check(lineup, texts[:checked]),
                    comparisons=measure(
                        lineup,
                        loads,
                        texts,
                        seconds=chosen.seconds,
                        rounds=chosen.rounds,
                        batch_sizes=_BATCH_SIZES,
                    ),
                )
            )
    instructions = machine.instructions
    computes = "OpenVINO computes in bf16 on it." if bf16 else "It lacks bf16 products: bf16 takes no part."
    return finish(
        chosen,
        "make engines",
        "Engines and precisions",
        [
            *sections(results),
            *markdown_table({"": name, "version": version} for name, version in versions.items()),
        ],
        conditions=targets(results),
        intro=(
            f"The processor has {', '.join(instructions) or 'none of AVX2 and later'}. {computes}",
            "",
            f"{in_rounds(chosen)} Rates of “polyhead” are those of a server, all others of an engine in",
            "process.",
        ),
        facts={
            "texts": len(texts),
            "instructions": instructions,
            "bf16": bf16,
            "versions": versions,
            "encoders": results,
        },
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
