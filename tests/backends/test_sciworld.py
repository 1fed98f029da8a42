"""ScienceWorld itself: Java processes, the package's simulator, and episodes and worlds in it.

``make test-backends-sciworld``. The games are short. No Java process may outlive these tests.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.labels import LABELS
from selfimprove.envs.listed import ListedText
from selfimprove.envs.replay import ReplayWorld
from selfimprove.envs.sciworld.agentgym import RemoteSciWorldSlot
from selfimprove.envs.sciworld.env import INSTRUCTION, SciWorld, SciWorldWorld, outcome
from selfimprove.envs.sciworld.games import GAMES, TASKS, TaskVariation
from selfimprove.envs.sciworld.jvm import JvmPool
from selfimprove.envs.sciworld.world import SciWorldParams
from selfimprove.methods.agent_r.judge import judge_step, starting
from tests.backends.java_processes import java_of
from tests.envs.contract import check_acted, check_labelled
from tests.envs.remote.agentgym_servers import our_server

pytestmark = pytest.mark.backend

ROOT = Path(__file__).resolve().parents[2]
AHEAD = 3386  # begins in the room of the goal, with 8 points
SHORT = 3245  # find-non-living-thing: nine actions
LIVING = GAMES.index(TaskVariation("identify-life-stages-2", 5))  # animals that move and age, listed in no fixed order
CIRCUIT = GAMES.index(TaskVariation("power-component", 3))  # the package's intermediate scores differ between two runs
PAINT = GAMES.index(TaskVariation("chemistry-mix-paint-secondary-color", 2))
SPAN = GAMES.index(TaskVariation("lifespan-longest-lived", 7))


@pytest.fixture(scope="module")
def pool() -> Iterator[JvmPool]:
    pool = JvmPool(1)
    yield pool
    pool.close()


@pytest.fixture(autouse=True, scope="module")
def none_left() -> Iterator[None]:
    yield
    assert java_of(os.getpid()) == []


def test_points_of_the_beginning_are_no_progress_of_the_first_step(pool: JvmPool) -> None:
    env = SciWorld(pool)
    for game, reward in ((SHORT, 0.0), (AHEAD, 0.08)):
        env.reset(game)
        assert env.begun_with == reward
        begun = starting(env)
        assert [judge_step(env, begun, action)[2].verdict for action in ("inventory", "wait1")] == ["bad", "bad"]


def test_scienceworld_satisfies_the_environment_contract(pool: JvmPool) -> None:
    check_acted(SciWorld(pool), SciWorld(pool), [SHORT], actions=10, expert_listed=False)


def test_the_experts_actions_are_listed_for_reflect_rl(pool: JvmPool) -> None:
    env = ListedText(SciWorld(pool), 30, LABELS["single"], add_expert=True)
    assert not SciWorldParams.lists_expert
    assert env.reset(SHORT).unlisted > 0  # more than 62 actions are possible
    check_labelled(env, [SHORT], actions=5)


def play(env: SciWorld, task_id: int, actions: list[str]) -> list[str | Step]:
    return [env.reset(task_id), *[env.step(action) for action in actions]]


def muddled(env: SciWorld, task_id: int, seed: int) -> list[str]:
    """The gold path with other actions inserted at random, so that time passes and things move."""
    env.reset(task_id)
    strew = random.Random(seed)
    actions = []
    for move in env.expert():
        actions.append(move.action)
        if strew.random() < 0.4:
            actions.append(strew.choice(["wait1", "look around", "inventory", "open door", "dance", "examine agent"]))
    return actions


def test_the_embedded_table_of_games_matches_the_package(pool: JvmPool) -> None:
    from scienceworld.constants import ID2TASK

    assert [(task_id, name) for task_id, name, _ in TASKS] == list(ID2TASK.items())
    simulator = pool.simulator()
    counts = {name: simulator._act(lambda it, name=name: it.getTaskMaxVariations(name)) for _, name, _ in TASKS}  # type: ignore[misc]
    assert counts == {name: variations for _, name, variations in TASKS}
    simulator.close()


@pytest.mark.parametrize("task_id", [SHORT, LIVING, CIRCUIT, PAINT, SPAN])
def test_the_gold_path_reaches_score_one(pool: JvmPool, task_id: Any) -> None:
    env = SciWorld(pool)
    env.reset(task_id)
    moves = env.expert()
    assert moves
    for i, move in enumerate(moves):
        step = env.step(move.action)
        assert step.done == (i == len(moves) - 1)
    assert (step.reward, step.info["raw_score"], step.info["disaster"]) == (1.0, 100, False)
    env.close()


def test_the_expert_continues_while_it_is_followed_and_returns_no_moves_otherwise(pool: JvmPool) -> None:
    env = SciWorld(pool)
    assert env.expert() == []
    env.reset(SHORT)
    moves = env.expert()
    env.step(moves[0].action)
    assert env.expert() == moves[1:]
    env.step("wait1")
    assert env.expert() == []
    env.close()


def test_the_first_observation_is_the_task_a_newline_and_the_result_of_look_around(pool: JvmPool) -> None:
    env = SciWorld(pool)
    description, _, room = env.reset(SHORT).partition("\n")
    assert description.startswith("Your task is to find a(n) non-living thing.")
    assert room.startswith("This room is called the bedroom.")
    assert env.step("look around") == (room, 0.0, False, {"raw_score": 0, "disaster": False, "valid": True, "moves": 0})
    assert env.simulator.look().strip() == room.strip()
    env.close()


def test_focusing_on_a_wrong_object_ends_the_episode_as_a_disaster(pool: JvmPool) -> None:
    env = SciWorld(pool)
    env.reset(0)
    step = env.step("focus on agent")
    assert (step.reward, step.done, step.info["raw_score"], step.info["disaster"]) == (0.0, True, -100, True)
    env.close()


def test_a_hundred_moves_are_allowed_and_unrecognised_actions_cost_none(pool: JvmPool) -> None:
    env = SciWorld(pool)
    env.reset(SHORT)
    assert env.step("dance").info["moves"] == 0
    moves = [env.step("wait").info["moves"] for _ in range(9)]
    assert moves[-1] in range(90, 101)
    while not (step := env.step("open door to hallway")).done:
        moves.append(step.info["moves"])
    assert moves[-1] == 100
    assert step.info["moves"] == 101
    env.close()


@pytest.mark.parametrize(
    "action",
    ["", "x" * 10_000, "go " * 3_000, "look\x00 \x1b[31m", "a\nb\r\n", "\ud800", "e 'quoted' \\ \"text\"", "1"],
)
def test_arbitrary_text_is_an_invalid_action_and_the_episode_continues(pool: JvmPool, action: str) -> None:
    env = SciWorld(pool)
    env.reset(SHORT)
    step = env.step(action)
    assert (step.reward, step.done, step.info["valid"]) == (0.0, False, False)
    assert env.step("open door to hallway").info["valid"]
    env.close()


def test_each_simulator_of_a_process_has_its_own_random_numbers_and_object_counter(pool: JvmPool) -> None:
    one, other = pool.simulator(), pool.simulator()
    jvm = one.jvm

    def draws(*turns: Any) -> Any:
        for simulator in (one, other):
            simulator.load(*GAMES[LIVING])
        seen: dict[Any, Any] = {one: [], other: []}
        for simulator in turns:
            seen[simulator].append(
                simulator._act(lambda it: (jvm._generator.nextInt(1_000_000), jvm._counter.getNextID()))
            )
        return seen

    alone = draws(one, one, one, other, other, other)
    assert draws(one, other, other, one, other, one) == alone
    assert alone[one] == alone[other]  # the same game gives the same random numbers
    assert len(set(alone[one])) == 3
    one.close()
    other.close()


def test_interleaved_episodes_in_one_process_do_not_affect_each_other(pool: JvmPool) -> None:
    tasks = [SHORT, LIVING, CIRCUIT, PAINT, SPAN]
    alone = SciWorld(pool)
    scripts = {task: muddled(alone, task, task) for task in tasks}
    expected = {task: play(alone, task, scripts[task]) for task in tasks}
    envs = {task: SciWorld(pool) for task in tasks}
    seen: dict[int, Any] = {task: [envs[task].reset(task)] for task in tasks}
    turns = [task for task in tasks for _ in scripts[task]]
    random.Random(0).shuffle(turns)
    for task in turns:
        seen[task].append(envs[task].step(scripts[task][len(seen[task]) - 1]))
    assert seen == expected
    for env in [alone, *envs.values()]:
        env.close()


def test_direct_calls_give_the_same_results_as_the_packages_step(pool: JvmPool) -> None:
    """The package's own load, reset and step, with all its additional calls, in a process with our options."""
    from scienceworld import ScienceWorldEnv

    env = SciWorld(pool)
    for task_id in (LIVING, CIRCUIT):
        script = muddled(env, task_id, 1)[:12]
        ours = play(env, task_id, script)
        package = ScienceWorldEnv.__new__(ScienceWorldEnv)  # without starting its own process
        simulator = pool.simulator()
        package.server, package.envStepLimit, package._gateway = simulator._interface, 100, SimpleNamespace()
        package.close = lambda: None

        def theirs(package: Any = package, task_id: int = task_id, script: Any = script) -> Any:
            package.load(*GAMES[task_id], "")
            description = package.get_task_description()
            seen = [f"{description}\n{package.reset()[0]}"]
            for action in script:
                observation, _, done, info = package.step(action)
                seen.append((observation, info["score"], done, info["moves"]))  # type: ignore[arg-type]
            return seen

        theirs_seen = simulator.jvm.act(simulator, theirs)
        assert [
            ours[0],
            *[(s.observation, s.info["raw_score"], s.done, s.info["moves"]) for s in ours[1:]],  # type: ignore[union-attr]
        ] == theirs_seen
        simulator.close()
    env.close()


