"""Texts and token ids, embedded by polyhead and by engines in process, from text to vector.

Two parts: `natural`, real texts of natural lengths beside CTranslate2 and sentence-transformers, and
`engines`, which of onnxruntime and OpenVINO is fastest in which precision. Everyone takes turns.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np
import onnxruntime as ort

from benchmarks.compare.files import prepare
from benchmarks.compare.lineup import (
    ALONE,
    ALONE_BF16,
    BF16,
    CTRANSLATE2,
    CTRANSLATE2_INT8,
    OPENVINO,
    PACKED,
    PADDED,
    POLYHEAD,
    SENTENCE_TRANSFORMERS,
    SERVED,
    check,
    engines_in_process,
    needs,
    start,
)
from benchmarks.compare.peer_servers import environment_of
from benchmarks.compare.text_load import AS_THEY_COME, PER_LIST, TextTraffic, measure
from benchmarks.encoders import BERT, MINILM, TINY_TEXTS, BenchEncoder
from benchmarks.engines.plans import open_tokenizer, token_ids
from benchmarks.page import finish, in_rounds
from benchmarks.rounds import Comparison, Condition, Want, markdown_table, undisturbed
from benchmarks.sentences import natural_texts, share_of_tokens
from polyhead_load.sweep.fingerprint import cpu_facts

Wanted = Mapping[TextTraffic, Sequence[Want]]


@dataclass(frozen=True, kw_only=True)
class TextStudy:
    """A part."""

    title: str
    encoders: Mapping[BenchEncoder, Wanted]
    """With their loads, and what is wanted of each."""
    served: Sequence[str]
    engines: tuple[str, ...]
    """How the names begin of those in process that take part."""
    all_at_once: bool = False
    """Whether an engine gets all single texts at once, which no server can have: it may sort them all."""


_LISTS = TextTraffic(per_call=PER_LIST, in_flight=1)
_EIGHT, _SINGLE = (TextTraffic(per_call=1, in_flight=in_flight) for in_flight in (8, 32))
_LONE = TextTraffic(per_call=1, in_flight=1, tokens=16)
_FULL, _LONG = (TextTraffic(per_call=8, in_flight=4, tokens=tokens) for tokens in (64, 128))
_OF_NATURAL_LENGTHS = [
    Want(name=BF16, of=AS_THEY_COME, least=4.5),
    Want(name=BF16, of=ALONE_BF16, least=1.3),
    Want(name=OPENVINO, of=ALONE, least=1.3),
    Want(name=BF16, of=CTRANSLATE2_INT8, least=1.0),
]
_OF_EQUAL_LENGTHS = {
    traffic: [
        Want(name=BF16, of=POLYHEAD, least=gain),
        Want(name=BF16, of=ALONE_BF16, least=0.92),
        Want(name=OPENVINO, of=ALONE, least=0.92),
    ]
    for traffic, gain in ((_FULL, 1.9), (_LONG, 2.1))
}
_NATURAL: Wanted = {
    _LISTS: [Want(of=CTRANSLATE2, least=1.0), Want(of=SENTENCE_TRANSFORMERS, least=1.3)],
    _EIGHT: [Want(of=PADDED, least=1.0)],
    _SINGLE: [Want(of=PADDED, least=1.05)],
}
_ENGINES: Wanted = {
    _LONE: [Want(name=name, of=POLYHEAD, least=1.3) for name in (OPENVINO, BF16)],
    **_OF_EQUAL_LENGTHS,
    _LISTS: _OF_NATURAL_LENGTHS,
    _SINGLE: _OF_NATURAL_LENGTHS,
}
_OF_LARGE: Wanted = {
    TextTraffic(per_call=per_call, in_flight=1, tokens=tokens): []
    for per_call, tokens in ((1, 16), (8, 64), (8, 128))
}
"""Of the large encoder, whose weights are random: it is shown and not judged."""
_STUDIES = {
    "natural": TextStudy(
        title="Texts of natural lengths",
        encoders={MINILM: _NATURAL},
        served=[POLYHEAD],
        engines=(
            *(PADDED, PACKED, CTRANSLATE2, CTRANSLATE2_INT8),
            *(f"{SENTENCE_TRANSFORMERS}, {name}" for name in ("torch", "ONNX")),
        ),
        all_at_once=True,
    ),
    "engines": TextStudy(
        title="Engines and precisions",
        encoders={MINILM: _ENGINES, BERT: _OF_LARGE},
        served=list(SERVED),
        engines=("",),
    ),
}
_TEXTS, _FEW_TEXTS = 192, 32
"""How many different ones, and of tiny encoders."""
_BF16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
_PACKAGES = ("ctranslate2", "sentence-transformers")


def run(chosen: Namespace) -> int:
    """Compare, write the page, and return 0 if every condition holds."""
    study = _STUDIES[chosen.part]
    if chosen.tiny:
        tiny: Wanted = {_EIGHT if study.all_at_once else _LONE: [], _LISTS: []}
        study = replace(study, encoders={TINY_TEXTS: tiny})
    peers, theirs = environment_of(chosen.sentences_venv, _PACKAGES, chosen)
    bf16 = bool(_BF16_INSTRUCTIONS & instructions())
    texts = natural_texts(_FEW_TEXTS if chosen.tiny else _TEXTS)
    comparisons: list[Comparison] = []
    conditions: list[Condition] = []
    lines, facts = [], []
    for encoder, wanted in study.encoders.items():
        python = peers if encoder.checkpoint else None  # which others convert
        files = prepare(encoder, chosen.models, python)
        engines = {
            name: engine
            for name, engine in engines_in_process(files, python).items()
            if name.startswith(study.engines) and (bf16 or name != ALONE_BF16)
        }
        served = [name for name in study.served if bf16 or name != BF16]
        with start(files, engines, served) as lineup:
            # Half of them, as encoders of BERT's size take long.
            cosines = check(lineup, texts[: len(texts) // 2])
            for traffic, targets in wanted.items():
                every = study.all_at_once and traffic.per_call == 1
                comparison = measure(
                    lineup,
                    traffic,
                    texts,
                    chosen,
                    title=f"{encoder}, {traffic}",
                    at_once=len(texts) if every else traffic.at_once,
                )
                comparisons.append(comparison)
                conditions += comparison.judge(targets)
                lines += comparison.lines()
            lines += needs(lineup.memory_mib, cosines)
            facts.append({"encoder": encoder.name, "cosines": cosines, "memory_mib": lineup.memory_mib})
    lengths = [len(ids) for ids in token_ids(open_tokenizer(str(files.tokenizer)), texts)]
    versions = {"onnxruntime": ort.__version__, "openvino": metadata.version("openvino"), **theirs}
    return finish(
        chosen,
        chosen.part,
        f"make compare PARTS={chosen.part}",
        study.title,
        [*lines, *markdown_table({"": name, "version": version} for name, version in versions.items())],
        conditions=[*conditions, undisturbed(comparisons)],
        intro=[f"{in_rounds(chosen)} {_processor(bf16)}", "", _describe(lengths)],
        facts={"versions": versions, "lengths": lengths, "encoders": facts, "comparisons": comparisons},
    )


def instructions() -> set[str]:
    """Return what the processor's flags say it has, where the system tells."""
    return set(cpu_facts("flags").split())


def _processor(bf16: bool) -> str:
    known = ", ".join(sorted(name for name in instructions() if name.startswith(("avx", "amx"))))
    return f"The processor has {known or 'none of AVX and later'}" + (
        "." if bf16 else ": without bf16 products, bf16 takes no part."
    )


def _describe(lengths: Sequence[int]) -> str:
    """Return a line on the lengths of texts, and what padding them costs."""
    as_they_come, by_length = (share_of_tokens(each, PER_LIST) for each in (lengths, sorted(lengths)))
    return (
        f"{len(lengths)} texts of {sum(lengths):,} tokens, median {np.median(lengths):.0f}, at most "
        f"{max(lengths)}. Padded in batches of {PER_LIST}, {as_they_come:.2f} of the tokens exist; sorted by "
        f"length, {by_length:.2f}."
    )
