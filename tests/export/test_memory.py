"""An encoder that is too large is refused before memory is taken for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyhead_export import ExportError
from polyhead_export.memory import check_memory
from polyhead_export.sources import from_checkpoint
from polyhead_model import EncoderConfig
from polyhead_proto.system.cgroups import ControlGroups


@pytest.fixture
def container(tmp_path: Path) -> ControlGroups:
    """A container that may use 100 MiB."""
    (tmp_path / "membership").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(f"{100 * 2**20}\n")
    return ControlGroups(membership=tmp_path / "membership", root=tmp_path)


def test_a_containers_limit_counts(container: ControlGroups) -> None:
    check_memory(EncoderConfig(d_model=256, heads=4, layers=2), groups=container)
    with pytest.raises(ExportError, match=r"16,785,408 parameters .* but 0\.1 GiB are free"):
        check_memory(EncoderConfig(d_model=2048, heads=4, layers=1), groups=container)


def test_graphs_of_many_small_layers_take_memory_too(container: ControlGroups) -> None:
    with pytest.raises(ExportError, match=r"exporting 800 parameters takes about 209,\d{3},\d{3} bytes"):
        check_memory(EncoderConfig(d_model=1, heads=1, layers=100), groups=container)


def test_a_checkpoint_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 24}
    others = {"vocab_size": 10**12, "max_position_embeddings": 60, "type_vocab_size": 2, "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **sizes, **others}))
    (tmp_path / "model.safetensors").write_bytes(b"not read")

    with pytest.raises(ExportError, match="bytes of memory"):
        from_checkpoint(tmp_path, "large").build()


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_an_export_takes_what_is_checked(tmp_path: Path) -> None:
    """Measured in a process of its own, from after a small export, which loads all libraries."""
    code = f"""
import re
from pathlib import Path
from polyhead_export import export_family
from polyhead_model import Encoder, EncoderConfig, parameters

def memory(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def export(width):
    config = EncoderConfig(d_model=width, heads=width // 64, layers=1)
    export_family(Encoder(config), str(width), Path({str(tmp_path)!r}))
    return 4 * parameters(config)

export(64)
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
weights = export(1536)
print((memory("VmHWM") - before) / weights)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        # glibc gives back at once what large arrays took, so that none of it is counted twice.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert 2 < float(done.stdout) < 4.75  # one layer
