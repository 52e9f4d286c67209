"""The wire contract: what polyhead serves of the Open Inference Protocol and Triton's extensions."""

from polyhead_proto import messages
from polyhead_proto.pool import FILE, POOL
from polyhead_proto.rpcs import RPCS, SERVICE, Rpc

__all__ = ["FILE", "POOL", "RPCS", "SERVICE", "Rpc", "messages"]
