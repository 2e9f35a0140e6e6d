"""Two nodes of Ray, both on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # asked for nothing from outside
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 — with 15, workers get no time where anything else runs

import ray
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}


@contextmanager
def two_nodes() -> Iterator[None]:
    """Ray is connected to both. That it does not end as it should is logged, and no error: what was asked is known by
    then."""
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
