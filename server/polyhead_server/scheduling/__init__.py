"""Accept work for a model, batch it by cost, run it, and give every caller exactly one answer."""

from polyhead_server.scheduling.admission import Limits
from polyhead_server.scheduling.batch import Layout, layout_of
from polyhead_server.scheduling.costs import CostModel
from polyhead_server.scheduling.dispatch import Lanes
from polyhead_server.scheduling.observer import Drop, Execution, Observer
from polyhead_server.scheduling.scheduler import Scheduler
from polyhead_server.scheduling.work import Done, Work

__all__ = [
    "CostModel",
    "Done",
    "Drop",
    "Execution",
    "Lanes",
    "Layout",
    "Limits",
    "Observer",
    "Scheduler",
    "Work",
    "layout_of",
]
