"""Add graphs to a version that is there, and keep those that it has.

An export leaves out a graph that it could not verify. Tracing the others again would take most of the time.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from polyhead_export.errors import ExportError
from polyhead_export.manifest import FILE, Identity, describe_graph
from polyhead_export.signature import GraphKind
from polyhead_model.checkpoint_files import read_object


def read_graphs(folder: Path, identity: Identity, *, calibrated_on: int) -> Mapping[str, Any]:
    """Return the graphs of a version by name, as its manifest describes them.

    Args:
        folder: The version's.
        identity: The version that the graphs must be of; its calibration need not be measured yet.
        calibrated_on: The number of texts of that; 0 = there will be none.

    Raises:
        ExportError: They are of another encoder, or exported otherwise.
        CheckpointError: The manifest is not JSON.
    """
    if not (folder / FILE).is_file():
        raise ExportError(f"{folder} has no {FILE}, so nothing can be added to it: replace it")
    manifest = read_object(folder / FILE)
    expected = _as_json(identity.describe())
    if manifest.get("calibration") is None:
        del expected["calibration"]  # one can be added
    else:
        expected["calibration"] = {"texts": calibrated_on}
    if different := [key for key in expected if _compared(manifest, key) != _compared(expected, key)]:
        raise ExportError(
            f"{folder} must be of the same encoder, exported in the same way, for graphs to be added to it; "
            f"its {', '.join(different)} differ: name another version, or replace it"
        )
    return cast(Mapping[str, Any], manifest["graphs"])


def check_graphs(
    graphs: Mapping[str, Any], kinds: Collection[GraphKind], folder: Path, identity: Identity
) -> dict[str, Path]:
    """Check that graphs are what would be exported now; return their files by name.

    Args:
        graphs: What `read_graphs` gave.
        kinds: The graphs that the version is to have.
        folder: The version's.
        identity: The version.

    Raises:
        ExportError: A graph is another, such as one of other layers.
    """
    kept = {}
    for kind in kinds:
        if (there := graphs.get(kind.name)) is None:
            continue
        expected = _as_json(describe_graph(identity, kind))
        if different := [key for key, value in expected.items() if there.get(key) != value]:
            raise ExportError(
                f"{folder} must have the {kind.name} graph that would be exported now, for others to join; "
                f"its {', '.join(different)} differ: give the same options, or replace the version"
            )
        kept[kind.name] = folder / kind.file
    return kept


def _compared(manifest: Mapping[str, Any], key: str) -> Any:
    """Return what must be equal.

    Of what was pruned, the heads, and of a calibration, the number of texts, as measurements end in other
    digits.
    """
    value = manifest.get(key)
    measured = {"pruning": "removed", "calibration": "texts"}.get(key)
    return value.get(measured) if measured and value else value


def _as_json(value: Any) -> Any:
    """Return what a reader of the JSON gets."""
    return json.loads(json.dumps(value))
