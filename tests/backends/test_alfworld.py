"""ALFWorld itself: its interpreter and planner in their own process, with our games and with a game set in a folder.

``make test-backends-alfworld``. No process may outlive these tests.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from selfimprove.envs.alfworld.env import AlfWorld, shared_process
from selfimprove.envs.alfworld.games import TYPES, Blacklist, make_games
from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_things import KINDS
from selfimprove.envs.alfworld.process import AlfWorldProcess, GameFailed, ProcessGone
from selfimprove.envs.interface import EnvError
from selfimprove.envs.labels import oracle_label
from selfimprove.envs.registry import listed_env
from tests.backends.alfworld_game_set import game_set, hashes
from tests.backends.alfworld_package import THEIRS, in_alfworld
from tests.envs.contract import check_acted
from tests.support.processes import child_of, gone

pytestmark = pytest.mark.backend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def process() -> Iterator[AlfWorldProcess]:
    process = AlfWorldProcess()
    yield process
    process.close()


@pytest.fixture(autouse=True, scope="module")
def none_left() -> Iterator[None]:
    yield
    shared_process.cache_clear()  # the process that the params started
    assert [child.pid for child in workers(os.getpid())] == []


def workers(pid: int) -> list[psutil.Process]:
    """The worker processes that ``pid`` has started."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if any(word.endswith("alfworld/worker.py") for word in cmdline(child))]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("task", [*range(6), *range(6000, 6006)])
def test_the_planner_wins_a_game_of_every_type(process: AlfWorldProcess, task: Any) -> None:
    """The built-in kitchen gives the same observations, word for word, and admits the same commands."""
    env, kitchen = AlfWorld(process=process), Kitchen()
    assert env.reset(task) == kitchen.reset(task)
    assert env._game(task).goal.kind == KINDS[task % 6]
    moves = env.expert()
    assert 1 < len(moves) <= 15
    assert all(move.thought.endswith(".") for move in moves)
    for i, move in enumerate(moves):
        assert move.action in env.valid_actions()
        assert env.valid_actions() == kitchen.valid_actions()
        step = env.step(move.action)
        assert step == kitchen.step(move.action)
        assert (step.reward, step.done) == ((1.0, True) if i == len(moves) - 1 else (0.0, False))
    assert env.valid_actions() == env.oracle() == []
    env.close()


def test_the_six_types_are_those_of_alfworld() -> None:
    assert len(TYPES) == 6
    code = (
        "from alfworld.agents.environment.alfred_tw_env import TASK_TYPES; import json; print(json.dumps(TASK_TYPES))"
    )
    named = in_alfworld(code)
    assert sorted(json.loads(named.strip().splitlines()[-1]).values()) == sorted(TYPES)
    assert sorted(TYPES.values()) == sorted(KINDS)


@pytest.mark.parametrize("task", [1, 5, 6003])
def test_texts_and_commands_equal_those_of_the_package(process: AlfWorldProcess, task: int) -> None:
    env = AlfWorld(process=process, max_turns=40)
    seen: list[list[Any]] = [[env.reset(task), env.valid_actions(), False]]
    draw, actions = random.Random(task), []
    for _ in range(12):
        action = draw.choice(env.valid_actions())
        step = env.step(action)
        actions.append(action)
        seen.append([step.observation, env.valid_actions(), step.done])
    for action in env.oracle():
        step = env.step(action)
        actions.append(action)
        seen.append([step.observation, env.valid_actions() or seen[-1][1], step.done])
    game = env._game(task)
    given = json.dumps({"goal": game.sentence, "problem": game.problem, "actions": actions})
    theirs = json.loads(in_alfworld(THEIRS, stdin=given))
    assert [row[::2] for row in theirs] == [row[::2] for row in seen]
    assert [row[1] for row in theirs[:-1]] == [row[1] for row in seen[:-1]]
    assert theirs[-1][2]
    env.close()


def test_ids_get_the_same_names_as_in_the_package() -> None:
    ids = ["sink_bar_01_bar_sinkbasin", "sink_bar_00_bar_sinkbasin", "egg_bar_00", "egg_bar_01", "egg_bar_10", "agent1"]
    code = (
        "import json, sys; from types import SimpleNamespace as N; from alfworld.agents.utils.misc import Demangler;"
        "ids = json.load(sys.stdin); d = Demangler(game_infos={i: N(id=i) for i in ids});"
        "print(json.dumps({i: d.demangle_alfred_name(i) for i in ids}))"
    )
    from selfimprove.envs.alfworld.worker import named

    assert json.loads(in_alfworld(code, stdin=json.dumps(ids)).splitlines()[-1]) == named(ids)


