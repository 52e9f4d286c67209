"""Checks KServe's resources, a JSON list on standard input, against the models of `kserve`: prints faults.

Runs in an environment of its own (kserve pins an older protobuf); `test_kubernetes.py` starts it. The models
are generated from the types that the custom resource definitions are generated from.
"""

import importlib
import json
import re
import sys
from typing import Any

KSERVE: Any = importlib.import_module("kserve.models")
KUBERNETES: Any = importlib.import_module("kubernetes.client.models")

GROUP = "serving.kserve.io/"
SCALARS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def problems(value: Any, kind: str, path: str) -> list[str]:
    """What of a value does not fit a type of the models."""
    if kind == "object":  # a quantity, or a number or a text
        return []
    if kind in SCALARS:
        fits = isinstance(value, SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if fits else [f"{path} must be {kind}, was {value!r}"]
    # kserve writes list[X] and dict(str, X), kubernetes List[X] and Dict[str, X].
    if match := re.fullmatch(r"(?i:(list)|dict)[\[(](?:str, )?(.+)[\])]", kind):
        if not isinstance(value, list if match[1] else dict):
            return [f"{path} must be {kind}, was {value!r}"]
        items = enumerate(value) if isinstance(value, list) else value.items()
        return [found for key, item in items for found in problems(item, match[2], f"{path}.{key}")]
    # Where kserve has a model of this name, kubernetes' has its package before it.
    kind = re.sub(r"^K8sIoApi[A-Z][a-z]+(?=V\d)", "", kind)
    model = getattr(KSERVE, kind, None) or getattr(KUBERNETES, kind)
    if not isinstance(value, dict):
        return [f"{path} must be {kind}, was {value!r}"]
    names = {key: name for name, key in model.attribute_map.items()}
    found = [f"{path}.{key} is no key of {kind}" for key in value if key not in names]
    for key in value.keys() & names.keys():
        found += problems(value[key], model.openapi_types[names[key]], f"{path}.{key}")
    try:
        model(**{names[key]: item for key, item in value.items() if key in names})
    except ValueError as error:
        found.append(f"{path}: {error}")
    return found


for resource in json.load(sys.stdin):
    version = resource["apiVersion"].removeprefix(GROUP).capitalize()
    for problem in problems(resource, version + resource["kind"], resource["kind"]):
        sys.stdout.write(problem + "\n")
