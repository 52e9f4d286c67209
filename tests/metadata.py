"""What a stand-in for a server says of its models' tensors."""

import json
import re
from collections.abc import Iterable


def described(outputs: Iterable[str]) -> str:
    """The property `tensors` of a model with these outputs: which hold attention, and of which layer."""
    layers = ((name, re.fullmatch(r"attention\.(\d+)", name)) for name in outputs)
    return json.dumps(
        {name: {"role": "attention", "layer": int(match[1])} for name, match in layers if match}
    )
