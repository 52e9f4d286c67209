"""Serve on Ray: Serve spreads, scales and restarts replicas; each batches as a server of its own does.

Only this package imports `ray`. docs/deploy.md describes it.
"""

from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Less CPU time on the way of a request: docs/scaling.md has the numbers.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
}
"""Settings of a Ray on one machine. Ray and Serve read them when they are imported."""
