"""The locustfile, under every runner that locust has."""

import csv
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.load.conftest import Fake, FakeServer, Generated
from tests.pages import PAGES, block, blocks

from polyhead_client import Client
from polyhead_client.command import main
from polyhead_load.command import LOCUSTFILE
from polyhead_load.schedule import Arrival, schedule
from polyhead_load.sweep.server import free_port

Locust = Callable[..., "subprocess.Popen[str]"]

UNANSWERED = -2
QUICK = ["--tokens", "4", "--seed", "7", "--loglevel", "INFO"]


@pytest.fixture
def locust(tmp_path: Path) -> Iterator[Locust]:
    """Starts locust, in an empty folder, with the locustfile."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, file: Path | None = None) -> "subprocess.Popen[str]":
        ours = ["-f", str(LOCUSTFILE), *QUICK] if file is None else ["-f", str(file)]
        command = [sys.executable, "-m", "locust", *ours, *arguments]
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    """Waits for locust; what it has written."""
    out, error = process.communicate(timeout=240)
    assert process.returncode == code, error
    assert "Traceback" not in error
    return out, error


def stop(process: "subprocess.Popen[str]", *, when_reached: FakeServer) -> tuple[str, str]:
    """Ends locust when the server has received what it waits for."""
    when_reached.wait_until_reached()
    process.send_signal(signal.SIGTERM)
    return end(process)


def table(out: str) -> dict[str, Any]:
    """The one line of locust's table, as JSON has it."""
    (row,) = json.loads(out[out.index("[") :])
    return dict(row)


def recorded(folder: Path) -> list[Generated]:
    """The records of each process."""
    return [Generated.read(one) for one in sorted(folder.iterdir(), key=lambda one: one.name[-1])]


class Page:
    """locust's web interface, as a browser calls it."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def text(self, path: str, **form: Any) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with urllib.request.urlopen(f"{self._base}{path}", data, timeout=60) as reply:
            return str(reply.read().decode())

    def ask(self, path: str, **form: Any) -> Any:
        return json.loads(self.text(path, **form))

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        give_up = time.monotonic() + 240
        while time.monotonic() < give_up:
            try:
                if holds(answer := self.ask(path)):
                    return answer
            except OSError:  # it does not listen yet
                pass
            time.sleep(0.1)
        raise AssertionError(f"{path} has not come so far")

    def run(self, *, until: Callable[[Any], bool], **form: Any) -> Any:
        """Starts a run, stops it when it has come so far, and returns what was shown."""
        # What is shown of the run before it must be gone: workers report a while longer.
        self.until(
            "/stats/requests",
            lambda stats: bool(self.text("/stats/reset", now="yes")) and not answered(1)(stats),
        )
        answer = self.ask("/swarm", spawn_rate=10, **form)
        assert answer["success"], answer
        shown = self.until("/stats/requests", until)
        assert self.ask("/stop", now="yes")["success"]
        self.until("/stats/requests", lambda stats: stats["state"] == "stopped")
        return shown


@pytest.fixture
def page(locust: Locust) -> Callable[..., Page]:
    """Starts locust's web interface: `page("--records", "out")`."""

    def started(*arguments: str) -> Page:
        port = free_port()
        locust("--web-port", str(port), *arguments)
        found = Page(port)
        found.until("/stats/requests", lambda stats: stats["state"] == "ready")
        return found

    return started


def answered(count: int) -> Callable[[Any], bool]:
    """So many requests are shown."""
    return lambda stats: stats["stats"][-1]["num_requests"] >= count


def test_a_closed_loop_without_a_rate(fake: Fake, locust: Locust, tmp_path: Path) -> None:
    server = fake(tell_at=50)
    process = locust(
        *["--host", server.address, "--headless", "--users", "3", "--spawn-rate", "10"],
        *["--outputs", "attention", "--layers", "0,1", "--dtype", "FP16", "--json", "--records", "out"],
    )
    out, _ = stop(process, when_reached=server)

    row = table(out)
    assert row["name"] == "identity T=4 outputs=attention layers=0,1 dtype=FP16"
    assert row["num_requests"] > 10
    assert row["num_failures"] == 0
    (seen,) = recorded(tmp_path / "out")
    assert len(seen["planned"]) >= row["num_requests"]
    np.testing.assert_array_equal(seen["planned"], seen["sent"])


def test_processes_share_an_open_loop(fake: Fake, locust: Locust, tmp_path: Path) -> None:
    server = fake(tell_at=100)
    process = locust(
        *["--host", server.address, "--headless", "--processes", "2", "--rate", "80", "--records", "out"]
    )
    stop(process, when_reached=server)

    shares = recorded(tmp_path / "out")
    assert len(shares) == 2
    for index, seen in enumerate(shares):
        due = schedule(80, seconds=math.inf, seed=7, index=index, count=2)
        assert len(seen["planned"])
        expected = [arrival.planned for arrival in islice(due, len(seen["planned"]))]
        np.testing.assert_array_equal(seen["planned"], expected)
        assert np.isin(seen["code"], [0, UNANSWERED]).all()


