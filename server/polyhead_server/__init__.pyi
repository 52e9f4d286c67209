from .process import serve as serve
from .runtime import Server as Server
from .runtime import create_server as create_server
from .settings import Settings as Settings
