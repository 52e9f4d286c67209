"""The scheduler, where it used to be."""

from polyhead_server.scheduling import Done, Scheduler, Work

__all__ = ["Done", "Scheduler", "Work"]
