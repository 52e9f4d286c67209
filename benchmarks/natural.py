"""`make natural`: real texts of natural lengths, embedded by polyhead, its peers, and engines in process.

Each encodes the same texts by all-MiniLM-L6-v2, from text to vector. They take turns: polyhead and Triton's
Python back end over gRPC, and in process onnxruntime with a padded and a packed graph, CTranslate2, and
sentence-transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.encoders import MINILM
from benchmarks.frame import finish, in_rounds, markdown_table, options
from benchmarks.in_process import CORES
from benchmarks.peers.contenders import PeerError
from benchmarks.peers.launch import TritonVariant, tritonserver, version_of
from benchmarks.sentences import natural_texts, share_of_tokens
from benchmarks.texts.batches import open_tokenizer, token_ids
from benchmarks.texts.comparison import PER_LIST, Least, TextTraffic, measure, needs
from benchmarks.texts.files import EngineFiles, prepare
from benchmarks.texts.lineup import (
    CTRANSLATE2,
    CTRANSLATE2_INT8,
    PACKED,
    PADDED,
    POLYHEAD,
    SENTENCE_TRANSFORMERS,
    check,
    engines_in_process,
    start,
)
from benchmarks.texts.served import TextServer

_TEXTS = 192
"""How many different ones."""
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_VARIANTS = (
    TritonVariant(instances=1, threads=CORES, max_batch={MINILM: 32}),
    TritonVariant(instances=CORES, threads=1, max_batch={MINILM: 8}),
)
_TRITON = "Triton, padded graph"
"""How the names of its models begin whose graph other exporters make, too."""
_D_MODEL = 384
LISTS, EIGHT, MANY = (
    TextTraffic(per_call=PER_LIST, in_flight=1),
    TextTraffic(per_call=1, in_flight=8),
    TextTraffic(per_call=1, in_flight=32),
)
LEAST: Mapping[TextTraffic, Sequence[Least]] = {
    LISTS: [Least(POLYHEAD, CTRANSLATE2, 1.0), Least(POLYHEAD, SENTENCE_TRANSFORMERS, 1.3)],
    EIGHT: [Least(POLYHEAD, PADDED, 1.0), Least(POLYHEAD, _TRITON, 1.4)],
    MANY: [Least(POLYHEAD, PADDED, 1.05), Least(POLYHEAD, _TRITON, 1.4)],
}
_ENGINES = {
    PADDED,
    PACKED,
    CTRANSLATE2,
    CTRANSLATE2_INT8,
    *(f"{SENTENCE_TRANSFORMERS}, {name}" for name in ("torch", "ONNX", "ONNX, optimised")),
}


@contextmanager
def _triton(files: EngineFiles, python: Path) -> Iterator[list[TextServer]]:
    """Serve the padded and the packed graph in each variant."""
    configurations, servers = {}, {}
    for computed, graph in (("padded", files.padded), ("packed", files.graph())):
        for variant in _VARIANTS:
            model = f"{MINILM}-{computed}{variant.suffix}"
            configurations[model] = variant.text_configuration(
                MINILM, f"-{computed}", _D_MODEL, {"graph": graph, "tokenizer": files.tokenizer}
            )
            name = str(variant).replace("Triton", f"Triton, {computed} graph")
            servers[model] = (name, variant.max_batch[MINILM])
    with tritonserver(python, configurations, files.folder / "triton") as started:
        yield [
            TextServer(contender=replace(started, name=name), model=model, per_text=(1,), max_batch=max_batch)
            for model, (name, max_batch) in servers.items()
        ]


def describe_lengths(lengths: Sequence[int]) -> str:
    """Return a line on the lengths of texts, and what padding them costs."""
    as_they_come, by_length = (share_of_tokens(each, PER_LIST) for each in (lengths, sorted(lengths)))
    return (
        f"{len(lengths)} texts of {sum(lengths):,} tokens, median {np.median(lengths):.0f}, at most "
        f"{max(lengths)}. Padded in batches of {PER_LIST}, {as_they_come:.2f} of the tokens exist; sorted by "
        f"length, {by_length:.2f}."
    )


def main() -> int:
    """Compare, write the page, and return 0 if every target is met."""
    parser = options(__doc__, "natural", models="texts", seconds=1.5, rounds=3)
    parser.add_argument("--triton-venv", type=Path, default=Path(".venv-peer-triton"))
    parser.add_argument("--sentences-venv", type=Path, default=Path(".venv-peer-sentences"))
    chosen = parser.parse_args()
    triton, peers = (
        venv.absolute() / "bin" / "python" for venv in (chosen.triton_venv, chosen.sentences_venv)
    )
    versions = {
        name: version_of(peers, name.lower().replace("-", "_"))
        for name in ("CTranslate2", "sentence-transformers")
    }
    files = prepare(MINILM, chosen.models, peers)
    engines = {name: engine for name, engine in engines_in_process(files, peers).items() if name in _ENGINES}
    texts = natural_texts(_TEXTS)
    lengths = [len(ids) for ids in token_ids(open_tokenizer(str(files.tokenizer)), texts)]
    with start(files, engines, [POLYHEAD]) as own, _triton(files, triton) as servers:
        lineup = replace(own, servers=[*own.servers, *servers])
        cosines = check(lineup, texts)
        versions |= {server.name: server.contender.version() for server in lineup.servers}
        comparisons = measure(
            lineup,
            list(LEAST),
            texts,
            seconds=chosen.seconds,
            rounds=chosen.rounds,
            batch_sizes=_BATCH_SIZES,
            # Of single texts an engine gets all, which no server can have: it may sort them all by length.
            at_once=lambda traffic: traffic.per_call if traffic.per_call > 1 else len(texts),
        )
    return finish(
        chosen,
        "make natural",
        "Texts of natural lengths",
        [
            *(line for each in comparisons for line in each.lines()),
            *needs(own.footprints, cosines),
            *markdown_table({"": name, "version": version} for name, version in versions.items()),
        ],
        conditions=[one for each in comparisons for one in each.judge(LEAST[each.traffic])],
        intro=(f"all-MiniLM-L6-v2. {in_rounds(chosen)}", "", describe_lengths(lengths)),
        facts={
            "lengths": lengths,
            "versions": versions,
            "cosines": cosines,
            "comparisons": comparisons,
        },
    )


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PeerError as error:
        raise SystemExit(str(error)) from error
