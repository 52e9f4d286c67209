"""Every graph against PyTorch in float64, ragged, at sizes that it was not traced with."""

from functools import partial
from pathlib import Path

from benchmarks.gpu.plan import LONG, Check, EncoderFamily
from polyhead_export.kinds import kinds_of
from polyhead_export.parity import Reference, Run
from polyhead_model.insight.token_classes import token_classes


def run(check: Check) -> None:
    """Compare every family but the largest, whose graphs are others' as well."""
    references: dict[str, Reference] = {}  # which keep what PyTorch gives
    for family in check.families:
        name = family.encoder.name
        if name == LONG or not family.folder.exists():
            continue
        built = family.encoder.build()
        classes = () if built.tokenizer is None else token_classes(built.tokenizer.parts())
        reference = references.setdefault(name, Reference(built.encoder))
        for kind in kinds_of(built.encoder.config, family.graphs, token_classes=classes):
            file, opened = family.folder / kind.file, partial(_open, check, family)
            with check.attempt(f"{family}, {kind.file}"):
                found = reference.compare(file, kind, None, opened=opened)
                of = max(found, key=lambda output: found[output].excess)
                excess, largest = found[of].excess, max(each.graph.largest for each in found.values())
                theirs = max(each.pytorch.largest for each in found.values())
                cells = {"largest error": largest, "PyTorch's in fp32": theirs, "× limit": excess, "of": of}
                check.row(family=str(family), graph=kind.file, **cells)
                check.judge(family.precision, excess if family.precision == "fp32" else largest)


def _open(check: Check, family: EncoderFamily, file: Path) -> Run:
    engine = check.engine(family, file.stem)
    return lambda names, feeds: [engine.run(feeds, names)[name] for name in names]
