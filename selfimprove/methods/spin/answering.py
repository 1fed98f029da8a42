"""Plain SPIN on problems with one correct answer: the prompt is a problem, the expert's reply its demonstration."""

from collections.abc import Callable
from pathlib import Path

from selfimprove.envs.interface import AnswerEnv, Problem, to_row
from selfimprove.envs.problems import Source, problem_splits
from selfimprove.envs.qa.base import Question, Score
from selfimprove.envs.qa.expert_files import ExpertAudit
from selfimprove.envs.qa.experts import Expert, Round
from selfimprove.methods.spin.params import TasksParams
from selfimprove.methods.spin.tasks import SPLITS, Material


def gather_answers(tasks: TasksParams, env: AnswerEnv, *, seed: int, download: Path, mirror: Path | None) -> Material:
    """Splits of the environment's problems, with the demonstration of each training problem.

    Raises:
        UserError: there are no problems, or too few.
    """
    source: Source = "math" if tasks.source == "math" else "gsm8k" if tasks.source == "gsm8k" else "embedded"
    counts: dict[str, int] = {name: getattr(tasks, name) for name in SPLITS}
    problems = problem_splits(source, env, counts, seed=seed, download=download, mirror=mirror, where="spin.tasks")
    splits = {name: [question_of(problem, env.name) for problem in problems[name]] for name in SPLITS}
    experts = [
        Expert(
            id=f"expert-{question.id}",
            question=question,
            rounds=[Round(thought=env.demonstration(problem), action="")],
            source="data",
        )
        for question, problem in zip(splits["train"], problems["train"], strict=True)
    ]
    return Material(splits, experts, [], ExpertAudit(file=env.name, read=len(experts), kept=len(experts)))


def question_of(problem: Problem, env_name: str) -> Question:
    """A problem as a question; ``gold`` is the complete answer."""
    return Question(id=problem.id, task=env_name, question=problem.question, gold=problem.answer)


def scorer(env: AnswerEnv) -> Callable[[str, Question], Score]:
    """(reply, question) -> its score, in which exact match means reward 1 and F1 is the reward."""

    def score(reply: str, question: Question) -> Score:
        asked = Problem(question.id, question.question, question.gold, "")
        (problem,) = env.load([(1, to_row(asked, env))], Path(question.id))
        grade = env.grade(reply, problem)
        reward = max(0.0, grade.reward)  # RISE gives an unparsable answer -1
        return Score(reward, grade.reward == 1, reward, grade.answer or "", problem.gold)

    return score