def test_a_restored_snapshot_continues_like_the_original(pool: JvmPool) -> None:
    env, other = SciWorld(pool), SciWorld(pool)
    script = muddled(env, LIVING, 2)
    seen = play(env, LIVING, script[:6])
    snapshot = env.snapshot()
    seen += [env.step(action) for action in script[6:]]
    other.restore(snapshot)
    assert [other.step(action) for action in script[6:]] == seen[7:]
    env.close()
    other.close()


def test_mapped_actions_are_executed_and_reported(pool: JvmPool) -> None:
    env = SciWorld(pool, map_actions=True)
    env.reset(SHORT)
    step = env.step("please open the door to the hallway!")
    assert step.observation == "The door is now open."
    assert step.info["mapped_from"] == "please open the door to the hallway!"
    assert step.info["mapped_to"] == "open door to hallway"
    assert "mapped_from" not in env.step("go to hallway").info
    assert "mapped_from" not in env.step("dance").info
    assert env.snapshot().actions[0] == "please open the door to the hallway!"
    env.close()


def test_valid_actions_are_sorted_and_listing_them_takes_no_time(pool: JvmPool) -> None:
    env = SciWorld(pool)
    env.reset(SHORT)
    actions = env.valid_actions()
    assert actions == sorted(actions)
    assert {"open door", "pick up bed", "look around"} & set(actions)
    assert "focus on agent" in actions
    assert env.step("look around").info["moves"] == 0  # listing them took no time
    assert "OBJ" in " ".join(env.simulator.templates())
    assert "agent" in env.simulator.objects()
    env.close()


