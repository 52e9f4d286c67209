"""Where and with what a sweep was measured."""

from polyhead_load.sweep.fingerprint import fingerprint


def test_what_can_be_found_out_is_said() -> None:
    facts = fingerprint(["polyhead", "sweep", "smoke"])

    assert facts["command"] == "polyhead sweep smoke"
    assert {"began", "processor", "cores", "memory", "system", "Python", "grpcio", "polyhead"} <= facts.keys()
    assert all(facts.values())
