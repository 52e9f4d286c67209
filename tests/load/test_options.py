import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import configargparse
import pytest

from polyhead_client.options import Access
from polyhead_load import Lengths, LoadError, LoadPlan
from polyhead_load.options import add_options, is_open, plans_of
from polyhead_load.outputs import Outputs


def options(*arguments: str, **from_the_web: Any) -> Namespace:
    parser: Any = configargparse.ArgumentParser()
    add_options(parser)
    parsed: Namespace = parser.parse_args(list(arguments))
    vars(parsed).update(from_the_web)
    return parsed


def plan(*arguments: str, **from_the_web: Any) -> LoadPlan:
    (only,) = plans_of(options(*arguments, **from_the_web), address=None)
    return only


def test_nothing_is_a_closed_loop() -> None:
    assert plan() == LoadPlan(
        address="127.0.0.1:8001", model="", tokens=128, mode="closed", seconds=math.inf, max_in_flight=1000
    )
    assert not is_open(options())


def test_everything_can_be_said() -> None:
    spoken = options(
        *["--model", "a,b", "--tokens", "median=29,sigma=0.6,low=8,high=128", "--batch", "2", "--text"],
        *["--outputs", "pooled+attention", "--layers", "0,-1", "--heads", "0:2", "--queries", "0"],
        *["--dtype", "UINT8", "--rate", "12.5"],
        *["--warm-up", "3", "--max-in-flight", "9", "--timeout", "4", "--seed", "5"],
    )

    assert is_open(spoken)
    first, second = plans_of(spoken, address="far:1")
    assert second == replace(first, model="b")
    assert first == LoadPlan(
        address="far:1",
        model="a",
        outputs=Outputs(
            fetch=("pooled", "attention"), layers=(0, -1), heads="0:2", queries="0", dtype="UINT8"
        ),
        batch=2,
        tokens=Lengths(median=29, sigma=0.6, low=8, high=128),
        text=True,
        mode="open",
        rate=12.5,
        seconds=math.inf,
        warm_up_seconds=3,
        seed=5,
        max_in_flight=9,
        timeout_seconds=4,
    )
    assert plan("--outputs", "default") == plan()


def test_models_may_differ_in_what_is_sent_and_fetched() -> None:
    """A search service: a query for the encoder, and with twenty passages for the reranker."""
    lengths = "median=96,sigma=0.4,low=16,high=256"
    spoken = options(
        *["--model", "encoder,reranker,other", "--tokens", f"16,{lengths},{lengths}"],
        *["--batch", "1,20,1", "--outputs", "pooled,default,output"],
    )

    plans = plans_of(spoken, address=None)

    mixed = Lengths(median=96, sigma=0.4, low=16, high=256)
    assert [(one.model, one.tokens, one.batch, one.outputs.fetch) for one in plans] == [
        ("encoder", 16, 1, ("pooled",)),
        ("reranker", mixed, 20, ()),
        ("other", mixed, 1, ("output",)),
    ]


def test_the_variables_of_all_commands_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYHEAD_ADDRESS", "far:1")
    monkeypatch.setenv("POLYHEAD_MODEL", "shared")

    assert (options().host, plan().model) == ("far:1", "shared")
    monkeypatch.setenv("POLYHEAD_LOAD_MODEL", "own")
    assert plan().model == "own"
    assert plan("--model", "given").model == "given"


def test_what_a_locked_server_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--server-ca", "ca", "--client-cert", "cert", "--client-key", "key", "--token-file", "token"]

    assert plan(*flags).access == Access(
        tls_ca=tmp_path / "ca",
        tls_cert=tmp_path / "cert",
        tls_key=tmp_path / "key",
        token_file=tmp_path / "token",
    )
    assert plan("--server-tls").access == Access(tls=True)
    with pytest.raises(LoadError, match="--client-cert and --client-key must be given together"):
        plan("--client-cert", "cert")


def test_what_is_not_filled_in_on_the_web_is_not_given() -> None:
    empty = dict.fromkeys(
        ["model", "outputs", "layers", "heads", "queries", "dtype", "rate", "tokens", "batch"], ""
    )

    assert plan(**empty) == plan()


def test_the_web_interface_shows_all_but_files_and_secrets() -> None:
    parser: Any = configargparse.ArgumentParser()
    add_options(parser)
    shown = {action.dest: action.include_in_web_ui for action in parser._actions if action.dest != "help"}

    hidden = [name for name, is_shown in shown.items() if not is_shown]
    assert hidden == ["records", "server_tls", "server_ca", "client_cert", "client_key", "token_file"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "many"], "--tokens must be T or median=..,sigma=..,low=..,high=.., was 'many'"),
        (["--tokens", "median=3"], "--tokens must be T or median=..,sigma=..,low=..,high=.., was 'median=3'"),
        (["--layers", "x"], "--layers must be indices such as 5, 0,3 or 0:4, was 'x'"),
        (["--outputs", "nothing"], "outputs must be of attention, cross_attention, "),
        (
            ["--outputs", "pooled,output"],
            "--outputs must have one value, or one for each of 1 models, was 'po",
        ),
        (
            ["--model", "a,b", "--batch", "1,2,3"],
            "--batch must have one value, or one for each of 2 models, was",
        ),
        (["--batch", "1.5"], "--batch must be integers such as 20 or 1,20, was '1.5'"),
        (["--batch", "1,"], "--batch must be integers such as 20 or 1,20, was '1,'"),
        (["--batch", "0"], "batch must be 1 or more, was 0"),
        (["--tokens", "16,"], "--tokens must be T or median=..,sigma=..,low=..,high=.., was '16,'"),
        (["--rate", "fast"], "--rate must be a number, was 'fast'"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(LoadError) as error:
        plan(*arguments)
    assert str(error.value).startswith(message)
