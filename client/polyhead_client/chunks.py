"""Late chunking: vectors of parts of a text, each in the context of all of it.

The text is encoded as a whole, and then the tokens of each part are pooled (Günther et al. 2024, arXiv
2409.04701).

Shape letters: T tokens, D d_model, C chunks.
"""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.calls import Operation
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.models import ModelInfo
from polyhead_proto.names import OUTPUT, POOLED, Property


def chunks(
    encode: Callable[..., Operation[Encoding]],
    info: ModelInfo,
    text: str,
    spans: Sequence[tuple[int, int]],
    *,
    options: dict[str, Any],
) -> Operation[NDArray[np.float32]]:
    """Compute the vectors of spans; see `Client.chunks`.

    Args:
        encode: `Client.encode` as an operation.
        info: The family.
        text: See there.
        spans: See there.
        options: Further arguments of `encode`.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"text must be one text, was {text!r:.80}")
    checked = _check_spans(text, spans)
    if (pooling := info.properties.get(Property.POOLING, "")) not in ("", "mean"):
        raise InvalidRequest(
            f"model must pool by the mean, or not at all, {info.name} pools by {pooling}: means of its "
            "tokens cannot be compared with its vectors"
        )
    widths = {tensor.shape[-1] for role in (OUTPUT, POOLED) for tensor in info.with_role(role)}
    if len(widths) > 1:
        raise InvalidRequest(
            f"model must not cut its vectors, {info.name} does: means of its tokens cannot be compared with "
            "them"
        )
    encoding = yield from encode(text, pooled=False, logits=False, tokens=False, spans=True, **options)
    output, places = np.asarray(encoding.output), np.asarray(encoding.spans)
    vectors = np.zeros((len(checked), output.shape[-1]), np.float32)
    for at, (start, end) in enumerate(checked):
        # White space at the ends counts for nothing: some tokenizers make it a part of the next token.
        chunk = text[start:end]
        first, last = end - len(chunk.lstrip()), start + len(chunk.rstrip())
        inside = (places[:, 0] < last) & (places[:, 1] > first)  # never tokens of no text, whose end is -1
        if not inside.any() or not chunk.strip():
            raise InvalidRequest(f"spans[{at}] must have a token, {chunk!r:.80} has none, or was cut off")
        vectors[at] = output[inside].mean(0, dtype=np.float64)
    if any(tensor.unit for tensor in info.with_role(POOLED)):
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors /= np.maximum(norms, np.finfo(np.float32).tiny)
    return vectors


def _check_spans(text: str, spans: Any) -> list[tuple[int, int]]:
    """Return spans as integers.

    Raises:
        InvalidRequest: They are not spans of the text.
    """
    checked: list[tuple[int, int]] = []
    try:
        for start, end in spans:
            checked.append((index(start), index(end)))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"spans must be pairs of integers (start, end), spans[{len(checked)}] was not"
        ) from error
    for at, (start, end) in enumerate(checked):
        if not 0 <= start < end <= len(text):
            raise InvalidRequest(
                f"spans[{at}] must be characters of the text, 0 <= start < end <= {len(text)}, "
                f"was ({start}, {end})"
            )
    return checked
