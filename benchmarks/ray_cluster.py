"""Nodes of Ray on this machine that serve a Serve config file, until they are told to end (SIGTERM)."""

import argparse
import ctypes
import signal
import sys
import threading

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.scripts import cli


def main() -> None:
    """Start the nodes and the application."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int)
    parser.add_argument("cpus", type=int, help="of each node")
    parser.add_argument("config")
    chosen = parser.parse_args()
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it ends with the benchmark
    node = {"num_cpus": chosen.cpus, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(chosen.nodes - 1):
        cluster.add_node(**node)
    ray.init(address=cluster.address, namespace="serve")
    cli.main(["run", "--non-blocking", chosen.config], standalone_mode=False)
    signal.signal(signal.SIGTERM, lambda *_: told.set())  # again, after Ray's own
    told.wait()
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
