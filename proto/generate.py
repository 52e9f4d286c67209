"""Compile `inference.proto` to the files that the package loads; `--check` only compares."""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
PACKAGE = HERE / "polyhead_proto"


def generate(target: Path) -> None:
    """Write the descriptor set and the type stubs to the folder `target`.

    Raises:
        SystemExit: The compiler rejected the `.proto`, and has printed why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        status: int = protoc.main(
            [
                "protoc",
                f"--proto_path={HERE}",
                f"--proto_path={resources.files('grpc_tools') / '_proto'}",
                f"--descriptor_set_out={target / 'inference.binpb'}",
                f"--pyi_out={scratch}",
                "inference.proto",
            ]
        )
        if status:
            sys.exit(status)
        (target / "messages.pyi").write_text((Path(scratch) / "inference_pb2.pyi").read_text())


def stale() -> list[str]:
    """Return the names of the committed files that are out of date."""
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        return [
            made.name
            for made in Path(fresh).iterdir()
            if made.read_bytes() != (PACKAGE / made.name).read_bytes()
        ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the committed files are out of date")
    if not parser.parse_args().check:
        generate(PACKAGE)
    elif outdated := stale():
        sys.exit(f"out of date: {', '.join(outdated)}; run `make proto`")