def test_what_is_unanswered_at_the_end_is_recorded(fake: Fake, locust: Locust, tmp_path: Path) -> None:
    server = fake(tell_at=20)
    process = locust(
        *["--host", server.address, "--headless", "--rate", "50", "--model", "never", "--records", "out"]
    )
    _, error = stop(process, when_reached=server)

    (seen,) = recorded(tmp_path / "out")
    count = len(seen["planned"])
    assert count >= 20
    assert (seen["code"] == UNANSWERED).all()
    assert np.isnan(seen["done"]).all()
    assert not np.isnan(seen["sent"]).any()
    assert (seen.summary["unanswered"], seen.summary["errors"]) == (count, 0)
    assert f"{count} requests were still under way when the run ended" in error


def test_a_worker_says_why_it_cannot_send(fake: Fake, locust: Locust) -> None:
    _, error = end(
        locust(
            *["--host", fake().address, "--headless", "--processes", "2"],
            *["--rate", "80", "--model", "absent"],
        ),
        code=2,
    )

    assert "there is no model absent" in error


def test_the_form_decides_which_loop_a_run_is(fake: Fake, page: Callable[..., Page], tmp_path: Path) -> None:
    """Whatever locust was started with: each run is what the form says when it begins."""
    form = {"user_count": 3, "host": fake().address, "model": "identity,known-1"}
    ours = page("--records", "out", "--rate", "500")
    folders: set[Path] = set()
    for rate in ("40", ""):
        shown = ours.run(until=answered(30), rate=rate, **form)
        assert len(shown["stats"]) == 3  # the models in turn, and all
        (folder,) = set((tmp_path / "out").iterdir()) - folders
        folders.add(folder)
        planned = Generated.read(folder)["planned"]
        assert len(planned) >= 30
        if rate:
            expected = [arrival.planned for arrival in islice(endless(float(rate)), len(planned))]
            np.testing.assert_array_equal(planned, expected)
        else:
            np.testing.assert_array_equal(planned, Generated.read(folder)["sent"])


def test_the_form_of_a_master_decides_for_its_workers(
    fake: Fake, page: Callable[..., Page], locust: Locust, tmp_path: Path
) -> None:
    port = str(free_port())
    ours = page("--master", "--master-bind-port", port, "--records", "out")
    for _ in range(2):
        locust("--worker", "--master-port", port)
    ours.until("/stats/requests", lambda stats: stats["worker_count"] == 2)
    form = {"user_count": 4, "host": fake().address, "model": "known-1"}

    def written(count: int) -> None:
        """Waits until so many have been written: workers may do so after the master has stopped."""
        while len(list((tmp_path / "out").glob("*/generator.json"))) < count:
            time.sleep(0.1)

    ours.run(until=answered(40), rate="50", **form)
    written(2)
    shares = recorded(tmp_path / "out")
    ours.run(until=answered(40), rate="", **form)
    written(4)

    assert len(shares) == 2
    together = np.sort(np.concatenate([seen["planned"] for seen in shares]))
    expected = {arrival.planned for arrival in islice(endless(50.0), 2 * len(together))}
    assert set(together.tolist()) <= expected
    every = [Generated.read(folder) for folder in (tmp_path / "out").iterdir()]
    closed = [seen for seen in every if (seen["planned"] == seen["sent"]).all()]
    assert len(closed) == 2


def endless(rate: float) -> Iterator[Arrival]:
    """What a run without an end sends."""
    return schedule(rate, seconds=math.inf, seed=7)


def test_the_web_interface_listens_on_loopback_by_default(page: Callable[..., Page], locust: Locust) -> None:
    def listening(*arguments: str) -> set[str]:
        port = free_port()
        process = locust("--web-port", str(port), *arguments)
        Page(port).until("/stats/requests", lambda stats: stats["state"] == "ready")
        return {
            one.laddr.ip
            for one in psutil.Process(process.pid).net_connections("inet")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        }

    assert listening() == {"127.0.0.1"}
    assert listening("--web-host", "0.0.0.0") == {"0.0.0.0"}


