"""Servers are compared with the stronger Triton, round by round."""

import pytest

from benchmarks.encoders import ENCODERS
from benchmarks.frame import Sample
from benchmarks.peers.comparison import (
    ENCODE,
    IN_PROCESS,
    PADDED,
    POLYHEAD,
    TRITON,
    PeerComparison,
    sections,
    strongest_triton,
    targets,
)

ONE, TWO = f"{TRITON}, 1 × 2 threads", f"{TRITON}, 2 × 1 thread"


def compared(in_flight: int = 8, **rates: list[float]) -> PeerComparison:
    """Rates in each round; polyhead's are 90, 100 and 110 if not given."""
    every = {POLYHEAD: [90.0, 100.0, 110.0], ONE: [80.0, 80.0, 200.0], TWO: [100.0, 100.0, 100.0], **rates}
    samples = {name: [Sample(rate=rate, p50_ms=8.0) for rate in of] for name, of in every.items()}
    return PeerComparison(encoder=ENCODERS[0].name, in_flight=in_flight, samples=samples)


def test_the_variant_with_the_better_median_is_triton() -> None:
    assert strongest_triton(compared()) == TWO
    assert compared().against_triton(POLYHEAD) == pytest.approx([0.9, 1.0, 1.1])


def test_the_worst_number_in_flight_decides() -> None:
    (met,) = targets([compared(1), compared(8)])
    (missed,) = targets([compared(1), compared(8, **{POLYHEAD: [99.0, 99.0, 99.0]})])

    assert met.holds
    assert not missed.holds
    assert missed.seen == "1.00 at 1, 0.99 at 8"


@pytest.mark.parametrize(("rate", "holds"), [(149.0, False), (151.0, True)])
def test_the_clients_own_calls_have_a_target_of_their_own(rate: float, holds: bool) -> None:
    *_, encode = targets([compared(32, **{ENCODE: [rate] * 3})])

    assert "AsyncClient.encode" in encode.name
    assert encode.holds is holds


def test_every_server_has_a_row_with_its_ratio() -> None:
    alone = f"{IN_PROCESS}, 1 × 2 threads"
    limited = compared(8, KServe=[50.0] * 3)
    limit = {alone: [Sample(rate=120.0, p50_ms=60.0, batch=8)] * 3}
    comparison = PeerComparison(encoder=limited.encoder, in_flight=8, samples={**limited.samples, **limit})

    shown = "\n".join(sections([compared(1), comparison], {"KServe": "kserve 1"}))

    assert "| KServe | 50 | 0.50 (0.50–0.50) | 8 |" in shown
    assert f"| {alone} | 120 | 1.20 (1.20–1.20) | 60 | 7.50 (7.50–7.50) |  | 8.0 |" in shown
    assert "| KServe | kserve 1 |" in shown


@pytest.mark.parametrize(("rate", "holds"), [(139.0, False), (141.0, True)])
def test_on_mixed_lengths_triton_has_the_padded_graph(rate: float, holds: bool) -> None:
    packed, padded = ([Sample(rate=each, p50_ms=8.0)] for each in (130.0, 100.0))
    samples = {POLYHEAD: [Sample(rate=rate, p50_ms=8.0)], ONE: packed, f"{ONE}, {PADDED}": padded}
    mixed = PeerComparison(encoder="bench-384", in_flight=8, samples=samples, share=0.5)

    (condition,) = targets([mixed])

    assert strongest_triton(mixed) == f"{ONE}, {PADDED}"
    assert condition.name == "bench-384, mixed lengths: polyhead ≥ 1.4 × Triton"
    assert condition.holds is holds
    shown = "\n".join(sections([mixed], {}))
    assert "mixed lengths (0.50 of the tokens in padded batches exist), 8 in flight" in shown