def test_a_world_branches_from_any_state_and_its_processes_end_when_it_is_closed() -> None:
    async def grow(world: SciWorldWorld) -> None:
        root, first = await world.reset(SHORT)
        assert first.startswith("Your task is")
        opened, _ = await world.step(root, "open door to hallway")
        branches = await asyncio.gather(*[world.step(opened, a) for a in ("go to hallway", "wait1", "look around")])
        again = await asyncio.gather(*[world.step(opened, a) for a in ("go to hallway", "wait1", "look around")])
        assert [step for _, step in branches] == [step for _, step in again]
        assert branches[0][1].observation == "You move to the hallway."
        _, back = await world.step(root, "go to hallway")
        assert back.observation == "The door is not open."
        assert world.stats.diverged == 0

    async def run() -> None:
        world: Any = SciWorldParams(jvms=2).embedded_world()
        try:
            await grow(world)
            pids = world.pool.processes()
            assert len(pids) == 2
        finally:
            await world.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)
        await world.close()

    asyncio.run(run())


@pytest.mark.parametrize("task_id", [SHORT, PAINT])
def test_the_expert_reaches_score_one_in_an_episode_on_our_server(pool: JvmPool, task_id: Any) -> None:
    """Our client and our server with the simulator: every step equals the embedded environment's, to the end."""
    embedded = SciWorld(pool)
    first = embedded.reset(task_id)
    actions = [move.action for move in embedded.expert()]

    async def episode(url: str) -> ReplayWorld:
        world: Any = RemoteSciWorldSlot.world("sciworld", url, 2, 60.0, INSTRUCTION)
        assert isinstance(world, ReplayWorld)
        try:
            state, observation = await world.reset(task_id)
            assert observation == first
            _, aside = await world.step(state, "look around")  # a side branch, which must not affect the episode
            assert aside.reward == 0
            for action in actions:
                ours = embedded.step(action)
                state, step = await world.step(state, action)
                assert (step.observation, step.reward, step.done) == (ours.observation, ours.reward, ours.done)
                assert step.info == {key: ours.info[key] for key in ("raw_score", "valid", "disaster")}
            assert (step.reward, step.done, step.info["raw_score"]) == (1.0, True, 100)
        finally:
            await world.close()
        return world

    with our_server("sciworld", lambda: SciWorld(pool)) as url:
        world = asyncio.run(episode(url))
        assert httpx.get(f"{url}/list_envs", timeout=60).json() == [], "the client gives back what it was lent"
    assert (world.stats.failures, world.stats.diverged) == (0, 0)
    assert world.stats.steps == len(actions) + 1
    embedded.close()


