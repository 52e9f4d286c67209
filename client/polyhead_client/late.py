"""Late interaction: documents with scores, and which of their tokens each score comes from.

Shape letters: B batch, S tokens of the query, T tokens of a document.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.arguments import check_texts
from polyhead_client.calls import Operation
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.operations import Operations, Progress
from polyhead_client.server_operations import Timeout
from polyhead_proto.names import TEXT
from polyhead_proto.wants import check_count, check_flag

_NOT_COMPARED = -1
"""The similarity of a token of a document that is not compared."""


@dataclass(frozen=True)
class TokenMatch:
    """A token of the query, and the token of a document that is most similar to it."""

    query_index: int
    query_token: str
    index: int
    """Where it is among the document's tokens."""
    token: str
    similarity: float
    """The cosine of their vectors."""


@dataclass(frozen=True)
class MatchedText:
    """A document that was compared with a query."""

    index: int
    """Where it was among the documents."""
    score: float
    """MaxSim: the sum, over the query's tokens, of the largest cosine with a token of the document."""
    text: str
    matches: tuple[TokenMatch, ...] | None = None
    """One for each token of the query, in order: their similarities add up to the score. Empty where no token
    of the document is compared. None unless asked for."""


def matched(
    documents: Sequence[str], encoding: Encoding, query_tokens: Sequence[str], *, top: int | None
) -> list[MatchedText]:
    """Return documents, the highest score first.

    Args:
        documents: B texts.
        encoding: Theirs, with the largest similarities, and for matches all of them.
        query_tokens: S tokens.
        top: The most results; None means all.
    """
    largest = np.asarray(encoding.max_similarities, np.float64)  # [B, S]
    scores = [math.fsum(row) for row in largest]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top]
    matches: dict[int, tuple[TokenMatch, ...]] = {}
    if encoding.similarities is not None and encoding.tokens is not None:
        for index in order:
            tokens: Any = encoding.tokens[index]
            matches[index] = _matches(largest[index], encoding.similarities[index], query_tokens, tokens)
    return [MatchedText(index, scores[index], documents[index], matches.get(index)) for index in order]


def _matches(
    largest: NDArray[np.float64], similarities: NDArray[Any], query: Sequence[str], document: Sequence[str]
) -> tuple[TokenMatch, ...]:
    """Return what each token of the query matches, from its largest similarity [S], and from all [S, T]."""
    if not (similarities > _NOT_COMPARED).any():
        return ()
    return tuple(
        TokenMatch(number, query[number], at, document[at], float(largest[number]))
        for number, at in enumerate(similarities.argmax(1).tolist())
    )


class LateComparison(Operations):
    """The operations of late interaction."""

    def maxsim(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        matches: bool = False,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[list[MatchedText]]:
        """Sort documents by late interaction with a query (ColBERT), on the server.

        The query's vectors are fetched once, and sent with the documents, whose vectors stay on the server.

        Args:
            query: The query.
            documents: The documents, as many as you like.
            top: The most results, from the best on; None means all.
            matches: Whether to say which token of a document each token of the query matches.
            model: The family, exported with `--graphs maxsim`; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of documents that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            The documents with their scores, the best first; of equal ones the earlier.

        Raises:
            InvalidRequest: The request is not valid, or the family has no such graph.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        most = check_count("top", top)
        check_flag("matches", matches)
        if not (documents := check_texts("documents", documents)):
            return []
        asked, found = yield from self.compare(
            query,
            documents,
            similarities=matches,
            model=model,
            version=version,
            truncate=truncate,
            progress=progress,
            timeout=timeout,
        )
        tokens: Any = asked.tokens
        return matched(documents, found, tokens, top=most)

    def compare(
        self,
        query: str,
        documents: Sequence[str],
        *,
        similarities: bool = False,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[tuple[Encoding, Encoding]]:
        """Compare the tokens of documents with those of a query, by late interaction; `maxsim` sorts by it.

        Both get their prompt, `query` or `document`, if the model has it.

        Args:
            query: The query.
            documents: One or more documents.
            similarities: Whether to fetch all similarities [S, T], and the documents' tokens.
            model: The family, exported with `--graphs maxsim`; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of documents that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            The encoding of the query, with its `token_vectors` and tokens, and that of the documents, with
            their `max_similarities`.

        Raises:
            InvalidRequest: The request is not valid, or the family has no such graph.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        if not isinstance(query, str):
            raise InvalidRequest(f"query must be a text, was {query!r:.80}")
        if not (documents := check_texts("documents", documents)):
            raise InvalidRequest("documents must be one or more texts, were none")
        deadline = self._deadline(timeout)
        info = yield from self.model(model, version=version, takes=TEXT, timeout=deadline.left())
        options: dict[str, Any] = {
            "model": info.family,
            "version": version,
            "output": False,
            "pooled": False,
            "logits": False,
            "truncate": truncate,
        }

        def prompt(name: str) -> str | None:
            return name if name in info.prompts else None

        asked = yield from self.encode(
            query, prompt_name=prompt("query"), token_vectors=True, timeout=deadline.left(), **options
        )
        found = yield from self.encode(
            documents,
            prompt_name=prompt("document"),
            query_vectors=asked.token_vectors,
            similarities=similarities,
            tokens=similarities,
            progress=progress,
            timeout=deadline.left(),
            **options | {"version": asked.version},  # another may be the newest by now
        )
        return asked, found
