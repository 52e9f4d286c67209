"""`RepositoryIndex`: every version of every model, and why it is not ready."""

from polyhead_proto import messages as pb
from polyhead_server.registry import Registry, State


def repository_index(registry: Registry, *, ready_only: bool) -> pb.RepositoryIndexResponse:
    """Lists the repository, or what of it is ready."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=slot.name,
                version=str(slot.version) if slot.version else "",
                state=slot.state,
                reason=slot.reason,
            )
            for slot in registry.slots()
            if slot.state is State.READY or not ready_only
        ]
    )
