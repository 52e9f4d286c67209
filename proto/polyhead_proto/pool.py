"""The descriptors of `inference.proto`, in a descriptor pool of their own.

protobuf's default pool takes each symbol once for a whole process, and `tritonclient`, `kserve` and
`mlserver` all register `inference.*` there. A pool of our own lets polyhead be imported beside them.
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
