"""The files of a result, and whether its conditions hold."""

import json
from pathlib import Path

from benchmarks.report import Condition, conclude, conditions_rows, markdown_table, options, with_fingerprint

HELD = Condition(name="fast", holds=True, seen="1 ms")
MISSED = Condition(name="small", holds=False, seen="9 MiB")


def test_a_result_is_written_and_its_conditions_are_the_status(tmp_path: Path) -> None:
    out = tmp_path / "bench" / "it"

    assert conclude(out, with_fingerprint({"conditions": [HELD]}), "# It\n", [HELD]) == 0
    assert conclude(out, with_fingerprint({"conditions": [HELD, MISSED]}), "# It\n", [HELD, MISSED]) == 1

    written = json.loads(out.with_suffix(".json").read_text())
    assert written["conditions"][1] == {"name": "small", "holds": False, "seen": "9 MiB"}
    assert {"began", "cores", "Python", "polyhead"} <= written["fingerprint"].keys()
    assert out.with_suffix(".md").read_text() == "# It\n"


def test_tables_have_a_column_for_each_key() -> None:
    assert markdown_table([]) == []
    assert conditions_rows([HELD, MISSED]) == [
        "| what must hold |  | seen |",
        "|---|---|---|",
        "| fast | yes | 1 ms |",
        "| small | **no** | 9 MiB |",
        "",
    ]


def test_a_benchmark_may_share_the_models_of_another() -> None:
    alone, sharing = (options("It.", "it", models=models).parse_args([]) for models in (None, "bench"))

    assert (str(alone.models), str(alone.out)) == ("build/it-models", "build/bench/it")
    assert (str(sharing.models), str(sharing.out)) == ("build/bench-models", "build/bench/it")
