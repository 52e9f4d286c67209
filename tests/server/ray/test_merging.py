"""One reply of those of several replicas."""

from polyhead_proto import messages as pb
from polyhead_server.ray.merging import merge_indexes, merge_statistics


def statistics(version: str, count: int, last: int, sizes: dict[int, int]) -> pb.ModelStatisticsResponse:
    duration = {"count": count, "ns": 10 * count}
    one = pb.ModelStatistics(
        name="tiny",
        version=version,
        last_inference=last,
        inference_count=count,
        execution_count=1,
        inference_stats={"success": duration},
        batch_stats=[
            {"batch_size": size, "compute_infer": {"count": runs, "ns": runs}} for size, runs in sizes.items()
        ],
    )
    return pb.ModelStatisticsResponse(model_stats=[one])


def test_counters_are_summed_by_version_and_batch_size() -> None:
    merged = merge_statistics(
        [statistics("1", 2, 30, {1: 2}), statistics("1", 3, 20, {1: 1, 2: 1}), statistics("2", 5, 1, {})]
    )

    one, other = merged.model_stats
    assert (one.name, one.version, one.inference_count, one.execution_count) == ("tiny", "1", 5, 2)
    assert (one.inference_stats.success.count, one.inference_stats.success.ns) == (5, 50)
    assert one.last_inference == 30
    assert {batch.batch_size: batch.compute_infer.count for batch in one.batch_stats} == {1: 3, 2: 1}
    assert (other.version, other.inference_count) == ("2", 5)
    assert not merge_statistics([]).model_stats


def index(**states: str) -> pb.RepositoryIndexResponse:
    return pb.RepositoryIndexResponse(
        models=[{"name": name, "version": "1", "state": state} for name, state in states.items()]
    )


def test_a_model_is_as_the_replica_that_is_furthest_with_it() -> None:
    indexes = {"a": [index(a="LOADING"), index(a="READY"), index(a="UNAVAILABLE")], "b": []}

    merged = merge_indexes(indexes, ready_only=False)

    assert [(one.name, one.state) for one in merged.models] == [("a", "READY"), ("b", "UNAVAILABLE")]
    assert merged.models[1].reason == "no replica of it answers"
    assert [one.name for one in merge_indexes(indexes, ready_only=True).models] == ["a"]
