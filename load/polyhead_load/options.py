"""Add polyhead's options to locust's, on the command line and in the web interface.

From the web interface every value comes as text, empty where nothing was filled in.
"""

import math
import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from polyhead_client.arguments import DEFAULT_TARGET
from polyhead_client.errors import InvalidRequest
from polyhead_client.options import ADDRESS_VARIABLE, MODEL_VARIABLE, Access, parse_indices
from polyhead_load.errors import LoadError
from polyhead_load.load_plan import Lengths, LoadPlan
from polyhead_load.outputs import parse_outputs

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser

T = TypeVar("T")

# Attributes that locust expects of an option.
_SHOWN = {"include_in_web_ui": True, "is_secret": False, "is_required": False, "is_multiple": False}
_ENVIRONMENT = "POLYHEAD_LOAD_"
_LENGTHS = TypeAdapter(Lengths)

WEB_HOST = "127.0.0.1"
"""Where locust's web interface listens by default."""

ACCESS = ("server_tls", "server_ca", "client_cert", "client_key", "token_file")
"""Options for secured servers, which the web interface must not set."""


def add_options(parser: "LocustArgumentParser") -> None:
    """Add the options, each also as an environment variable POLYHEAD_LOAD_<OPTION>.

    The server and its model may come from the variables of all commands. Also make locust's web interface,
    which has no authentication, listen on loopback by default.
    """
    parser.set_defaults(web_host=WEB_HOST, host=os.environ.get(ADDRESS_VARIABLE) or None)
    for action in parser._actions:
        if action.dest == "web_host":
            action.help = f"Host to bind the web interface to; '*' is all interfaces. Default: {WEB_HOST}"
    group = parser.add_argument_group(
        "what to ask for",
        "Of several models, --tokens, --batch and --outputs may have a value for each: a,b.",
    )

    def add(flag: str, text: str, *, shown: bool = True, **more: Any) -> None:
        variable = _ENVIRONMENT + flag.removeprefix("--").replace("-", "_").upper()
        action = group.add_argument(flag, help=text, env_var=variable, **more)
        # Only the parser itself takes these; a group does not pass them on.
        for name, value in (_SHOWN | {"include_in_web_ui": shown}).items():
            setattr(action, name, value)

    # Labels of the form are cut after about a hundred characters.
    add(
        "--model",
        "The family, or several in random order: a,b. Default: the only one that is served",
        default=os.environ.get(MODEL_VARIABLE) or None,
    )
    add("--tokens", "T: 128, or log-normal lengths: median=29,sigma=0.6,low=8,high=128", default="128")
    add("--batch", "B, sequences in a request: 1, or 20 passages for a reranker", default="1")
    add(
        "--text",
        "Send sentences, which the server tokenises; to a reranker, a query with each passage",
        action="store_true",
    )
    add(
        "--outputs",
        "What to fetch, such as pooled or output+attention. Default: pooled, else logits, else output",
    )
    add("--layers", "Layers of the attention that is fetched: 5, or 0,5, or -1 for the last. Default: all")
    add("--heads", "Heads of those layers: 3, or 0,3, or 0:4. Default: all")
    add("--queries", "Rows of those weights: 0, or 0:8. Default: all")
    add("--dtype", "Datatype of the weights on the wire: FP32, FP16 or UINT8")
    group = parser.add_argument_group("how often")
    add("--rate", "Requests a second of all models, an open loop. Default: --users, who wait for answers")
    add("--warm-up", "Seconds in which requests are sent, but not counted", type=float, default=0.0)
    add(
        "--max-in-flight",
        "Most requests in flight of an open loop, in each process; further ones are not sent and fail",
        type=int,
        default=1000,
    )
    add("--timeout", "Seconds that a request may take. Default: 30", type=float, default=30.0)
    add("--seed", "Seed of schedule, lengths and contents", type=int, default=0)
    add("--records", "A folder for the exact times of every request", shown=False)
    # locust's own --tls-cert and --tls-key are those of its web interface.
    group = parser.add_argument_group("secured servers")
    add(
        "--server-tls",
        "Speak TLS to a server whose authority is well known",
        shown=False,
        action="store_true",
    )
    add("--server-ca", "Speak TLS to a server whose authority is in this file (PEM)", shown=False)
    add("--client-cert", "The certificate (PEM) to show to a server that asks for one", shown=False)
    add("--client-key", "That certificate's private key (PEM)", shown=False)
    add("--token-file", "A file with the token that the server asks for", shown=False)


