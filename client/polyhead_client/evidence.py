"""Evidence for a rank, of an encoding."""

from typing import Any

import numpy as np

from polyhead_client.encoding import Encoding
from polyhead_proto.outputs.evidence import EvidencePair, evidence_layers, evidence_of


def evidence_in(encoding: Encoding, count: int) -> tuple[EvidencePair, ...]:
    """Return the pairs of tokens with the largest weights; see `polyhead_proto.outputs.evidence.evidence_of`.

    Args:
        encoding: That of a pair of texts, with norm-weighted attention of all layers, tokens and spans.
        count: The most pairs.
    """
    attention: Any = encoding.attention
    tokens: Any = encoding.tokens
    gathered = (attention[layer].sum(0, dtype=np.float64) for layer in evidence_layers(attention))
    return tuple(evidence_of(gathered, np.asarray(encoding.spans), tokens, count))
