"""Two vLLM engines as actors of a Ray cluster give the completions of one engine, even if one of them is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from selfimprove.engines.base import Completion
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_replicas import RayEngine
from selfimprove.engines.factory import make_engine
from selfimprove.engines.vllm.engine import VllmEngine
from tests.backends.vllm_asking import ask, config, run, together

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

REQUESTS = [ask(f"task {i % 7}", sample=10 * i, n=1 + i % 2, max_tokens=60) for i in range(40)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and a second node, with one CPU each."""
    # Ray's default niceness of 15 starves workers on a loaded machine.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


def test_two_vllm_actors_give_the_completions_of_one_engine_even_if_one_is_killed(
    engine: VllmEngine, cluster: Cluster, vllm_dir: Path
) -> None:
    expected = together(engine, *REQUESTS)
    answered = 0

    async def work() -> tuple[list[list[Completion]], dict[str, int]]:
        where = ClusterParams(kind="ray", address=cluster.address)
        replicas = make_engine(config(replicas=2), policy_dir=vllm_dir, threads=2, expert=None, cluster=where)
        assert isinstance(replicas, RayEngine)

        async def one(request: object) -> list[Completion]:
            nonlocal answered
            completions = await replicas.generate(request)  # type: ignore[arg-type]
            answered += 1
            if answered == 10:
                children = psutil.Process().children(recursive=True)
                next(one for one in children if "ray::ReplicaActor" in str(one.cmdline()[:1])).kill()
            return completions

        try:
            while len(replicas._workers) < 2:
                await replicas.generate(REQUESTS[0])
                await asyncio.sleep(0.5)
            return await asyncio.gather(*map(one, REQUESTS)), replicas.requests_by_node()
        finally:
            await replicas.close()

    completions, counted = run(work())
    assert [[(c.text, c.finish, c.token_ids) for c in cs] for cs in completions] == [
        [(c.text, c.finish, c.token_ids) for c in cs] for cs in expected
    ]
    assert len(counted) == 2
