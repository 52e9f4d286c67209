"""Two nodes of Ray on this machine, driven by lines on standard input.

It says `started` when Ray runs. `deploy FILE` deploys a Serve config file, `end` ends the second node as if
its machine had failed; each is answered with `done`. Everything stops when the input ends.
"""

import os
import sys
import time

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.scripts import cli

NODE = {"num_cpus": 4, "object_store_memory": 100 * 2**20}
QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # By default Ray takes 10 to 20 s to notice that a node is gone.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "2",
    # On a busy machine, what is slow is not gone, and who needs its memory may be somebody else.
    "RAY_health_check_timeout_ms": "60000",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_memory_monitor_refresh_ms": "0",
}


def say(word: str) -> None:
    """Writes a line to standard output."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def deploy(file: str) -> None:
    """Deploys an application and waits until it is as the file says."""
    run = ["run", "--non-blocking", file]
    try:
        cli.main(run, standalone_mode=False)
    except TimeoutError:
        # Serve waits 60 s for its proxies, too short for a busy machine, and goes on with starting them.
        cli.main(run, standalone_mode=False)
    time.sleep(1)  # until Serve has begun
    while (status := serve.status().applications["polyhead"]).status != "RUNNING":
        assert status.status != "DEPLOY_FAILED", status.message
        time.sleep(0.2)


def main() -> None:
    """Starts the nodes, and does what its input says."""
    os.environ.update(QUICK)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    second = cluster.add_node(**NODE)
    ray.init(address=cluster.address, namespace="serve")
    say("started")
    for line in sys.stdin:
        if line.startswith("deploy"):
            deploy(line.removeprefix("deploy").strip())
        else:
            cluster.remove_node(second, allow_graceful=False)
        say("done")
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
