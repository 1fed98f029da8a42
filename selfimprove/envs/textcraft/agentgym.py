"""TextCraft in AgentGym's HTTP protocol: our server's endpoints, and the client for any such server."""

from typing import Any

from selfimprove.core.records import plain_text
from selfimprove.envs.interface import Step
from selfimprove.envs.remote.client import Begun, RemoteSlot, Stepped, outcome
from selfimprove.envs.remote.dialects import Act, Begin, Dialect, Endpoint, Open, Which, begin


def _textcraft_begin(held: Open, data_idx: int) -> dict[str, Any]:
    tasks = held.env.task_ids()
    observation = begin(held, tasks[data_idx % len(tasks)])
    held.detail = {"observation": observation, "done": False, "reward": 0, "deleted": False}
    return {"id": held.number, "observation": observation, "done": False, "reward": 0}


def _textcraft_step(held: Open, asked: Act) -> dict[str, Any]:
    step = held.env.step(asked.action)
    answer = {"observation": step.observation, "reward": int(step.reward), "done": step.done}
    held.detail = {**held.detail, **answer}
    return answer


def _textcraft_goal(held: Open, asked: Which) -> str:
    return held.first.rpartition("Goal: craft ")[2].removesuffix(".")


def _textcraft_commands(held: Open, asked: Which) -> str:
    return held.first.partition("\n")[2].rpartition("\n\nGoal: ")[0]


TEXTCRAFT = Dialect(
    greeting="This is environment TextCraft.",
    created=lambda held: _textcraft_begin(held, held.number),
    endpoints=(
        Endpoint("POST", "/reset", Begin, lambda held, asked: _textcraft_begin(held, asked.data_idx or 0)),
        Endpoint("POST", "/step", Act, _textcraft_step),
        Endpoint("GET", "/observation", Which, lambda held, asked: held.detail["observation"]),
        Endpoint("GET", "/detail", Which, lambda held, asked: held.detail),
        Endpoint("GET", "/goal", Which, _textcraft_goal),
        Endpoint("GET", "/commands", Which, _textcraft_commands),
        Endpoint("GET", "/valid_actions", Which, lambda held, asked: held.env.valid_actions()),
    ),
)


class TextCraftSlot(RemoteSlot):
    """A client for TextCraft's dialect. The reward is 1 once the goal is crafted."""

    async def reset(self, task_id: int) -> str:
        return plain_text((await self._reset(Begun, data_idx=task_id)).observation)

    async def step(self, action: str) -> Step:
        answer = await self._step(Stepped, action)
        valid = not answer.observation.startswith(("Could not ", "Wrong item format"))
        return outcome(answer.observation, answer.reward, 1.0, answer.done, valid)
