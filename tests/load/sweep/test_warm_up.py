"""A configuration is called until it answers equally fast."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.load.sweep.synthetic import a_plan
from tests.servers import quick_settings, serving

from polyhead_client import Client, NotFound
from polyhead_load import Lengths
from polyhead_load.outputs import Outputs
from polyhead_load.sweep.warm_up import warm_up

LENGTHS = Lengths(median=5, sigma=0.5, low=1, high=9)


@pytest.fixture(scope="module")
def client(repository: Path) -> Iterator[Client]:
    with serving(quick_settings(repository)) as there, Client(there.address) as client:
        yield client


def test_it_ends_when_windows_agree(client: Client) -> None:
    warm = warm_up(client, a_plan(), most_seconds=60, spread=100)

    assert warm.stable
    assert warm.requests >= 50


def test_it_ends_when_they_never_do(client: Client) -> None:
    warm = warm_up(client, a_plan(), most_seconds=0, spread=-1)

    assert not warm.stable
    assert warm.requests >= 6


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "tiny-tokens", "batch": 2},
        {"outputs": Outputs(fetch=("attention",), heads="0:2", queries="0", dtype="UINT8")},
        {"outputs": Outputs(fetch=("attention",), layers=(1,)), "tokens": LENGTHS},
    ],
)
def test_everything_that_a_plan_asks_for_is_called(changes: dict[str, object], client: Client) -> None:
    model = str(changes.get("model", "tiny"))
    graph = f"{model}.attention" if "outputs" in changes else model
    before = client.statistics(graph)[0].inference_count

    warm = warm_up(client, a_plan(**changes), most_seconds=0)

    made = client.statistics(graph)[0].inference_count - before
    assert made == warm.requests * int(str(changes.get("batch", 1)))


def test_an_unknown_family_is_an_error(client: Client) -> None:
    with pytest.raises(NotFound):
        warm_up(client, a_plan(model="absent"), most_seconds=0)
