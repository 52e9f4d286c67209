"""A locked server is called as it wants to be called."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from tests.load.conftest import Generate, Generator, plan_for
from tests.servers import InThread, quick_settings, serving

from polyhead_client.options import Access
from polyhead_load import LoadPlan
from polyhead_load.errors import SweepError
from polyhead_load.sweep.server import RunningServer

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """What a caller needs."""
    paths = {name: tmp_path / name for name in ("tls_ca", "token_file")}
    authority = trustme.CA()
    authority.cert_pem.write_to_path(paths["tls_ca"])
    for whose in ("127.0.0.1", "caller"):
        leaf = authority.issue_cert(whose)
        folder = tmp_path / whose
        folder.mkdir()
        leaf.cert_chain_pems[0].write_to_path(folder / "cert")
        leaf.private_key_pem.write_to_path(folder / "key")
    paths["token_file"].write_text(f"{TOKEN}\n")
    return Access(
        tls_ca=paths["tls_ca"],
        tls_cert=tmp_path / "caller" / "cert",
        tls_key=tmp_path / "caller" / "key",
        token_file=paths["token_file"],
    )


@pytest.fixture
def locked(repository: Path, access: Access, tmp_path: Path) -> Iterator[InThread]:
    """A server that wants a certificate and a token."""
    settings = quick_settings(
        repository,
        tls_cert=tmp_path / "127.0.0.1" / "cert",
        tls_key=tmp_path / "127.0.0.1" / "key",
        tls_client_ca=access.tls_ca,
        token_file=access.token_file,
    )
    with serving(settings) as server:
        yield server


def test_the_generator_is_let_in(locked: InThread, access: Access, generate: Generate) -> None:
    plan = plan_for(locked.address, "tiny", access=access)
    assert LoadPlan.from_json(plan.to_json()) == plan

    generated = generate(plan)

    assert len(generated["code"]) > 0
    assert set(generated["code"]) == {0}


@pytest.mark.parametrize("token_file", [None, "nothing"])
def test_without_a_token_the_load_does_not_begin(
    locked: InThread, access: Access, begin: Callable[[LoadPlan], Generator], token_file: str | None
) -> None:
    given = replace(access, token_file=None if token_file is None else Path(token_file))
    process = begin(plan_for(locked.address, "tiny", access=given)).process

    _, error = process.communicate(timeout=240)
    assert process.returncode != 0
    assert ("bearer" if token_file is None else "nothing") in error.lower()
    assert "Traceback" not in error


def test_a_sweep_measures_a_locked_server(locked: InThread, access: Access) -> None:
    server = RunningServer(locked.address, access)

    assert server.alive()
    with pytest.raises(SweepError, match="--address must be a polyhead server"):
        RunningServer(locked.address, replace(access, token_file=None))