def test_the_endpoints_for_viewers_report_the_state_and_change_nothing(pool: JvmPool) -> None:
    """An episode with ``/state``, ``/object_tree`` and ``/step_visual`` equals an episode without them."""
    alone = SciWorld(pool)
    script = muddled(alone, LIVING, 3)[:8]
    expected = play(alone, LIVING, script)
    with our_server("sciworld", lambda: SciWorld(pool)) as url, httpx.Client(base_url=url, timeout=60) as client:
        number = client.post("/create").json()["id"]
        begun = client.post("/reset", json={"id": number, "data_idx": LIVING}).json()
        assert f"{begun['task_description']}\n{begun['observation']}" == expected[0]
        for action, step in zip(script, expected[1:], strict=True):
            seen = client.post("/step_visual", json={"id": number, "action": f"Thought: so.\nAction: {action}"}).json()
            told = (seen["observation"], seen["score"], seen["done"], seen["moves"])
            assert told == (step.observation, step.info["raw_score"], step.done, step.info["moves"])  # type: ignore[union-attr]
            assert seen["info"]["valid"] == sorted(seen["info"]["valid"]) != []
            assert seen["object_tree"] == client.get("/object_tree", params={"id": number}).json()["object_tree"]
            state = client.get("/state", params={"id": number}).json()
            assert (state["current_moves"], state["inventory"]) == (seen["moves"], seen["inventory"])
            assert len(state["possible_actions"]) == len(state["possible_objects"]) == 10
        assert seen["object_tree"]["name"] == "universe"
        assert "agent" in str(seen["object_tree"]["contents"])
        assert client.post("/close", json={"id": number}).json() is True
    alone.close()


def test_a_process_that_is_killed_is_replaced() -> None:
    async def run() -> None:
        world: Any = SciWorldParams(jvms=1).embedded_world()
        try:
            root, _ = await world.reset(SHORT)
            opened, _ = await world.step(root, "open door to hallway")
            os.kill(world.pool.processes()[0], signal.SIGKILL)
            _, step = await world.step(opened, "go to hallway")
            assert step.observation == "You move to the hallway."
            assert world.stats.failures == 1
        finally:
            await world.close()

    asyncio.run(run())


def test_outcomes_give_the_simulators_score_and_unknown_variations_are_refused(pool: JvmPool) -> None:
    simulator = pool.simulator()
    simulator.load(*GAMES[SHORT])
    assert outcome(*simulator.step("open door to hallway")).reward == 0.08
    with pytest.raises(EnvError, match="variation"):
        simulator.load("boil", 300)
    simulator.close()