def test_unrecognised_commands_change_nothing_but_take_a_turn(process: AlfWorldProcess) -> None:
    env = AlfWorld(process=process, max_turns=3)
    env.reset(2)
    before = env.valid_actions()
    for action in ("", "go to the moon", "x" * 10_000, "a\nb\x00\x1b[31m", "\ud800", "go to cabinet 1; ls"):
        env.reset(2)
        step = env.step(action)
        assert (step.observation, step.reward, step.done, step.info["valid"]) == ("Nothing happens.", 0.0, False, False)
        assert env.valid_actions() == before
    env.step(before[0])
    step = env.step("nonsense")
    assert (step.done, step.info["truncated"], env.valid_actions()) == (True, True, [])
    assert env.step(before[0]).done
    env.close()


def test_an_episode_is_the_same_in_any_process_and_after_any_other_episode() -> None:
    first, second = AlfWorldProcess(), AlfWorldProcess()
    played = []
    for process, order in ((first, (3, 4)), (second, (4, 1, 3, 4))):
        env, seen = AlfWorld(process=process), dict[int, Any]()
        for task in order:
            seen[task] = [env.reset(task), env.expert(), env.valid_actions()]
            seen[task] += [env.step(move.action) for move in seen[task][1]]
        played.append({task: seen[task] for task in (3, 4)})
    assert played[0] == played[1]
    first.close()
    second.close()


def test_environments_in_one_process_do_not_affect_each_other(process: AlfWorldProcess) -> None:
    env, other = AlfWorld(process=process), AlfWorld(process=process)
    moves = {task: (env.reset(task), env.expert())[1] for task in (2, 3)}
    env.reset(2)
    other.reset(3)
    for i in range(max(map(len, moves.values()))):
        for place, task in ((env, 2), (other, 3)):
            if i < len(moves[task]):
                step = place.step(moves[task][i].action)
                assert step.reward == float(i == len(moves[task]) - 1)
    env.close()
    other.close()


def test_a_restored_snapshot_continues_like_the_original_in_any_environment(process: AlfWorldProcess) -> None:
    env, other = AlfWorld(process=process), AlfWorld(process=process)
    env.reset(4)
    moves = env.expert()
    env.step(moves[0].action)
    env.step("nonsense")
    moment = env.snapshot()
    hash(moment)
    ahead = [env.step(move.action) for move in moves[1:]]
    other.reset(0)
    for place in (other, env):
        place.restore(moment)
        assert [place.step(move.action) for move in moves[1:]] == ahead
    assert ahead[-1].reward == 1.0
    env.close()
    other.close()


def test_interleaved_episodes_in_one_environment_equal_separate_ones(process: AlfWorldProcess) -> None:
    """As the methods play: one environment, restored to an episode's snapshot before each of its steps."""
    env = AlfWorld(process=process)
    alone, moments = {}, {}
    for task in range(6):
        env.reset(task)
        moves = env.expert()
        moments[task] = [env.snapshot()]
        alone[task] = [env.step(move.action) for move in moves]
        moments[task] += [moves]  # type: ignore[list-item]
    for turn in range(10):
        for task, (moment, moves, *steps) in moments.items():  # type: ignore[assignment]
            if turn < len(moves):
                env.restore(moment)
                steps.append(env.step(moves[turn].action))  # type: ignore[arg-type]
                moments[task] = [env.snapshot(), moves, *steps]  # type: ignore[list-item]
    assert {task: steps for task, (_, _, *steps) in moments.items()} == alone
    assert len(env._lives) <= 18  # games continue from their current state; they are not restarted at every step
    env.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_states_labels_and_costs_equal_those_of_the_built_in_kitchen(shuffle: bool) -> None:
    params = listed_env(name="alfworld", kinds=list(KINDS), thing=None, place=None, shuffle_action=shuffle)
    real, kitchen = params.model_copy(update={"backend": "textworld"}).make(), params.make()
    for task in (0, 5):
        assert real.reset(task) == kitchen.reset(task)
        played = None
        while played is None or not played.done:
            assert real.state() == kitchen.state()
            assert real.explain(None, "key")
            label = oracle_label(real)
            assert label is not None
            played = real.step(label)
            assert played == kitchen.step(label)
        assert (played.success, played.cost) == (True, -1.0)


def test_a_game_that_cannot_be_started_is_blacklisted(process: AlfWorldProcess, tmp_path: Path) -> None:
    folder = game_set(tmp_path / "games", [0, 1, 2])
    broken = sorted(folder.rglob("game.tw-pddl"))[1]
    broken.write_text(json.dumps({"pddl_problem": "(define (problem x) (:domain alfred) (:objects", "solvable": True}))
    black = tmp_path / "kept" / "blacklist.json"
    env = AlfWorld(process=process, folder=folder, blacklist=Blacklist(black, folder))
    assert list(env.task_ids()) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(EnvError, match="blacklist"):
            env.reset(1)
    assert list(env.task_ids()) == [0, 2]
    assert list(json.loads(black.read_text())) == [broken.parent.relative_to(folder).as_posix()]
    env.reset(2)  # the process and the other games still work
    assert list(AlfWorld(process=process, folder=folder, blacklist=Blacklist(black)).task_ids()) == [0, 2]
    env.close()


