from .errors import LoadError as LoadError
from .plan import Lengths as Lengths
from .plan import LoadPlan as LoadPlan
