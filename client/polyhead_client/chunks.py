"""Late chunking: vectors of parts of a text, each in the context of all of it.

The text is encoded as a whole, and then the tokens of each part are pooled (Günther et al. 2024, arXiv
2409.04701).

Shape letters: T tokens, D d_model, C chunks.
"""

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.arguments import check_name
from polyhead_client.calls import Operation
from polyhead_client.errors import InvalidRequest
from polyhead_client.operations import Operations
from polyhead_client.server_operations import Timeout
from polyhead_proto.names import OUTPUT, POOLED, TEXT, Property


class LateChunking(Operations):
    """The operation of late chunking."""

    def chunks(
        self,
        text: str,
        spans: Sequence[tuple[int, int]],
        *,
        prompt_name: str | None = None,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        timeout: Timeout = ...,
    ) -> Operation[NDArray[np.float32]]:
        """Compute vectors of parts of a text, each in the context of all of it (late chunking).

        The text is encoded once. The vector of a span is the mean of the `output` of its tokens (Günther et
        al. 2024, arXiv 2409.04701), of length 1 if that of pooled vectors is. Special tokens and those of a
        prompt belong to no span; one at its edge belongs to both spans that it touches.

        Args:
            text: The text.
            spans: The start and end of each of C parts, in characters; they may overlap. White space at the
                ends of a part counts for nothing.
            prompt_name: The prompt that the server puts before the text; see `encode`.
            model: The family, which pools by the mean or not at all; None means the only one that takes
                texts.
            version: The version; None means the newest.
            truncate: Whether to truncate a text that is too long, instead of raising an error. Only what is
                left of a span counts.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            [C, D], in the order of the spans.

        Raises:
            InvalidRequest: The request is not valid, or a span has no token.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        deadline = self._deadline(timeout)
        name = check_name(model) or (yield from self._models.family(deadline, TEXT))
        info = yield from self._models.model(name, version, deadline)
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
                f"model must not cut its vectors, {info.name} does: means of its tokens cannot be compared "
                "with them"
            )
        encoding = yield from self.encode(
            text,
            pooled=False,
            logits=False,
            tokens=False,
            spans=True,
            prompt_name=prompt_name,
            model=name,
            version=version,
            truncate=truncate,
            timeout=deadline.left(),
        )
        output, places = np.asarray(encoding.output), np.asarray(encoding.spans)
        vectors = np.zeros((len(checked), output.shape[-1]), np.float32)
        for at, (start, end) in enumerate(checked):
            # White space at the ends counts for nothing: some tokenizers make it a part of the next token.
            chunk = text[start:end]
            first, last = end - len(chunk.lstrip()), start + len(chunk.rstrip())
            # Tokens of no text, whose end is -1, are never inside.
            inside = (places[:, 0] < last) & (places[:, 1] > first)
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
