"""Accept work for a model, batch it by cost, run it, and give every caller exactly one answer."""

from polyhead_server.scheduling.admission import Limits
from polyhead_server.scheduling.batch import Layout, layout_of
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.dispatch import SingleThreadSession
from polyhead_server.scheduling.observer import Drop, Execution, Observer
from polyhead_server.scheduling.scheduler import Scheduler
from polyhead_server.scheduling.work import Done, Work

__all__ = [
    "CostTable",
    "Done",
    "Drop",
    "Execution",
    "Layout",
    "Limits",
    "Observer",
    "Scheduler",
    "SingleThreadSession",
    "Work",
    "layout_of",
]
