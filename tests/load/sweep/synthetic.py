"""Made-up runs: records with a known distribution, and sweeps of the suite's small families."""

from pathlib import Path
from typing import Any

import numpy as np

from polyhead_load import LoadPlan
from polyhead_load.records import GeneratorRun, Records
from polyhead_load.sweep.cells import search_rounds
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.spec import Sweep


def small_sweep(**changes: Any) -> Sweep:
    """Two families that the suite's repository has."""
    values: dict[str, Any] = {
        "title": "small",
        "families": {"tiny": {}, "tiny-tokens": {}},
        "tokens": [4],
        "loads": ["single", "50%"],
        "blocks": 3,
        "seconds": 0.5,
        "gates": {"foreign_cpu": 1000},  # which it may be
    }
    return Sweep.model_validate(values | changes)


def make_records(
    count: int = 400,
    *,
    median_ms: float = 5.0,
    sigma: float = 0.05,
    seconds: float = 4.0,
    lag_ms: float = 0.1,
    reply_bytes: int = 2_000,
    seed: int = 0,
) -> Records:
    """Lognormal service times at even times, each request split into known parts."""
    random = np.random.default_rng(seed)
    service = median_ms / 1e3 * np.exp(sigma * random.standard_normal(count))
    planned = np.linspace(0, seconds, count, endpoint=False)
    sent = planned + lag_ms / 1e3
    return Records(
        planned=planned,
        sent=sent,
        done=sent + service,
        code=np.zeros(count, np.int16),
        request_bytes=np.full(count, 1_000, np.int64),
        reply_bytes=np.full(count, reply_bytes, np.int64),
        parse_ns=np.full(count, 20_000, np.int64),
        tokenise_ns=np.zeros(count, np.int64),
        queue_ns=(0.1 * service * 1e9).astype(np.int64),
        compute_ns=(0.7 * service * 1e9).astype(np.int64),
        serialise_ns=np.full(count, 30_000, np.int64),
    )


def make_run(records: Records, *, seconds: float = 4.0, cpu_seconds: float = 0.4) -> GeneratorRun:
    """What the generator would have left."""
    return GeneratorRun(records=records, facts={"seconds": seconds, "cpu_seconds": cpu_seconds})


def a_plan(**changes: Any) -> LoadPlan:
    """An open loop."""
    values: dict[str, Any] = {
        "address": "127.0.0.1:1",
        "model": "tiny",
        "tokens": 4,
        "mode": "open",
        "rate": 100.0,
        "seconds": 4.0,
    }
    return LoadPlan(**(values | changes))


def a_measurement(**changes: Any) -> Measurement:
    """What a journal has of a run."""
    values: dict[str, Any] = {
        "family": "tiny",
        "tokens": "4",
        "batch": "1",
        "outputs": "default",
        "load": "single",
        "block": 1,
        "attempt": 1,
        "started": "2026-01-01T00:00:00Z",
    }
    return Measurement(**(values | changes))


def a_run(path: Path, sweep: Sweep, **how: Any) -> RunFolder:
    """A run's folder with all that the sweep measures; see `measured`."""
    folder = new_folder(path)
    measured(folder, sweep, **how)
    return folder


def measured(
    folder: RunFolder,
    sweep: Sweep,
    *,
    slower: dict[str, float] | None = None,
    seed: int = 0,
    count: int = 400,
) -> None:
    """Fills a folder as if the sweep had run.

    Args:
        folder: Where.
        sweep: What.
        slower: Family → how many times slower it is than 5 ms.
        seed: Of everything.
        count: Requests in each run.
    """
    folder.begin(sweep, {"fingerprint": {"command": "polyhead sweep <small>", "cores": "2"}, "skipped": {}})
    journal = folder.journal()
    random = np.random.default_rng(seed)
    for block in range(1, sweep.blocks + 1):
        slow_block = float(np.exp(0.1 * random.standard_normal()))
        for family in sweep.families:
            for load in sweep.loads:
                median = 5.0 * (slower or {}).get(family, 1.0) * slow_block
                name = f"records/{block}-{family}-{load.strip('%').replace('/', '-')}.npz"
                records = make_records(count, median_ms=median, lag_ms=0, seed=int(random.integers(2**31)))
                records.write(folder.path / name)
                latency = records.latency_ms
                p50, p95, p99 = np.quantile(latency, [0.5, 0.95, 0.99]).tolist()
                journal.append(
                    a_measurement(
                        family=family,
                        load=load,
                        block=block,
                        achieved=100.0,
                        requests=count,
                        p50_ms=p50,
                        p95_ms=p95,
                        p99_ms=p99,
                        request_bytes=1_000,
                        reply_bytes=2_000,
                        records=name,
                    )
                )


def new_folder(path: Path) -> RunFolder:
    """A run's folder."""
    return RunFolder(path / "run")


def searched(folder: RunFolder, capacities: dict[str, float], *, closed: float = 200.0) -> None:
    """Fills a folder as if the capacities of families had been searched, beyond which all are late."""
    sweep, _ = folder.read()
    assert sweep.target is not None
    journal = folder.journal()
    for family, capacity in capacities.items():
        journal.append(a_measurement(family=family, load="throughput", block=0, achieved=closed))
        load = sweep.target.load
        for number in range(1, sweep.rounds + 1):
            while True:
                runs = [one for one in journal.measurements if (one.family, one.load) == (family, load)]
                rate = search_rounds(runs, sweep.rounds, closed)[number - 1].next_rate
                if rate is None:
                    break
                about = {"family": family, "load": load, "block": number, "attempt": len(runs)}
                late = 0 if rate <= capacity else 1000
                journal.append(a_measurement(**about, rate=rate, requests=1000, late=late, reply_bytes=2_000))
