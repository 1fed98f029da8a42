"""Questions of the local tasks: word problems from the embedded generator, as JSON data sets for the harness.

``local_problems`` asks for a worked solution, ``local_choice`` for the right one of four results::

    {"question": "Mia has 7 boxes with 12 marbles in each. ...", "choices": ["207", "69", "84", "217"], "label": 0}

Wrong results are intermediate values of the solution, or the right result with a small change. The examples in prompts
come from a different split of the problems than the questions.
"""

from pathlib import Path

from selfimprove.core.records import write_rows
from selfimprove.core.seeds import rng
from selfimprove.envs.math.arithmetic import Difficulty, WordProblem, generate
from selfimprove.envs.math.gsm8k import parse_gold

SEED = 17
QUESTIONS = 100
EXAMPLES = 8
CHOICES = 4


def write_local_data(folder: Path) -> dict[str, dict[str, str]]:
    """Write the data sets; returns task -> split -> file."""
    easy = Difficulty(steps={2: 1.0})
    problems = {
        "train": generate(EXAMPLES, seed=SEED, split="demonstrations", difficulty=easy, annotations=False),
        "test": generate(QUESTIONS, seed=SEED, split="test", difficulty=easy, annotations=False),
    }
    files: dict[str, dict[str, str]] = {"local_choice": {}, "local_problems": {}}
    for split, listed in problems.items():
        for task, rows in (
            ("local_choice", [_choice_row(problem) for problem in listed]),
            ("local_problems", [problem.row() for problem in listed]),
        ):
            path = folder / f"{task}-{split}.jsonl"
            write_rows(path, rows)
            files[task][split] = str(path.absolute())
    return files


def _choice_row(problem: WordProblem) -> dict[str, object]:
    gold = parse_gold(problem.answer)
    assert gold is not None, "the generator's own answers hold a result"
    draws = rng("local_choice", problem.id)
    wrong = [line.split(" = ")[1].split()[0] for line in problem.answer.splitlines() if " = " in line]
    right = int(gold)
    wrong += [str(right + change) for change in (10, -1, 1, 2, 3) if right + change > 0]
    choices = [gold, *[value for value in dict.fromkeys(wrong) if value != gold][: CHOICES - 1]]
    draws.shuffle(choices)
    return {"question": problem.question, "choices": choices, "label": choices.index(gold)}
