"""Every kind of output of a server on the device, beside a CPU server's of the same encoder in fp32."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contenders import polyhead
from benchmarks.gpu.plan import LONG, TEXTS, Check
from polyhead_client import Client, Edit
from polyhead_model import EncoderConfig
from polyhead_proto.drift import SENTENCES, change

_TEXTS = [*SENTENCES[:3], SENTENCES[-1]]
_IDS = [list(range(3, 20)), [7, 8]]
_OF_HEADS = {"contacts": "contacts", "sparse": "sparse", "maxsim": "token_vectors"}
"""What small families have beyond an output, by their names."""


def run(check: Check) -> None:
    """Ask both servers, which run side by side."""
    for repository in {each.repository: None for each in check.families if each.precision != "bf16"}:
        own = [each for each in check.families if each.repository == repository and each.encoder.name != LONG]
        with check.attempt(f"servers of {repository}"), ExitStack() as stack:
            clients, exact = [], check.family(own[0].encoder.name, "fp32").repository
            for device, models in (("cpu", exact), (check.device.name, repository)):
                server = polyhead(models, ["--device", device])
                clients.append(stack.enter_context(Client(stack.enter_context(server).address, timeout=60)))
            for family in own:
                name = family.encoder.name
                cases = [{}, {_OF_HEADS[name]: True}] if name in _OF_HEADS else [{}]
                for asked in cases if name != TEXTS else _cases(family.encoder.config):
                    case = ", ".join(asked) or "output"
                    with check.attempt(f"{case} of {family}"):
                        inputs = _TEXTS if name == TEXTS else _IDS
                        replies = [client.encode(inputs, model=name, **asked) for client in clients]
                        expected, got = (dict(_floats(reply)) for reply in replies)
                        off = max(change(got[each], expected[each]) for each in expected)
                        check.row(family=str(family), output=case, arrays=len(got), largest_difference=off)
                        check.judge(f"outputs {family.precision}", off)


def _cases(config: EncoderConfig) -> list[dict[str, Any]]:
    """Return arguments of `encode` that ask for every kind of output of texts."""
    shape, last = (config.layers, config.heads), config.layers - 1
    mask = (np.indices(shape).sum(0) % 3 > 0).astype(np.float32)
    edit = Edit(0, 1, np.linspace(-1, 1, config.d_model, dtype=np.float32))
    attention: list[dict[str, Any]] = [
        *({"attention": True, "dtype": dtype} for dtype in (None, "FP16", "UINT8")),
        *({"attention": [last], each: True} for each in ("weighted", "value_norms")),
        *({"attention": [last], each: [0]} for each in ("heads", "queries")),
    ]
    reduced = [{each: True} for each in ("scores", "rollout", "thumbnails")]
    asked = {"top": 3, "dimensions": 8, "head_mix": mask, "head_mask": mask, "edits": [edit]}
    places = {"read": [(last, 1), (0, 0, 1)]}
    return [{}, *attention, *reduced, *({name: each} for name, each in asked.items()), places]


def _floats(value: object, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of floats in a reply. Positions are left out: they change where weights are equal.

    Of a picture it is the mean that counts, as each pixel is rounded.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "fu":
        yield name, value if value.dtype.kind == "f" else value.mean(axis=(-2, -1)) / 255
        return
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif hasattr(value, "__dataclass_fields__"):
        value = {field: getattr(value, field) for field in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _floats(each, f"{name}.{key}")
