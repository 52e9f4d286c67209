"""The wire contract: the Open Inference Protocol with Triton's extensions, as far as polyhead serves them."""

from polyhead_proto import messages
from polyhead_proto.pool import FILE, POOL
from polyhead_proto.rpcs import RPCS, SERVICE, Rpc

__all__ = ["FILE", "POOL", "RPCS", "SERVICE", "Rpc", "messages"]
