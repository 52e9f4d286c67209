"""`ModelStatistics`: the counters of one model or of all."""

from collections.abc import Iterable

from polyhead_proto import messages as pb
from polyhead_server.registry import Model
from polyhead_server.statistics import Duration


def model_statistics(models: Iterable[Model]) -> pb.ModelStatisticsResponse:
    """The counters of these models."""
    return pb.ModelStatisticsResponse(model_stats=[_one(model) for model in models])


def _one(model: Model) -> pb.ModelStatistics:
    counters = model.statistics
    return pb.ModelStatistics(
        name=model.signature.name,
        version=str(model.signature.version),
        last_inference=counters.last_inference_ms,
        inference_count=counters.sequences,
        execution_count=counters.executions,
        inference_stats=pb.InferStatistics(
            success=_duration(counters.success),
            fail=_duration(counters.fail),
            queue=_duration(counters.queue),
            compute_input=_duration(counters.compute_input),
            compute_infer=_duration(counters.compute_infer),
            compute_output=_duration(counters.compute_output),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for size, batch in sorted(counters.batches.items())
        ],
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
