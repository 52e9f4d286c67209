"""Measure how far the outputs of a model move when one of its heads is silenced.

Shape letters: H heads, L layers, T tokens, D d_model.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, InvalidRequest, ModelInfo
from polyhead_proto.names import HEAD_MASK, LOGITS, POOLED
from polyhead_view.heads.corpus import check_texts


def check_head_mask(info: ModelInfo) -> None:
    """Check that a family takes a head mask.

    Raises:
        InvalidRequest: It does not.
    """
    if HEAD_MASK not in info.inputs or info.layers is None or info.heads is None:
        raise InvalidRequest(
            f"ablation silences heads, but {info.family} takes no head mask: export it with --head-mask"
        )


def ablate_heads(
    client: Client,
    corpus: Sequence[str],
    *,
    model: str | None = None,
    truncate: bool = False,
) -> Iterator[NDArray[np.float64]]:
    """Silence one head at a time: the mean over the texts of ‖y − y without the head‖.

    Yields after each text the mean so far, so that whoever stops has what was measured. y is the logits, or
    else the pooled vector, or else the tokens' vectors / √T, so that texts of all lengths count the same. A
    call has one text many times, once for each head.

    Args:
        client: A client of the server.
        corpus: The texts.
        model: The family; None means the only one that takes texts.
        truncate: Whether to truncate texts that are too long, instead of raising an error.

    Yields:
        [L, H]; NaN for heads that were pruned.

    Raises:
        InvalidRequest: There is no text, a text is too long, or the family takes no head mask.
        PolyheadError: The call failed.
    """
    check_texts(corpus)
    info = client.model(client.encode(corpus[0], model=model, truncate=truncate).model)
    check_head_mask(info)
    layers, heads = info.layers or 0, info.heads or 0
    kept = info.kept_heads or (tuple(range(heads)),) * layers
    silenced = [(layer, head) for layer, numbers in enumerate(kept) for head in numbers]
    head_mask = np.ones((len(silenced) + 1, layers, heads), np.float32)  # the last one silences none
    for row, head in enumerate(silenced):
        head_mask[row, *head] = 0
    moved = np.zeros(len(silenced))
    for number, text in enumerate(corpus):
        try:
            encoding = client.encode(
                [text] * len(head_mask),
                model=model,
                output=not {LOGITS, POOLED} & {*info.outputs},
                tokens=False,
                head_mask=head_mask,
                truncate=truncate,
            )
        except InvalidRequest as error:
            raise InvalidRequest(str(error).replace("text[0]", f"text[{number}]")) from error
        given = (encoding.logits, encoding.pooled, encoding.output)
        *without, whole = _vectors(next(each for each in given if each is not None))
        moved += [np.linalg.norm(each - whole) for each in without]
        drift = np.full((layers, heads), np.nan)
        drift[tuple(np.transpose(silenced))] = moved / (number + 1)
        yield drift


def _vectors(outputs: Any) -> list[NDArray[np.float64]]:
    """Return one vector of each sequence, or its tokens' vectors / √T."""
    arrays = [np.asarray(each, np.float64) for each in outputs]
    return [array / np.sqrt(max(len(array), 1)) if array.ndim == 2 else array for array in arrays]
