from .app import Server as Server
from .app import create_server as create_server
from .process import serve as serve
from .settings import Settings as Settings