def test_a_game_set_is_played_and_not_modified(process: AlfWorldProcess, tmp_path: Path) -> None:
    folder = game_set(tmp_path / "games", [0, 1, 2, 3, 4, 5])
    [first] = (folder / "train").glob("pick_and_place_simple-*/trial_T1")
    problem = json.loads((first / "game.tw-pddl").read_text())["pddl_problem"]
    (first / "game.tw-pddl").unlink()  # like ALFRED's data before games are generated from it
    (first / "initial_state.pddl").write_text(problem)
    before = hashes(folder)
    env, ours = AlfWorld(process=process, folder=folder), AlfWorld(process=process)
    assert (len(env.task_ids("train")), len(env.task_ids("valid"))) == (2, 4)
    for task in env.task_ids():
        opening = env.reset(task)
        number = int(env._game(task).id.split("/")[1].rpartition("-")[2])
        if number:  # the first has no grammar, so its task's wording is drawn
            assert opening == ours.reset(number)
        assert [env.step(action).reward for action in env.oracle()][-1] == 1.0
    assert hashes(folder) == before
    assert not Path("/tmp/pwned").exists()
    env.close()
    ours.close()


def test_a_step_that_takes_too_long_ends_the_process_and_the_game_is_blacklisted() -> None:
    process = AlfWorldProcess(seconds=60)
    env, other = AlfWorld(process=process), AlfWorld(process=process)
    env.reset(3)
    other.reset(2)
    moves = other.expert()
    other.step(moves[0].action)
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    process._seconds = 0.5
    with pytest.raises(EnvError, match=r"kitchen-0-3 goes to the blacklist: no answer within 0.5 s"):
        env.step(env.valid_actions()[0])
    assert not psutil.pid_exists(pid)  # reaped, not only signalled
    process._seconds = 60
    with pytest.raises(EnvError, match="on the blacklist"):
        env.reset(3)
    assert [other.step(move.action) for move in moves[1:]][-1].reward == 1.0  # in a new process, from the same state
    env.reset(0)
    process.close()
    assert process.pid is None


def test_a_process_that_is_killed_is_replaced_and_the_episode_continues() -> None:
    process = AlfWorldProcess()
    env = AlfWorld(process=process)
    env.reset(1)
    moves = env.expert()
    for i, move in enumerate(moves):
        if i in (1, 3):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        step = env.step(move.action)
    assert step.reward == 1.0
    assert process.life == 3
    process.close()


def test_alfworld_satisfies_the_environment_contract(process: AlfWorldProcess) -> None:
    env, other = (AlfWorld(process=process, max_turns=100) for _ in range(2))
    check_acted(env, other, [env.task_ids()[0]], actions=10)


def test_a_request_that_fails_leaves_the_process_alive(process: AlfWorldProcess) -> None:
    process.ask("hello")
    pid = process.pid
    for fields in ({"operation": "nothing"}, {"operation": "step", "session": 10**6, "command": "look"}):
        with pytest.raises(GameFailed):
            process.ask(**fields)
    assert process.pid == pid


def test_planning_that_takes_too_long_ends_the_process(process: AlfWorldProcess) -> None:
    game = make_games(None, 0, KINDS, None, None).game(5)
    own = AlfWorldProcess()
    session = own.ask("open", problem=game.problem, goal=game.sentence)["session"]
    pid = own.pid
    with pytest.raises(ProcessGone) as raised:
        own.ask("plan", seconds=0.01, session=session)
    assert raised.value.late
    assert pid is not None
    assert not psutil.pid_exists(pid)
    own.close()


OWNER = """
import os, sys, time
from selfimprove.envs.alfworld.env import AlfWorld
from selfimprove.envs.alfworld.process import AlfWorldProcess
process = AlfWorldProcess()
env = AlfWorld(process=process)
env.reset(5)
print(process.pid, flush=True)
if sys.argv[1] == "raises":
    raise RuntimeError("a stage failed")
if sys.argv[1] == "exits":
    os._exit(3)
while sys.argv[1] == "busy":
    env.oracle()
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["raises", "exits", "idle", "busy"])
def test_no_process_outlives_its_owner(end: str) -> None:
    assert gone(child_of(OWNER, end))


def test_games_that_are_no_longer_used_free_their_copies_of_the_planner(process: AlfWorldProcess) -> None:
    game = make_games(None, 0, KINDS, None, None).game(0)
    for _ in range(300):
        AlfWorld(process=process).reset(0)
    numbers = [process.ask("open", problem=game.problem, goal=game.sentence)["session"] for _ in range(2)]
    assert numbers[1] == numbers[0] + 1
    assert process.pid is not None
    maps = psutil.Process(process.pid).memory_maps(grouped=True)
    assert 1 <= sum("libdownward" in m.path for m in maps) < 60  # each game has its own copy; copies are reused
    process.left += [(process.life, number) for number in numbers]
