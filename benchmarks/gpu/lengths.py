"""Natural lengths: the fast graph beside PyTorch, compiled, and beside bare graphs; then attention's cost."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from benchmarks.gpu import bare
from benchmarks.gpu.plan import ATTENTION, FAST, LONG, TEXTS, Check, EncoderFamily
from benchmarks.gpu.pytorch import compiled
from benchmarks.rounds import ratio_of, time_in_turn
from polyhead_export.precision import DTYPES
from polyhead_model import Encoder, flops

_OURS, _COMPILED = "ours", "torch.compile, padded"
_SAME = {TEXTS: "PackedAttention", LONG: "PackedMultiHeadAttention"}
"""The operators of the fast graphs in fp16."""
_SECONDS = 0.5
"""For all ways of computing a mix."""


def mixes_of(name: str) -> dict[str, list[int]]:
    """Return lengths by what they are called: texts, or documents for the family that takes them."""
    random = np.random.default_rng(7)

    def natural(count: int, middle: float, longest: int) -> list[int]:
        drawn: NDArray[Any] = random.lognormal(np.log(middle), 0.65, count).clip(3, longest)
        return [int(length) for length in drawn]

    if name == LONG:
        return {"32 × 512": [512] * 32, "32 documents": natural(32, 150, 512)}
    mixes = {f"{count:,} natural": natural(count, 20, 256) for count in (1024, 128, 32)}
    return mixes | {"1 × 16": [16], "32 × 128": [128] * 32}


def run(check: Check) -> None:
    """Time every mix."""
    check.write(
        "line", text="In ms. Bare graphs are told where tokens lie; ours and PyTorch's find out each time."
    )
    for name in (TEXTS, LONG):
        family = check.family(name)
        with check.attempt(family), TemporaryDirectory() as folder:
            encoder = family.encoder.build().encoder.eval().fuse()
            encoder.to(check.device.name, DTYPES[family.precision])
            sessions = {_OURS: check.open(family.folder / f"{FAST}.onnx")}
            for form in bare.FORMS:
                path = Path(folder) / f"{form}.onnx"
                bare.build(encoder.config, form, path, emulated=check.device.host_memory)
                sessions[form] = check.open(path)
            for mix, lengths in mixes_of(name).items():
                with check.attempt(f"{family}, {mix}"):
                    some = [min(8, one) for one in lengths[:4]] if check.tiny else lengths
                    _measure(check, family, encoder, sessions, mix=mix, lengths=some)


def _measure(
    check: Check,
    family: EncoderFamily,
    encoder: Encoder,
    sessions: Mapping[str, ort.InferenceSession],
    *,
    mix: str,
    lengths: list[int],
) -> None:
    device, config, feeds = check.device.name, encoder.config, family.feeds(FAST, lengths)
    calls: dict[str, Callable[[], object]] = {_OURS: _bound(device, sessions[_OURS], feeds, ["pooled"])}
    for form in bare.FORMS:
        calls[form] = _bound(device, sessions[form], bare.feeds_of(config, form, lengths), [bare.OUTPUT])
    ids, counts = (torch.from_numpy(feeds[each]).to(device) for each in ("input_ids", "lengths"))
    # Compiling takes seconds, which these mixes are not worth.
    ways = {} if mix in {"1 × 16", "32 × 128"} else {_COMPILED: False, "torch.compile, packed": True}
    for way, pack in ways.items():
        with check.attempt(f"{way}, {family}, {mix}"):
            call = compiled(encoder, ids, counts, pack=pack)
            call()
            calls[way] = call
    attention = len({*lengths}) == 1 and mix != "1 × 16"
    if attention:
        session, asked = check.open(family.folder / f"{ATTENTION}.onnx"), family.feeds(ATTENTION, lengths)
        weights = [each.name for each in session.get_outputs() if each.name.startswith("attention")]
        calls["attention"] = _bound(device, session, asked, weights)
        calls["the last layer copied"] = lambda: session.run(weights[-1:], asked)
        calls["all copied"] = lambda: session.run(weights, asked)
    samples = time_in_turn(calls, 0.01 if check.tiny else _SECONDS, clock=check.clock)
    taken = {name: 1e3 * median(each) for name, each in samples.items()}
    gains = {name: ratio_of(samples[name], samples[_OURS]).value for name in samples}
    cells = {name: taken[name] for name in taken if name in bare.FORMS or name == _OURS or "torch" in name}
    speed = sum(flops(config, 1, length) for length in lengths) / taken[_OURS] / 1e9
    real = sum(lengths) / len(lengths) / max(lengths)
    check.row(family=str(family), mix=mix, real_tokens=f"{real:.0%}", **cells, **{"TFLOP/s": speed})
    check.judge("operator", gains[_SAME[family.encoder.name]])
    check.judge("best", min(gains[form] for form in bare.FORMS))
    judged = dict.fromkeys(("1,024 natural", "128 natural"), gains.get(_COMPILED, 0.0))
    judged |= {"1 × 16": 1 / gains[bare.PADDED], "32 × 512": gains[bare.PADDED]}
    if mix in judged:
        check.judge(mix, judged[mix])
    if attention:
        cost = taken["attention"] / taken[bare.PADDED]
        rest = ", ".join(f"{name} {taken[name]:.3g}" for name in taken if name not in cells)
        check.write("line", text=f"{family}, {mix}, ms: {rest}; {cost:.2f} × the padded bare graph.")
        check.judge(f"T = {128 if mix == '32 × 128' else 512}", cost)


def _bound(
    device: str, session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]
) -> Callable[[], None]:
    """Return a run whose inputs and outputs stay on the device."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value, device))
    for name in outputs:
        binding.bind_output(name, device)
    return partial(session.run_with_iobinding, binding)
