"""The end of a lease comes once, after the last user."""

from polyhead_server.serving.registry import Lease


def test_the_end_waits_for_the_last_user() -> None:
    lease, ends = Lease(), []
    with lease:
        with lease:
            lease.end(lambda: ends.append("end"))
        assert not ends
    assert ends == ["end"]
    with lease:
        pass
    assert ends == ["end"]


def test_what_nobody_uses_ends_at_once() -> None:
    ends: list[str] = []

    Lease().end(lambda: ends.append("end"))

    assert ends == ["end"]


def test_a_user_that_fails_is_a_user_that_leaves() -> None:
    lease, ends = Lease(), []

    try:
        with lease:
            lease.end(lambda: ends.append("end"))
            raise RuntimeError
    except RuntimeError:
        pass

    assert ends == ["end"]
