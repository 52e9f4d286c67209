"""The descriptors of `inference.proto`, in a private descriptor pool.

protobuf's default pool accepts each symbol once per process, and `tritonclient`, `kserve` and `mlserver` all
register `inference.*` there. With a private pool, polyhead can be imported in the same process.
"""

from importlib import resources

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet


def _load() -> tuple[descriptor_pool.DescriptorPool, FileDescriptor]:
    pool = descriptor_pool.DescriptorPool()
    descriptors = FileDescriptorSet.FromString(
        resources.files(__package__).joinpath("inference.binpb").read_bytes()
    )
    for file in descriptors.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool, pool.FindFileByName("inference.proto")


POOL, FILE = _load()
