"""Admits work for a model, batches it by cost, runs it, and gives every caller exactly one answer."""

from polyhead_server.scheduling.batch import Layout, layout_of
from polyhead_server.scheduling.costs import CostTable
from polyhead_server.scheduling.dispatch import SingleThread
from polyhead_server.scheduling.observer import Drop, Execution, Observer
from polyhead_server.scheduling.scheduler import Limits, Scheduler
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
    "SingleThread",
    "Work",
    "layout_of",
]