def test_only_answers_have_a_latency(fake: Fake, locust: Locust, tmp_path: Path) -> None:
    """Every other request is refused at once; the others take 20 ms."""
    server = fake(tell_at=100)
    process = locust(
        *["--host", server.address, "--headless", "--users", "2", "--model", "busy"],
        *["--json", "--csv", "table", "--records", "out"],
    )
    server.wait_until_reached()
    process.send_signal(signal.SIGTERM)
    out, _ = end(process, code=1)

    (seen,) = recorded(tmp_path / "out")
    rows = {row["method"]: row for row in json.loads(out[out.index("[") :])}
    assert set(rows) == {"ModelInfer", "refused"}
    assert rows["ModelInfer"]["num_failures"] == 0
    assert rows["ModelInfer"]["num_requests"] == (seen["code"] == 0).sum() > 20
    assert min(map(int, rows["ModelInfer"]["response_times"])) >= 20
    assert (
        rows["refused"]["num_failures"] == rows["refused"]["num_requests"] == (seen["code"] == 14).sum() > 20
    )
    assert rows["refused"]["response_times"] == {}
    with (tmp_path / "table_stats.csv").open() as file:
        shown = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    assert float(shown["ModelInfer", "busy T=4 outputs=output"]["Min Response Time"]) >= 20
    for column in ("50%", "99%", "Median Response Time", "Average Response Time", "Min Response Time"):
        assert float(shown["", "Aggregated"][column]) == float(
            shown["ModelInfer", "busy T=4 outputs=output"][column]
        )


def test_a_run_ends_with_p99_and_rate_of_each_model(fake: Fake, locust: Locust) -> None:
    server = fake(tell_at=60)
    process = locust(
        *["--host", server.address, "--headless", "--rate", "80", "--stop-timeout", "60"],
        *["--model", "identity,busy", "--tokens", "4,9", "--batch", "1,2"],
    )
    server.wait_until_reached()
    process.send_signal(signal.SIGTERM)
    out, error = end(process, code=1)

    busy, busy_numbers, identity, identity_numbers = out.splitlines()
    assert (busy, identity) == ("busy B=2 T=9 outputs=output", "identity T=4 outputs=output")
    numbers = r"  p99 \d+ ms at [\d.]+/s \(p50 \d+ ms, \d+ requests\)"
    assert re.fullmatch(rf"{numbers}, \d+ refused", busy_numbers)
    assert re.fullmatch(numbers, identity_numbers)
    assert "Aggregated" not in error  # of locust's tables


def test_answers_under_way_are_waited_for_where_there_is_time(
    fake: Fake, locust: Locust, tmp_path: Path
) -> None:
    server = fake(tell_at=20)
    process = locust(
        *["--host", server.address, "--headless", "--stop-timeout", "60"],
        *["--rate", "50", "--model", "sleep-400", "--records", "out"],
    )
    stop(process, when_reached=server)

    (seen,) = recorded(tmp_path / "out")
    expected = [arrival.planned for arrival in islice(endless(50.0), len(seen["planned"]))]
    np.testing.assert_array_equal(seen["planned"], expected)
    assert not np.isnan(seen["done"]).any()


def test_a_client_works_in_a_user_as_documented(minilm_address: str, locust: Locust, tmp_path: Path) -> None:
    """With the server that the README starts, as a reader has it."""
    code = block("docs/load.md", "class Mine(User)")
    (tmp_path / "mine.py").write_text(code.replace("127.0.0.1:8001", minilm_address))
    with Client(minilm_address) as client:

        def answered() -> int:
            (one,) = client.statistics("minilm")
            return one.durations["success"].count

        before = answered()
        process = locust(
            *["--headless", "--users", "12", "--spawn-rate", "100", "--json"], file=tmp_path / "mine.py"
        )
        while answered() < before + 50:
            assert process.poll() is None
            time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = end(process)

    row = table(out)
    assert (row["name"], row["num_failures"]) == ("two sentences", 0)
    assert row["num_requests"] > 10


LINES = [
    line.partition("  #")[0]
    for page in PAGES
    for each in blocks(page)
    for line in each.code.splitlines()
    if line.startswith("polyhead load ") and page != "README.md"  # tests/test_readme.py runs that
]


@pytest.mark.parametrize("line", LINES)
def test_pages_show_options_that_there_are(line: str, locust: Locust) -> None:
    out, _ = end(locust(*shlex.split(line)[2:], "--list"))

    assert "OpenLoop" in out


def test_the_command_says_where_the_locustfile_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--file"]) == 0

    path = Path(capsys.readouterr().out.strip())
    assert path.name == "locustfile.py"
    assert path.is_file()


def test_the_command_is_locust_with_our_options() -> None:
    def said(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    polyhead = Path(sys.executable).with_name("polyhead")
    ours, locusts = said(polyhead, "load", "--help").split("of locust:")

    for flag in ("--rate", "--outputs", "--batch", "--server-ca"):
        assert re.search(rf"^ +{flag}\b", ours, re.MULTILINE)
    known = said(sys.executable, "-m", "locust", "--help")
    flags = re.findall(r"^ +(--[a-z-]+)", locusts, re.MULTILINE)
    assert {"--host", "--headless", "--run-time"} <= set(flags)
    assert not [flag for flag in flags if not re.search(rf"{flag}\b", known)]
    assert "OpenLoop" in said(polyhead, "load", "--list")
