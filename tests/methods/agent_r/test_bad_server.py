"""AgentGym servers that are down or misbehave, under Agent-R's real stages.

If the server is down at the start, the stage ends with a one-sentence error and exit code 2; nothing is published and
nothing is lost. Failures in an episode do not end the stage: the episode is recorded as blocked. More cases of the
client itself are in tests/envs/remote/test_agentgym_client.py.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import read_jsonl, read_rows
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.recipes import RecipeBook
from selfimprove.methods.agent_r.tree import Tree
from tests.envs.remote.agentgym_servers import Reply, hostile_server
from tests.methods.agent_r.refusals import PANEL, TREES, done, refused, with_env
from tests.pipeline.workbench import Workbench

pytestmark = pytest.mark.timeout(600)


@dataclass
class Room:
    """One environment of the server below: its task and the number of steps taken in it."""

    env: TextCraft
    task: int = -1
    steps: int = 0


def served(fail: Callable[[Room], Reply | None]) -> Callable[[str, dict[str, Any]], Reply]:
    """A TextCraft server; ``fail`` may replace the environment's answer to a reset or step."""
    book, rooms, lock = RecipeBook.load(), list[Room](), threading.Lock()

    def reply(call: str, fields: dict[str, Any]) -> Reply:
        with lock:
            if call == "POST /create":
                rooms.append(Room(TextCraft(book, 42)))
                return Reply({"id": len(rooms) - 1})
            room = rooms[fields["id"]]
            if call == "POST /reset":
                room.task = fields["data_idx"]
                return fail(room) or Reply({"observation": room.env.reset(room.task)})
            if call == "POST /close":
                return Reply(True)
            room.steps += 1
            step = room.env.step(fields["action"])
            return fail(room) or Reply({"observation": step.observation, "reward": step.reward, "done": step.done})

    return reply


def test_a_server_that_is_down_at_the_start_is_reported_in_one_sentence(agent_bench: Workbench, tmp_path: Path) -> None:
    with hostile_server(served(lambda room: None)) as server:
        pass
    folder = agent_bench.copy(tmp_path / "bench", with_env(server=server.url))
    sentence = refused(agent_bench, folder, "generate", "iter2")
    assert f"env.server: nothing answers at {server.url}" in sentence
    assert "start the server there" in sentence


def test_a_server_too_slow_to_answer_at_the_start_is_reported_in_one_sentence(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    later = threading.Event()

    def slow(call: str, fields: dict[str, Any]) -> Reply:
        later.wait(60)
        return Reply({"id": 0})

    with hostile_server(slow) as server:
        folder = agent_bench.copy(tmp_path / "bench", with_env(server=server.url, server_timeout=0.2))
        sentence = refused(agent_bench, folder, "generate", "iter2")
        later.set()
    assert f"nothing answers at {server.url} (no answer within 0.2 s)" in sentence


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply({"error": "list index out of range"}), "the server says: list index out of range"),
        (Reply({"observation": "half"}), "not this environment's protocol"),
        (Reply({"observation": "", "reward": 0, "done": False}, cut=True), "the connection broke"),
    ],
)
def test_episodes_that_the_server_fails_are_blocked_and_the_others_are_unaffected(
    agent_bench: Workbench, tmp_path: Path, reply: Reply, said: str
) -> None:
    """Half of the tasks fail at every step. The other tasks' trees are the same as without a server."""
    failing = [row["task_id"] for _, row in read_rows(agent_bench.folder / PANEL)][::2]
    with hostile_server(served(lambda room: reply if room.task in failing and room.steps else None)) as server:
        changes = {**with_env(server=server.url, server_concurrency=4), "run": {"max_blocked": 0.5}}
        folder = agent_bench.copy(tmp_path / "bench", changes)
        warned = done(agent_bench, folder, "generate", "iter2")
    trees, embedded = (read_jsonl(where / TREES, Tree) for where in (folder, agent_bench.folder))
    assert [tree.status == "blocked" for tree in trees] == [True, False] * 3
    assert all(said in str(tree.error) for tree in trees[::2])
    assert trees[1::2] == embedded[1::2]
    sentence, *others = warned  # a server that answers nonsense may also have answered a replay differently
    assert all("replay" in other for other in others)
    assert sentence.startswith(f"agent_r-generate@iter2: 3 of 6 episodes are blocked; the first, {trees[0].id}: ")
    assert said in sentence
    assert json.loads((folder / "results/agent_r/iter2/generate.json").read_text())["blocked"] == 3


@pytest.mark.slow
def test_a_server_that_forgets_environments_in_mid_episode_gives_the_same_trees(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    """Every environment is forgotten after nine steps; a path to a node has at most eight."""

    def forget(room: Room) -> Reply | None:
        return Reply({"error": "no such environment"}) if room.steps > 9 else None

    with hostile_server(served(forget)) as server:
        folder = agent_bench.copy(tmp_path / "bench", with_env(server=server.url, server_concurrency=4))
        done(agent_bench, folder, "generate", "iter2")
        assert server.paths().count("POST /create") > 8
    assert (folder / TREES).read_bytes() == (agent_bench.folder / TREES).read_bytes()


def test_replays_that_diverge_from_the_first_time_are_counted_and_reported(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    """A repeated step has a different observation, as on a server that was restarted with other data."""
    sights = itertools.count()

    def another(room: Room) -> Reply | None:
        reply = {"observation": f"Could not see it ({next(sights)})", "reward": 0, "done": False}
        return Reply(reply) if room.steps else None

    with hostile_server(served(another)) as server:
        folder = agent_bench.copy(tmp_path / "bench", with_env(server=server.url, server_concurrency=1))
        (sentence,) = done(agent_bench, folder, "generate", "iter2")
    diverged = json.loads((folder / "results/agent_r/iter2/generate.json").read_text())["diverged"]
    assert diverged > 0
    assert sentence.startswith(f"agent_r-generate@iter2: {diverged} replays diverged from the first time")
    embedded = json.loads((agent_bench.folder / "results/agent_r/iter2/generate.json").read_text())
    assert embedded["diverged"] == 0


def test_if_the_server_blocked_every_tree_the_conversion_s_error_reports_it(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    with hostile_server(served(lambda room: Reply({"error": "broken"}) if room.steps else None)) as server:
        changes = {**with_env(server=server.url), "run": {"max_blocked": 1.0}}
        folder = agent_bench.copy(tmp_path / "bench", changes)
        done(agent_bench, folder, "generate", "iter2")
    sentence = refused(agent_bench, folder, "convert", "iter2")
    assert "6 trees (6 of them with root value 0, 6 blocked by environment or engine), 0 leaves" in sentence
