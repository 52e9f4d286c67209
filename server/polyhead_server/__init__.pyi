from .process import serve as serve
from .runtime import Runtime as Runtime
from .settings import Settings as Settings
from .transport.server import GrpcServer as GrpcServer
from .transport.server import create_server as create_server
