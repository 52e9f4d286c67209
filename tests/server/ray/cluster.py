"""Two nodes of Ray on this machine that serve a repository: `cluster.py MODELS PORT`.

It does what the lines on its standard input say, and answers each with `done`.
"""

import sys
import tempfile

import ray
from ray import serve
from ray.cluster_utils import Cluster

from polyhead_server.ray.application import INGRESS, Arguments, build
from polyhead_server.ray.services import SERVICES

NODE = {"num_cpus": 4, "object_store_memory": 100 * 2**20}


def deploy(models: str, **settings: str | float) -> None:
    """Deploys the application, or what has changed of it: one replica of everything on each node."""
    app = build(Arguments(models=models, replicas=2, settings=settings))
    serve.run(app, name="polyhead")


def main(models: str, port: int) -> None:
    """Serves until standard input ends."""
    cluster = Cluster(
        initialize_head=True, connect=False, head_node_args={**NODE, "include_dashboard": False}
    )
    second = cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=True)
    serve.start(
        proxy_location="EveryNode",
        http_options={"host": "127.0.0.1", "port": 0},
        grpc_options={"port": port, "grpc_servicer_functions": SERVICES},
    )
    deploy(models)
    print("done", flush=True)
    for line in sys.stdin:
        if line == "end the second node\n":
            cluster.remove_node(second, allow_graceful=False)
        elif line == "deploy again\n":
            deploy(models, max_batch_size=8)
        print("done", flush=True)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
