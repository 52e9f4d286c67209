"""What several servers are compared with, and which targets that meets."""

from typing import Any

import pytest

from scaling import IN_FLIGHT, PLAIN, RAY, TWO_NODES, Compared, ScalingSample, Standing, page, targets


def sample(rate: float, p50_ms: float = 10.0, batch: float = 4.0) -> ScalingSample:
    return ScalingSample(rate=rate, p50_ms=p50_ms, batch=batch, errors=0, client_cores=0.1, server_cores=1.5)


def compared(name: str, *own: ScalingSample, plain: float = 100.0) -> Compared:
    return Compared(
        name=name,
        samples=dict.fromkeys(IN_FLIGHT, own),
        plain=dict.fromkeys(IN_FLIGHT, [sample(plain)] * len(own)),
        rest=Standing(cores=0.1, memory_mib=1000, processes=3),
    )


def test_ratios_are_those_of_a_round_and_the_middle_one_counts() -> None:
    one = compared("x", sample(50), sample(80), sample(90))

    assert one.ratios(8, "rate") == [0.5, 0.8, 0.9]
    assert one.median(8, "rate") == 80


@pytest.mark.parametrize(
    ("p50s", "rate", "batch", "met"),
    [
        ((15, 25), 100, 4, [True, True, True]),
        ((30, 19), 96, 2, [True, True, True]),
        ((21, 25), 94, 1.5, [False, False, False]),
    ],
)
def test_targets(p50s: tuple[float, float], rate: float, batch: float, met: list[bool]) -> None:
    proxies = [compared(name, sample(80, p50)) for name, p50 in zip(RAY, p50s, strict=True)]
    two = compared(TWO_NODES, sample(rate, batch=batch))

    assert [condition.holds for condition in targets([compared(PLAIN, sample(100)), *proxies, two])] == met
    assert targets([compared(PLAIN, sample(100))]) == []


def test_the_page_has_a_row_for_each_setup() -> None:
    facts = {"began": "now", "cores": 2, "processor": "x", "Python": "3", "grpcio": "1", "polyhead": "0"}
    result: dict[str, Any] = {"fingerprint": facts, "rounds": 1, "seconds": 1.5, "targets": []}

    text = page([compared(PLAIN, sample(100)), compared(TWO_NODES, sample(90, 12))], result)

    assert text.count(f"| **{PLAIN}** | 100 |  | 10 |  | 4.0 |") == len(IN_FLIGHT)
    assert text.count(f"| {TWO_NODES} | 90 | 0.90 (0.90–0.90) | 12 | 1.20 (1.20–1.20) | 4.0 |") == len(
        IN_FLIGHT
    )
    assert f"| {TWO_NODES} | 3 | 0.10 | 1,000 |" in text
