"""`import polyhead`: one place for all that is public."""

import subprocess
import sys

import pytest

import polyhead
import polyhead_client
import polyhead_export
import polyhead_model
import polyhead_server
import polyhead_view


def test_it_has_every_public_name_once() -> None:
    packages = (polyhead_client, polyhead_export, polyhead_model, polyhead_server, polyhead_view)
    names = [name for package in packages for name in package.__all__]

    assert dir(polyhead) == sorted(set(names)) == sorted(names)
    assert polyhead.Client is polyhead_client.Client
    assert polyhead.export_family is polyhead_export.export_family
    assert polyhead.draw_heads is polyhead_view.draw_heads
    assert polyhead.__version__ == polyhead_client.__version__


def test_a_name_that_there_is_not_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'polyhead' has no attribute 'Klient'"):
        _ = polyhead.Klient  # type: ignore[attr-defined]


def test_importing_it_loads_nothing_heavy() -> None:
    script = (
        "import polyhead, sys; dir(polyhead); print(*({'grpc', 'numpy', 'onnx', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
