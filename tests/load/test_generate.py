"""The generator, against servers whose service times are known."""

import re
import signal
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from tests.load.conftest import Fake, Generate, Generated, Generator, plan_for

from polyhead_load import LoadPlan
from polyhead_load.records import GeneratorRun
from polyhead_load.schedule import poisson, schedule
from polyhead_load.sweep.gates import generator_reasons
from polyhead_load.sweep.spec import Gates

Begin = Callable[[LoadPlan], Generator]

OK, DEADLINE_EXCEEDED, UNAVAILABLE, SHED, MALFORMED = 0, 4, 14, -1, -3


def test_an_open_loop_sends_what_the_seed_says(fake: Fake, generate: Generate) -> None:
    plan = plan_for(fake(), "identity", mode="open", rate=200.0, warm_up_seconds=0.3)

    seen = generate(plan)

    # The warm-up is forgotten, and changes nothing.
    expected = [arrival.planned for arrival in schedule(200.0, seconds=1.0, seed=7)]
    np.testing.assert_array_equal(seen["planned"], expected)
    assert (seen["code"] == OK).all()
    assert (seen["sent"] >= seen["planned"]).all()
    assert (seen["done"] > seen["sent"]).all()
    assert (seen["request_bytes"] > 4 * 4 * 8).all()
    assert (seen["reply_bytes"] > 64).all()
    assert (seen["compute_ns"] > 0).all()
    assert (seen["queue_ns"] == 0).all()
    assert (seen["serialise_ns"] == -1).all()
    assert seen.summary["planned"] == len(expected)
    assert (seen.summary["shed"], seen.summary["errors"]) == (0, 0)
    assert seen.summary["cpu_seconds"] > 0
    assert seen.summary["seconds"] > 0.5
    assert seen.summary["versions"]["locust"]


def test_a_load_is_spread_over_several_servers(fake: Fake, generate: Generate) -> None:
    servers = [fake(tell_at=80), fake(tell_at=80)]
    target = f"ipv4:{','.join(server.address for server in servers)}"

    seen = generate(plan_for(target, "identity", mode="open", rate=200.0))

    assert (seen["code"] == OK).all()
    for server in servers:
        server.wait_until_reached()


def test_a_closed_loop_sends_when_it_is_answered(fake: Fake, generate: Generate) -> None:
    seen = generate(plan_for(fake(), "sleep-20", users=3, seconds=2.0))

    np.testing.assert_array_equal(seen["planned"], seen["sent"])
    # In the order in which they were sent, no more than three are ever under way.
    assert (seen["sent"][3:] >= np.minimum.accumulate(seen["done"][::-1])[::-1][:-3]).all()
    assert len(seen["sent"]) > 3


def test_fast_calls_are_recorded_as_fast_beside_slow_ones(fake: Fake, generate: Generate) -> None:
    """gevent's pool has ten threads: were each call to hold one, all would end with the slow ones."""
    seen = generate(plan_for(fake(), "held-10-30", mode="open", rate=100.0, seconds=1.0))

    slow = np.argsort(seen["compute_ns"])[-10:]
    order = np.argsort(seen["done"])
    assert len(order) > 40
    # By what the server has answered first: thirty others, and only then, a while later, the ten.
    assert not set(order[:30]) & set(slow)
    assert seen["done"][order[:30]].max() < seen["done"][slow].min() - 0.1


def test_a_stopped_server_shows_in_an_open_loop_and_hides_in_a_closed_one(fake: Fake, begin: Begin) -> None:
    ways: list[dict[str, Any]] = [{"mode": "open", "rate": 100.0}, {"mode": "closed", "users": 1}]
    slow = []
    for way in ways:
        server = fake(tell_at=20)
        generator = begin(plan_for(server, "sleep-5", seconds=5.0, **way))
        server.wait_until_reached()
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(2)  # how long it is stopped, not a wait for anything
        server.process.send_signal(signal.SIGCONT)
        slow.append(int((generator.end().latency > 1).sum()))

    # Both have seen the stop. The open loop has more of it: requests were due all the while.
    in_open, in_closed = slow
    assert in_open > 50
    assert 1 <= in_closed < in_open / 5


