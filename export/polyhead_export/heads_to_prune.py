"""Which heads to prune, as the command line spells it. Needs neither torch nor onnx to import."""

from polyhead_export.errors import ExportError


def check_fraction(fraction: float) -> None:
    """Check the fraction of heads to remove.

    Raises:
        ExportError: It is not above 0 and below 1.
    """
    if not 0 < fraction < 1:
        raise ExportError(f"--fraction must be above 0 and below 1, such as 0.25, was {fraction}")


def parse_heads(spelled: str) -> tuple[tuple[int, int], ...]:
    """Parse `0:3,2:1`: layer and head of each.

    Raises:
        ExportError: It is anything else.
    """
    heads = []
    for part in spelled.split(","):
        layer, colon, head = (piece.strip() for piece in part.partition(":"))
        if not (colon and layer.isdecimal() and head.isdecimal() and max(len(layer), len(head)) < 9):
            raise ExportError(
                f"--heads must be layers and heads such as 0:3,0:7 (layer 0, head 3, ...), was {spelled!r}"
            )
        heads.append((int(layer), int(head)))
    return tuple(heads)
