"""gevent, and gRPC on top of it.

gevent runs many users in one thread: whoever waits lets another run. gRPC waits in C, where gevent cannot
see it, so each *blocking* call of gRPC holds a thread of gevent's pool until it is answered. The pool has
ten. With ten slow calls under way, an eleventh may long be answered: nobody looks, and the delay is booked as
the server's.

Hence calls are futures here. Of those, one thread waits for all answers of a channel. The pool is enlarged
all the same: replies in parts are streams, each of which holds a thread, and a locustfile may do other things
beside us.
"""

from functools import cache

import gevent
import grpc.experimental.gevent
from gevent import monkey

from polyhead_load.errors import LoadError

_THREADS = 1100
"""A thread of the pool is started when there is work for it, so a large limit costs nothing. Replies
in parts hold one each: there are enough for the default of --max-in-flight."""


@cache
def cooperate() -> None:
    """Makes gRPC work in gevent's manner, once in a process and before its first channel.

    Raises:
        LoadError: The standard library waits in its own manner; `import locust` changes that.
    """
    if not monkey.is_module_patched("threading"):
        raise LoadError(
            "gevent's monkey.patch_all() must be called, or locust imported, before anything else"
        )
    pool = gevent.get_hub().threadpool
    pool.maxsize = max(pool.maxsize, _THREADS)
    grpc.experimental.gevent.init_gevent()
