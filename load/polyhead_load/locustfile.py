"""A locustfile for polyhead servers: `polyhead load ...`, or `locust -f "$(polyhead load --file)" ...`.

docs/load.md explains its options. Without --rate it is a closed loop of --users, with it an open loop.
"""

from polyhead_load.runs import register
from polyhead_load.users import ClosedLoop, OpenLoop

__all__ = ["ClosedLoop", "OpenLoop"]

register()
