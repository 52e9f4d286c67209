"""`ModelStatistics`: the counters of one model or of all, all workers together."""

from collections.abc import Iterable, Sequence

from polyhead_proto import messages as pb
from polyhead_server.counters import layout as at
from polyhead_server.counters.board import Board
from polyhead_server.registry import Model

_NOTHING = [0] * at.SLOTS


def model_statistics(models: Iterable[Model], board: Board) -> pb.ModelStatisticsResponse:
    """The counters of these models. Reads every worker's, which takes a while where models are many."""
    totals = board.totals()
    return pb.ModelStatisticsResponse(
        model_stats=[
            _one(model, totals.get((model.signature.name, model.signature.version), _NOTHING))
            for model in models
        ]
    )


def _one(model: Model, values: Sequence[int]) -> pb.ModelStatistics:
    answered = at.REQUEST.count(values)

    def duration(histogram: at.Histogram) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=histogram.count(values), ns=values[histogram.sum])

    return pb.ModelStatistics(
        name=model.signature.name,
        version=str(model.signature.version),
        last_inference=values[at.LAST_INFERENCE_MS],
        inference_count=values[at.SEQUENCES],
        execution_count=at.BATCH.count(values),
        inference_stats=pb.InferStatistics(
            success=duration(at.REQUEST),
            fail=pb.StatisticDuration(count=values[at.FAILED], ns=values[at.FAILED_NS]),
            queue=duration(at.QUEUE),
            compute_input=pb.StatisticDuration(count=answered, ns=values[at.INPUT_NS]),
            compute_infer=duration(at.COMPUTE),
            compute_output=duration(at.SERIALISE),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=pb.StatisticDuration(count=values[row], ns=values[row + 1]),
                compute_infer=pb.StatisticDuration(count=values[row], ns=values[row + 2]),
                compute_output=pb.StatisticDuration(count=values[row], ns=values[row + 3]),
            )
            for size, row in at.BATCH_ROWS.items()
            if values[row]
        ],
    )
