"""Operations drive themselves with no transport at all."""

from polyhead_client.calls import Call
from polyhead_client.operations import Operations
from polyhead_proto import messages as pb


def test_all_calls_of_an_operation_share_one_deadline() -> None:
    operation = Operations("anywhere:1", 30.0).encode([1, 2, 3])

    listing = next(operation)
    assert isinstance(listing, Call)
    index = pb.RepositoryIndexResponse(models=[{"name": "tiny", "version": "1", "state": "READY"}])
    metadata = operation.send(index.SerializeToString())
    assert isinstance(metadata, Call)
    answer = pb.ModelMetadataResponse(
        name="tiny", versions=["1"], inputs=[{"name": "input_ids"}], outputs=[{"name": "output"}]
    )
    infer = operation.send(answer.SerializeToString())
    assert isinstance(infer, Call)

    assert [call.rpc.name for call in (listing, metadata, infer)] == [
        "RepositoryIndex",
        "ModelMetadata",
        "ModelInfer",
    ]
    assert listing.deadline is metadata.deadline is infer.deadline
    assert listing.deadline.timeout == 30.0
