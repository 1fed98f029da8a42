"""The scripted teacher: the environment's own expert, which errs at a configured rate."""

from collections.abc import Callable, Sequence

from selfimprove.core.seeds import rng
from selfimprove.engines.base import Request
from selfimprove.envs.interface import AnswerEnv, Problem, Teaches


def scripted_teacher(
    problems: Sequence[Problem], env: AnswerEnv, *, embedded: bool, error_rate: float
) -> Callable[[Request, int], str]:
    """(request, sample index) -> the expert's attempt at the problem identified by the request's seed key.

    With ``embedded``, the environment's own teacher answers if there is one. Otherwise the attempt is the gold solution
    or, with probability ``error_rate``, a slip.
    """
    by_id = {problem.id: problem for problem in problems}

    def answer(request: Request, sample: int) -> str:
        problem, key = by_id[request.seed.task], request.seed.at(sample)
        if embedded and isinstance(env, Teaches):
            return env.teach(problem, error_rate, key)
        if rng("teacher", key).random() < error_rate:
            return env.slip(problem, key)
        return env.demonstration(problem)

    return answer
