"""Make one reply of those of several replicas."""

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import Message

from polyhead_proto import messages as pb
from polyhead_server.serving.registry import ModelState


def merge_statistics(replies: Iterable[pb.ModelStatisticsResponse]) -> pb.ModelStatisticsResponse:
    """Sum up the counters of each version of a model."""
    totals: dict[tuple[str, str], pb.ModelStatistics] = {}
    for reply in replies:
        for one in reply.model_stats:
            total = totals.setdefault((one.name, one.version), pb.ModelStatistics())
            batches = {batch.batch_size: batch for batch in total.batch_stats}
            for batch in one.batch_stats:
                if batch.batch_size not in batches:
                    total.batch_stats.add(batch_size=batch.batch_size)
                    batches[batch.batch_size] = total.batch_stats[-1]
                _add(batches[batch.batch_size], batch, same=("batch_size",))
            latest = max(total.last_inference, one.last_inference)
            _add(total, one, same=("name", "version"))
            total.last_inference = latest
    return pb.ModelStatisticsResponse(model_stats=totals.values())


def merge_indexes(
    indexes: Mapping[str, Sequence[pb.RepositoryIndexResponse]], *, ready_only: bool
) -> pb.RepositoryIndexResponse:
    """List each version of a model as the replica that is furthest with it does.

    Args:
        indexes: The replies of each family's replicas. A family without one is not ready.
        ready_only: Leave out what is not ready.
    """
    merged = pb.RepositoryIndexResponse()
    for family, replies in indexes.items():
        found: dict[tuple[str, str], pb.RepositoryIndexResponse.ModelIndex] = {}
        for one in (one for reply in replies for one in reply.models):
            if found.setdefault((one.name, one.version), one).state != ModelState.READY:
                found[one.name, one.version] = one
        merged.models.extend(found.values())
        if not replies and not ready_only:
            merged.models.add(name=family, state=ModelState.UNAVAILABLE, reason="no replica of it answers")
    return merged


def _add(total: Message, one: Message, *, same: Sequence[str] = ()) -> None:
    """Add the numbers of a message, and of those inside it, to another's; take over what is the same."""
    for field in one.DESCRIPTOR.fields:
        value = getattr(one, field.name)
        if field.name in same:
            setattr(total, field.name, value)
        elif isinstance(value, int):
            setattr(total, field.name, getattr(total, field.name) + value)
        elif isinstance(value, Message):
            _add(getattr(total, field.name), value)
