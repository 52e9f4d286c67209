from polyhead_client import *
from polyhead_export import *
from polyhead_model import *
from polyhead_server import *
from polyhead_view import *

__version__: str
