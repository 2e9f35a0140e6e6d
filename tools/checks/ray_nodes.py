"""Starts two nodes of Ray on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no requests to the internet
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 — with the default of 15, workers get no time beside other processes

import ray
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}


@contextmanager
def two_nodes() -> Iterator[None]:
    """Connect Ray to two nodes. A failure to shut down is only logged, because the results are known by then."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        for end in (ray.shutdown, cluster.shutdown):
            try:
                end()
            except Exception:
                logging.exception("Ray did not end")
