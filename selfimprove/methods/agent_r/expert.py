"""The environment's own expert as actor, which errs at a configured rate: search trees without a trained model."""

import re
from collections.abc import Callable

from selfimprove.core.seeds import rng
from selfimprove.engines.base import Request
from selfimprove.envs.interface import AgentEnv, Move
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.reply import WAIT, parse_action

LOST = Move("I do not see a way, so I look around.", "inventory")


def scripted_actor(env: AgentEnv, error_rate: float) -> Callable[[Request, int], str]:
    """(request, sample index) -> the expert's next reply in this dialogue or, at the error rate, a random valid action.

    If valid actions can't be listed, an error is an action without effect.

    The dialogue's actions are replayed from the task identified by the request's seed key. This needs the whole
    dialogue, so a scripted actor can't replace an actor with a bounded context.
    """

    def answer(request: Request, sample: int) -> str:
        draw = rng("scripted actor", request.seed.at(sample))
        task = re.match(rf"{re.escape(env.name)}-(\d+)", request.seed.task)
        assert task is not None, request.seed.task
        env.reset(int(task[1]))
        for message in request.messages[OPENING:]:
            action = parse_action(message.content)
            if message.role == "assistant" and action != WAIT:
                env.step(action)
        here = env.snapshot()
        plan = env.expert()
        env.restore(here)
        move = plan[0] if plan else LOST
        listed = env.valid_actions()
        possible = [LOST.action] if listed is None else listed
        if possible and draw.random() < error_rate:
            move = Move("I try something else.", draw.choice(possible))
        return f"Thought: {move.thought}\nAction: {move.action}"

    return answer
