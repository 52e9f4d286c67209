"""What several servers are compared with, and which targets that meets."""

import pytest

from benchmarks.frame import Rounds
from benchmarks.scaling import (
    IN_FLIGHT,
    PLAIN,
    RAY,
    Compared,
    ScalingSample,
    sections,
    targets,
)


def sample(rate: float, p50_ms: float = 10.0, batch: float = 4.0) -> ScalingSample:
    return ScalingSample(
        rate=rate,
        p50_ms=p50_ms,
        batch=batch,
        errors=0,
        client_cores=0.1,
        server_cores=1.5,
        cpu_ms={"client": 1.0, "ingress": 2.0, "server or replica": 12.5},
    )


def compared(name: str, *own: ScalingSample, plain: float = 100.0) -> Compared:
    load = Rounds(samples={PLAIN: [sample(plain)] * len(own), name: own})
    return Compared(
        name=name,
        loads=dict.fromkeys(IN_FLIGHT, load),
        memory_mib=1000,
        processes=3,
    )


def test_ratios_are_those_of_a_round_and_the_middle_one_counts() -> None:
    one = compared("x", sample(50), sample(80), sample(90))

    assert one.ratios(8, "rate") == [0.5, 0.8, 0.9]
    assert one.median(8, "rate") == 80


@pytest.mark.parametrize(("p50", "met"), [(20, [True]), (21, [False])])
def test_rays_path_is_judged_by_a_lone_request(p50: float, met: list[bool]) -> None:
    plain = compared(PLAIN, sample(100))

    assert [condition.holds for condition in targets([plain, compared(RAY, sample(80, p50))])] == met
    assert targets([plain]) == []


def test_the_page_has_a_row_for_each_setup() -> None:
    name = RAY

    text = "\n".join(sections([compared(PLAIN, sample(100)), compared(name, sample(90, 12))]))

    assert text.count(f"| **{PLAIN}** | 100 |  | 10 |  |  | 4.0 |") == len(IN_FLIGHT)
    row = f"| {name} | 90 | 0.90 (0.90–0.90) | 12 | 1.20 (1.20–1.20) |  | 4.0 |"
    assert text.count(row) == len(IN_FLIGHT)
    assert f"| {name} | 1.00 |  | 2.00 | 12.50 |  | 15.50 | 3 | 1,000 |" in text
