from .aio import AsyncClient as AsyncClient
from .client import Client as Client
from .edges import Edge as Edge
from .edges import strongest_edges as strongest_edges
from .encoding import Encoding as Encoding
from .encoding import Timings as Timings
from .errors import AccessDenied as AccessDenied
from .errors import Cancelled as Cancelled
from .errors import DeadlineExceeded as DeadlineExceeded
from .errors import InvalidRequest as InvalidRequest
from .errors import NotFound as NotFound
from .errors import PolyheadError as PolyheadError
from .errors import ServerError as ServerError
from .errors import TooLarge as TooLarge
from .errors import Unavailable as Unavailable
from .errors import Unsupported as Unsupported
from .insight import HeadScores as HeadScores
from .insight import TopKeys as TopKeys
from .insight import norm_weighted as norm_weighted
from .models import Duration as Duration
from .models import ModelInfo as ModelInfo
from .models import ModelStatistics as ModelStatistics
from .models import ServedModel as ServedModel
from .models import ServerInfo as ServerInfo
from .models import TensorInfo as TensorInfo

__version__: str
