"""ScienceWorld in AgentGym's HTTP protocol: our server's endpoints, and the client for any such server.

The embedded environment's ``simulator`` provides what is not part of ``AgentEnv``.
"""

from collections.abc import Callable
from typing import Any

from selfimprove.core.records import plain_text
from selfimprove.envs.interface import Step
from selfimprove.envs.remote.client import Answer, RemoteSlot, outcome
from selfimprove.envs.remote.dialects import Act, Begin, Dialect, Endpoint, Open, Refused, Which, begin
from selfimprove.envs.sciworld.actions import NOT_UNDERSTOOD
from selfimprove.envs.sciworld.games import game


def _sciworld_reset(held: Open, asked: Begin) -> dict[str, Any]:

    env: Any = held.env
    task_id = asked.data_idx or 0
    first = begin(held, task_id)
    description = env.simulator.description()
    task, variation = game(task_id)
    score = round(100 * env.begun_with)
    held.detail = {
        "task_name": task,
        "var_num": variation,
        "task_description": description,
        "observation": first.removeprefix(f"{description}\n"),
        "reward": score,
        "score": score,
        "deleted": False,
        "done": False,
    }
    return held.detail


def _playing(answer: Callable[[Open, Any], Any]) -> Callable[[Open, Any], Any]:
    """Refuse everything but ``/reset`` and ``/close`` before the first reset and after the end, as in the original."""

    def checked(held: Open, asked: Any) -> Any:
        if not held.detail:
            raise Refused(f"The environment {held.number} has no task yet; reset it.")
        if held.detail["done"]:
            raise Refused(f"The task with environment {held.number} has finished.")
        return answer(held, asked)

    return checked


def _sciworld_step(held: Open, asked: Act) -> dict[str, Any]:
    """``score`` is the original's, -100 to 100, and ``reward`` its change."""
    step = held.env.step(asked.action)
    score = int(step.info["raw_score"])
    answer = {
        "observation": step.observation,
        "reward": score - held.detail["score"],
        "score": score,
        "done": step.done,
    }
    held.detail = {**held.detail, **answer}
    return answer


def _sciworld_tells(tell: Callable[[Any], Any]) -> Callable[[Open, Any], Any]:
    """An endpoint that queries the simulator, at no cost in moves."""

    def answer(held: Open, asked: Which) -> Any:
        env: Any = held.env
        return tell(env.simulator)

    return _playing(answer)


MOST_LISTED = 10
"""The number of actions and of things that ``/state`` lists, as in the original."""


def _sciworld_state(held: Open, asked: Which) -> dict[str, Any]:
    """Additional information that a viewer shows next to an episode."""
    env: Any = held.env
    simulator = env.simulator
    return {
        "observation": simulator.look(),
        "inventory": simulator.inventory(),
        "task_description": simulator.description(),
        "goal_progress": simulator.goal_progress(),
        "possible_actions": simulator.templates()[:MOST_LISTED],
        "possible_objects": simulator.objects()[:MOST_LISTED],
        "current_moves": simulator.moves(),
        "environment_info": held.detail,
    }


def _sciworld_step_visual(held: Open, asked: Act) -> dict[str, Any]:
    """A step for viewers: accepts a model's entire reply, and returns everything that can be seen.

    ``info`` contains what the package reports after a step; the call takes 0.2 s because of the list of valid actions.
    """
    reply = asked.action.removesuffix("</s>")
    answer = _sciworld_step(held, asked.model_copy(update={"action": reply.rpartition("Action:")[2].strip()}))
    env: Any = held.env
    simulator = env.simulator
    inventory, moves = simulator.inventory(), simulator.moves()
    info = {
        "moves": moves,
        "score": answer["score"],
        "reward": answer["reward"],
        "look": simulator.look(),
        "inv": inventory,
        "taskDesc": simulator.description(),
        "valid": env.valid_actions(),
        "variationIdx": held.detail["var_num"],
        "taskName": held.detail["task_name"],
        "simplificationStr": "",
    }
    return {**answer, "info": info, "object_tree": simulator.object_tree(), "inventory": inventory, "moves": moves}


SCIWORLD = Dialect(
    greeting="This is environment ScienceWorld.",
    created=lambda held: {"id": held.number},
    endpoints=(
        Endpoint("POST", "/reset", Begin, _sciworld_reset),
        Endpoint("POST", "/step", Act, _playing(_sciworld_step)),
        Endpoint("GET", "/observation", Which, _playing(lambda held, asked: held.detail["observation"])),
        Endpoint("GET", "/detail", Which, _playing(lambda held, asked: held.detail)),
        Endpoint(
            "GET",
            "/action_hint",
            Which,
            _sciworld_tells(lambda it: {"possible_actions": it.templates(), "possible_objects": it.objects()}),
        ),
        Endpoint("GET", "/goals", Which, _sciworld_tells(lambda it: {"goals": it.goal_progress()})),
        Endpoint("GET", "/task_description", Which, _sciworld_tells(lambda it: {"task_description": it.description()})),
        Endpoint("GET", "/object_tree", Which, _sciworld_tells(lambda it: {"object_tree": it.object_tree()})),
        Endpoint("GET", "/state", Which, _playing(_sciworld_state)),
        Endpoint("POST", "/step_visual", Act, _playing(_sciworld_step_visual)),
        Endpoint("GET", "/look", Which, _sciworld_tells(lambda it: it.look())),
        Endpoint("GET", "/inventory", Which, _sciworld_tells(lambda it: it.inventory())),
        Endpoint("GET", "/valid_actions", Which, _playing(lambda held, asked: held.env.valid_actions())),
    ),
    threads=True,
)


class _SciWorldBegun(Answer):
    task_description: str
    observation: str


class _SciWorldStepped(Answer):
    observation: str
    score: float
    done: bool


class RemoteSciWorldSlot(RemoteSlot):
    """A client for ScienceWorld's dialect. It uses ``score`` (0 to 100, -100 after a fatal mistake), not ``reward``."""

    async def reset(self, task_id: int) -> str:
        """See ``Slot``. The first observation begins with the task's description."""
        answer = await self._reset(_SciWorldBegun, data_idx=task_id)
        return plain_text(f"{answer.task_description}\n{answer.observation}")

    async def step(self, action: str) -> Step:
        answer = await self._step(_SciWorldStepped, action)
        valid = not answer.observation.startswith(NOT_UNDERSTOOD)
        return outcome(answer.observation, answer.score, 100.0, answer.done, valid)
