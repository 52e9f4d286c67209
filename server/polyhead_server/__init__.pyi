from .grpc.server import GrpcServer as GrpcServer
from .process import serve as serve
from .runtime import Runtime as Runtime
from .settings import Settings as Settings