def test_replies_in_parts_are_taken_to_the_last(fake: Fake, generate: Generate) -> None:
    seen = generate(plan_for(fake(), "parts", mode="open", rate=50.0))

    whole, broken = seen["code"] == OK, seen["code"] == UNAVAILABLE
    assert (whole | broken).all()
    assert (seen["reply_bytes"][whole] > 4 * 4 * 8).all()
    assert (seen["compute_ns"][whole] == 5).all()
    assert broken.sum() == seen.summary["errors"] > 5
    assert (seen["reply_bytes"][broken] < seen["reply_bytes"][whole].min()).all()


def test_a_server_that_answers_ok_with_rubbish_fails_the_run(fake: Fake, begin: Begin) -> None:
    generator = begin(plan_for(fake(), "rubbish"))

    _, error = generator.process.communicate(timeout=240)

    assert generator.process.returncode == 1
    assert error.splitlines()[-1].startswith("rubbish T=4 outputs=output was answered with something else: ")
    seen = Generated.read(generator.folder)
    assert set(seen["code"].tolist()) == {OK, MALFORMED}
    assert seen.summary["errors"] == (seen["code"] == MALFORMED).sum()


def test_a_first_reply_that_the_client_cannot_read_is_said_before_the_load(fake: Fake, begin: Begin) -> None:
    generator = begin(plan_for(fake(), "early"))

    _, error = generator.process.communicate(timeout=240)
    assert generator.process.returncode == 1
    assert error.startswith(
        "early T=4 outputs=output is answered with something else: malformed reply: output must have "
    )
    assert not (generator.folder / "records.npz").exists()


def test_a_generator_that_is_asked_too_much_shows_it_and_voids_the_run(fake: Fake, begin: Begin) -> None:
    plan = plan_for(fake(), "identity", mode="open", rate=20_000.0, seconds=0.3, max_in_flight=10**6)
    generator = begin(plan)
    generator.end()

    seen = Generated.read(generator.folder)
    lag = seen["sent"] - seen["planned"]
    assert len(lag) == sum(1 for _ in schedule(20_000.0, seconds=0.3, seed=7))
    assert np.quantile(lag, 0.99) > 0.01
    assert np.median(lag[-100:]) > np.median(lag[:100])
    why = generator_reasons(GeneratorRun.read(generator.folder), plan, Gates())

    assert any(re.search(r"of \d+ requests left more than \d.* ms late", reason) for reason in why), why


def test_what_is_over_the_limit_is_counted_and_not_sent(fake: Fake, generate: Generate) -> None:
    plan = plan_for(fake(), "never", mode="open", rate=100.0, max_in_flight=5, timeout_seconds=5.0)

    seen = generate(plan)

    shed = seen["code"] == SHED
    assert shed.any()
    assert not shed[:5].any()
    assert (seen["code"][~shed] == DEADLINE_EXCEEDED).all()
    # Where the generator stands still until deadlines have passed, there is room again.
    assert (seen["sent"][~shed][5:] >= np.sort(seen["done"][~shed])[:-5]).all()
    assert np.isnan(seen["sent"][shed]).all()
    assert np.isnan(seen["done"][shed]).all()
    assert not np.isnan(seen["planned"]).any()
    assert (seen.summary["shed"], seen.summary["errors"]) == (shed.sum(), (~shed).sum())
    np.testing.assert_array_equal(seen["planned"][:5], list(islice(poisson(100.0, 7, seconds=1.0), 5)))


def test_what_cannot_be_asked_for_is_said_before_the_load(fake: Fake, begin: Begin) -> None:
    process = begin(plan_for(fake(), "absent")).process

    _, error = process.communicate(timeout=240)
    assert (process.returncode, error) == (1, "there is no model absent\n")


def test_no_server_is_said(begin: Begin) -> None:
    process = begin(plan_for("127.0.0.1:1", "identity")).process

    _, error = process.communicate(timeout=240)
    assert process.returncode == 1
    assert error.startswith("127.0.0.1:1 is unavailable: ")
