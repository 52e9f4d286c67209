from .errors import LoadError as LoadError
from .load_plan import Lengths as Lengths
from .load_plan import LoadPlan as LoadPlan
