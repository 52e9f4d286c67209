"""The operations of classifiers and rerankers, made of encodings alone; see `polyhead_client.operations`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyhead_client.arguments import check_texts
from polyhead_client.calls import Deadline, Operation
from polyhead_client.chunks import LateChunking
from polyhead_client.directions import Steering
from polyhead_client.encoding import Encoding
from polyhead_client.errors import InvalidRequest
from polyhead_client.late import LateComparison
from polyhead_client.operations import Progress
from polyhead_client.scoring import (
    LabelScore,
    RankedText,
    Scores,
    check_activation,
    check_known,
    check_scoring,
    labels_of,
    ranked,
)
from polyhead_client.server_operations import Timeout
from polyhead_client.tagging import Entity, check_strategy, entities_of
from polyhead_client.tracing import Tracing
from polyhead_proto.names import LOGITS
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS, EvidencePair, evidence_layers, evidence_of
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy
from polyhead_proto.tensors import TensorSpec
from polyhead_proto.wants import read_flag_or_count


class Tasks(LateComparison, LateChunking, Tracing, Steering):
    """All operations of one client."""

    def classify(
        self,
        texts: Sequence[str],
        *,
        text_pair: Sequence[str] | None = None,
        top: int | None = None,
        raw_scores: bool = False,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[list[list[LabelScore]]]:
        """Classify texts, or pairs of texts.

        Args:
            texts: The texts, as many as you like.
            text_pair: The second texts of pairs, one for each of `texts`.
            top: The most labels of each text, from the best on; None means all.
            raw_scores: Whether scores are logits. By default they are what transformers makes of these: the
                softmax, the sigmoid of a single one or of several labels that do not exclude each other, and
                of a regression the numbers themselves.
            model: The family, a classifier; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of texts that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            The labels of each text with their scores, the best first.

        Raises:
            InvalidRequest: The request is not valid, or the model is no classifier.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        most = check_scoring(top, raw_scores)
        if not (texts := check_texts("texts", texts)):
            return []
        deadline = self._deadline(timeout)
        encoding = yield from self._with_logits(
            texts,
            text_pair=None if text_pair is None else check_texts("text_pair", text_pair),
            model=model,
            version=version,
            truncate=truncate,
            progress=progress,
            timeout=deadline.left(),
        )
        logits, labels = _logits_of(encoding, of_tokens=False)
        activation: str | None = "identity"
        if not raw_scores:
            activation = (yield from self._of_logits(encoding, version, deadline)).scores
            check_known(activation, f"raw_scores must be True: {encoding.model}")
        return labels_of(logits, labels, top=most, activation=activation)

    def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        top: int | None = None,
        raw_scores: bool = False,
        activation: Scores = "sigmoid",
        evidence: bool | int = False,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[list[RankedText]]:
        """Sort texts by how well they answer a query.

        `evidence` names the pairs of a token of the query and one of the text that attend to each other most,
        in both directions. A weight is a mean over layers of the share that the one has in all that the other
        gathers, where attention of all heads is norm-weighted (Kobayashi et al. 2020, arXiv 2004.10102). The
        last layer of the graph is left out, unless it is the only one: most rerankers read one token of it.
        So evidence says which tokens exchange most within the encoder, not how much the score depends on
        them.

        Args:
            query: The query.
            texts: The texts, as many as you like.
            top: The most results, from the best on; None means all.
            raw_scores: Whether scores are logits.
            activation: What turns logits into scores: the sigmoid, or with "checkpoint" the `activation_fn`
                that sentence-transformers applies. It changes no ranks: these are by logits.
            evidence: Whether to fetch evidence of each result, or how many pairs; True means 8. It needs
                `top`, since each result is encoded again, and the family's attention graph.
            model: The family, a reranker; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of texts that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            The texts with their scores, the best first; of equal ones the earlier.

        Raises:
            InvalidRequest: The request is not valid, or the model is no reranker.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        most, pairs = check_scoring(top, raw_scores), read_flag_or_count("evidence", evidence) or 0
        check_activation(activation, raw_scores=raw_scores)
        if pairs and most is None:
            raise InvalidRequest("top must be given with evidence: each result is encoded again, was None")
        if not isinstance(query, str):
            raise InvalidRequest(f"query must be a text, was {query!r:.80}")
        if not (texts := check_texts("texts", texts)):
            return []
        deadline = self._deadline(timeout)
        options: dict[str, Any] = {"model": model, "version": version, "truncate": truncate}
        encoding = yield from self._with_logits(
            [query] * len(texts), text_pair=texts, progress=progress, timeout=deadline.left(), **options
        )
        logits, labels = _logits_of(encoding, of_tokens=False)
        if len(labels) != 1:
            raise InvalidRequest(
                f"model must be a reranker, with one label, {encoding.model} has {len(labels)}"
            )
        chosen: str | None = "identity" if raw_scores else activation
        if activation == "checkpoint":
            chosen = (yield from self._of_logits(encoding, version, deadline)).activation
        own = f"activation must be 'sigmoid': {encoding.model}"
        if chosen is None:
            raise InvalidRequest(f"{own} does not say its own")
        check_known(chosen, own)
        results = ranked(logits, texts, top=most, activation=chosen)
        for at, result in enumerate(results if pairs else ()):  # one by one: attention may be large
            attended = yield from self.encode(
                query,
                text_pair=result.text,
                output=False,
                pooled=False,
                logits=False,
                spans=True,
                attention=True,
                weighted=True,
                dtype="FP16",
                timeout=deadline.left(),
                **options | {"version": encoding.version},  # another may be the newest by now
            )
            found = _evidence_in(attended, DEFAULT_PAIRS if pairs is True else pairs)
            results[at] = replace(result, evidence=found)
        return results

    def tag(
        self,
        texts: Sequence[str],
        *,
        aggregation_strategy: AggregationStrategy = "simple",
        ignore_labels: Sequence[str] = IGNORED_LABELS,
        model: str | None = None,
        version: int | str | None = None,
        truncate: bool = False,
        progress: Progress | None = None,
        timeout: Timeout = ...,
    ) -> Operation[list[list[Entity]]]:
        """Find entities in texts: names, say, or what is personal, as the model has learned it.

        Args:
            texts: The texts, as many as you like.
            aggregation_strategy: What gets one label, as in transformers' pipeline: each token ("none");
                neighbours with the same label ("simple"); or words, and then neighbours, where the label of
                a word is that of its first token ("first"), of the mean of its tokens ("average"), or of the
                surest one ("max"). Special tokens get none. Of a tokenizer that marks the pieces of words,
                words are its own, otherwise what spaces separate.
            ignore_labels: The labels to leave out.
            model: The family, a classifier of tokens; None means the only one that takes texts.
            version: The version; None means the newest.
            truncate: Whether to truncate texts that are too long, instead of raising an error.
            progress: Called after each request with the number of texts that are done, and of all.
            timeout: Seconds for the whole operation; None means no limit, ... the client's default.

        Returns:
            What each text has, in its order.

        Raises:
            InvalidRequest: The request is not valid, or the model is no classifier of tokens.
            PolyheadError: The call failed; `polyhead_client.errors` lists the kinds.
        """
        check_strategy(aggregation_strategy)
        ignored = check_texts("ignore_labels", ignore_labels)
        if not (texts := check_texts("texts", texts)):
            return []
        encoding = yield from self._with_logits(
            texts,
            spans=True,
            model=model,
            version=version,
            truncate=truncate,
            progress=progress,
            timeout=timeout,
        )
        logits, labels = _logits_of(encoding, of_tokens=True)
        return entities_of(
            texts,
            logits,
            encoding.spans or [],
            labels,
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignored,
        )

    def _of_logits(
        self, encoding: Encoding, version: int | str | None, deadline: Deadline
    ) -> Operation[TensorSpec]:
        """Return what the model of an encoding says of its logits, which is known unless it was reloaded."""
        info = yield from self._models.model(encoding.model, version, deadline)
        return next(each for each in info.outputs.values() if each.role == LOGITS)

    def _with_logits(self, texts: list[str], **options: Any) -> Operation[Encoding]:
        """Encode texts for their logits; `options` are further arguments of `encode`."""
        return (
            yield from self.encode(texts, output=False, pooled=False, logits=True, tokens=False, **options)
        )


def _logits_of(encoding: Encoding, *, of_tokens: bool) -> tuple[Any, tuple[str, ...]]:
    """Return the logits of a list of texts, [B, C], or of their tokens, B × [T, C], and the labels.

    Raises:
        InvalidRequest: They are the others.
    """
    logits: Any = encoding.logits  # there are some, since they were asked for
    if isinstance(logits, list) is not of_tokens:
        wanted, does, call = ("tokens", "texts", "classify") if of_tokens else ("texts", "tokens", "tag")
        raise InvalidRequest(
            f"model must be a classifier of {wanted}, {encoding.model} classifies {does}, for {call}"
        )
    return logits, encoding.labels or tuple(map(str, range(logits[0].shape[-1])))


def _evidence_in(encoding: Encoding, count: int) -> tuple[EvidencePair, ...]:
    """Return the pairs of tokens with the largest weights; see `polyhead_proto.outputs.evidence.evidence_of`.

    Args:
        encoding: That of a pair of texts, with norm-weighted attention of all layers, tokens and spans.
        count: The most pairs.
    """
    attention: Any = encoding.attention
    tokens: Any = encoding.tokens
    gathered = (attention[layer].sum(0, dtype=np.float64) for layer in evidence_layers(attention))
    return tuple(evidence_of(gathered, np.asarray(encoding.spans), tokens, count))
