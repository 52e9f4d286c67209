"""The operations that look into encoders: at tokens, parts of texts, and what carries a difference.

They are made of encodings alone; see `polyhead_client.operations`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client import chunks, directions, tracing
from polyhead_client.arguments import check_name
from polyhead_client.calls import Operation
from polyhead_client.directions import Direction
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.late import MatchedText, matched
from polyhead_client.models import ModelInfo
from polyhead_client.operations import Operations, Progress
from polyhead_client.scoring import check_texts
from polyhead_client.server_operations import Timeout
from polyhead_client.tracing import By, Metric, Trace
from polyhead_proto.names import TEXT
from polyhead_proto.wants import check_count, check_flag


class Probes(Operations):
    """The operations of one client, but those of classifiers."""

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
        options = {"prompt_name": prompt_name, "model": name, "version": version, "truncate": truncate}
        return (
            yield from chunks.chunks(
                self.encode, info, text, spans, options=options | {"timeout": deadline.left()}
            )
        )

    def trace(
        self,
        clean: Any,
        corrupted: Any,
        *,
        metric: Metric = None,
        by: By = "token",
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[Trace]:
        """Find the places that carry what makes two inputs differ, by causal tracing.

        For every layer and token, or layer and head, the value of the clean run is put into the corrupted
        one. These runs share requests, as few as the server's limits allow.

        Args:
            clean: A text, a pair of texts as a tuple, or another single sequence that `encode` takes.
            corrupted: Another, with as many tokens.
            metric: What is to be recovered: the name of a label, for its logit; a vector [P], for the cosine
                of the pooled vector with it; or a function of the `Encoding` of one sequence, which has the
                output. None means a reranker's score, or else the cosine with the clean input's vector.
            by: `token`, for [L + 1, T] shares of the stream; or `head`, for [L, H] of what heads give, each
                at all tokens.
            model: The family, exported with `--graphs stream`; None means the only one that takes the inputs.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of places that are done, and of all.
            timeout: Seconds for each batch of runs; None means no limit, ... the client's default.

        Raises:
            InvalidRequest: The request is not valid, or the metric does not tell the inputs apart.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        options = {"model": model, "version": version, "truncate": truncate, "timeout": timeout}

        def model_of(name: str) -> Operation[ModelInfo]:
            return self.model(name, version=version, timeout=timeout)

        return (
            yield from tracing.trace(
                self.encode,
                model_of,
                clean,
                corrupted,
                metric=metric,
                by=by,
                progress=progress,
                options=options,
            )
        )

    def direction(
        self,
        positive: Sequence[str],
        negative: Sequence[str],
        *,
        layer: int,
        token: int | None = None,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[Direction]:
        """Compute a steering vector: the mean of the stream for some texts less that for others.

        Args:
            positive: Texts that have something.
            negative: Texts that lack it.
            layer: Before which the stream is read, 0 to L - 1; L: after the last.
            token: The position to read, such as 0 for the first; None means the mean of all of a text.
            model: The family, exported with `--graphs stream`; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each group of texts with the number of those that are done, and of all.
            timeout: Seconds for each group; None means no limit, ... the client's default.

        Returns:
            The direction, whose `add()` and `project_out()` are edits for `encode`.

        Raises:
            InvalidRequest: The request is not valid.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        options = {"model": model, "version": version, "truncate": truncate, "timeout": timeout}
        return (
            yield from directions.direction(
                self.encode,
                positive,
                negative,
                layer=layer,
                token=token,
                progress=progress,
                options=options,
            )
        )