def is_open(options: Namespace) -> bool:
    """Return whether a rate is given."""
    return bool(options.rate)


def plans_of(options: Namespace, *, address: str | None) -> list[LoadPlan]:
    """Return the plans that options describe, without an end: one for each model.

    Raises:
        LoadError: An option is wrong; the message names it.
    """
    rate = _read("rate", options.rate, float)
    plan = LoadPlan(
        address=address or DEFAULT_TARGET,
        access=_access(options),
        model="",
        tokens=128,
        text=options.text,
        mode="closed" if rate is None else "open",
        rate=rate,
        seconds=math.inf,
        warm_up_seconds=options.warm_up,
        seed=options.seed,
        max_in_flight=options.max_in_flight,
        timeout_seconds=options.timeout,
    )
    models = [name for name in (options.model or "").split(",") if name] or [""]
    selected = {
        "layers": _read("layers", options.layers, _layers),
        "heads": options.heads or None,
        "queries": options.queries or None,
        "dtype": options.dtype or None,
    }
    own = {
        "tokens": _read("tokens", options.tokens, parse_tokens) or (128,),
        "batch": _read("batch", options.batch, parse_batch) or (1,),
        "outputs": [parse_outputs(one, **selected) for one in (options.outputs or "").split(",")],
    }
    for name, values in own.items():
        if len(values) not in {1, len(models)}:
            raise LoadError(
                f"--{name} must have one value, or one for each of {len(models)} models, was "
                f"{getattr(options, name)!r}"
            )
    each = (dict(zip(own, values, strict=True)) for values in zip(*map(cycle, own.values()), strict=False))
    return [replace(plan, model=model, **values) for model, values in zip(models, each, strict=False)]


def _read(name: str, spelled: str | None, read: Callable[[str], T]) -> T | None:
    if not spelled:
        return None
    try:
        return read(spelled)
    except InvalidRequest as error:
        raise LoadError(str(error)) from None
    except ValueError:
        raise LoadError(f"--{name} must be a number, was {spelled!r}") from None


def _access(options: Namespace) -> Access:
    if bool(options.client_cert) is not bool(options.client_key):
        raise LoadError("--client-cert and --client-key must be given together")
    # A worker of locust may have another working folder than its master.
    files = (options.server_ca, options.client_cert, options.client_key, options.token_file)
    ca, cert, key, token = (Path(file).absolute() if file else None for file in files)
    return Access(tls=options.server_tls, tls_ca=ca, tls_cert=cert, tls_key=key, token_file=token)


def _layers(spelled: str) -> tuple[int, ...]:
    return tuple(parse_indices("--layers", spelled))


def parse_tokens(spelled: str) -> tuple[int | Lengths, ...]:
    """Parse `--tokens`: T, or how lengths are distributed, or several of these, such as 16,median=96,….

    Raises:
        LoadError: It is something else.
    """
    found: list[int | dict[str, str]] = []
    try:
        for part in spelled.split(","):
            name, is_named, value = part.partition("=")
            if not is_named:
                found.append(int(part))
            elif found and isinstance(last := found[-1], dict) and name not in last:
                last[name] = value
            else:
                found.append({name: value})
        return tuple(one if isinstance(one, int) else _LENGTHS.validate_python(one) for one in found)
    except ValueError:
        raise LoadError(f"--tokens must be T or median=..,sigma=..,low=..,high=.., was {spelled!r}") from None


def parse_batch(spelled: str) -> tuple[int, ...]:
    """Parse `--batch`: B, or several, such as 1,20.

    Raises:
        LoadError: It is something else.
    """
    try:
        return tuple(map(int, spelled.split(",")))
    except ValueError:
        raise LoadError(f"--batch must be integers such as 20 or 1,20, was {spelled!r}") from None
