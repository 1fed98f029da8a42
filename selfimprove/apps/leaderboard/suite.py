"""The leaderboard's tasks, how each is prompted and scored, and the published results (docs/spin.md, S41).

The Open LLM Leaderboard (in its first version, which SPIN's paper reports) is the mean of six tasks. Each has its own
number of worked examples in the prompt and its own metric of lm-evaluation-harness::

    arc_challenge  25 examples  acc_norm     which of the answers has the highest log-probability per character
    gsm8k           5 examples  exact_match  the number after "####" in what the model writes, greedily

The paper names version 0.4.0 of the harness, whose data sets were distributed as programs that current libraries refuse
to run; the locked version asks the same questions. GSM8K uses ``strict-match``, the only extraction in 0.4.0.
"""

from dataclasses import dataclass

from selfimprove.core.errors import UserError, meant


@dataclass(frozen=True)
class LeaderboardTask:
    """One column of the table: the harness's task (or group of tasks), number of worked examples, and metric.

    ``folder`` contains the task's definition, below the harness's tasks or, for local tasks, below this folder.
    """

    name: str
    title: str
    few_shot: int
    metric: str
    folder: str
    filter: str = "none"

    @property
    def key(self) -> str:
        """The metric's name in the harness's results."""
        return f"{self.metric},{self.filter}"


LEADERBOARD = (
    LeaderboardTask("arc_challenge", "ARC", 25, "acc_norm", "arc"),
    LeaderboardTask("truthfulqa_mc2", "TruthfulQA", 0, "acc", "truthfulqa"),
    LeaderboardTask("winogrande", "Winogrande", 5, "acc", "winogrande"),
    LeaderboardTask("gsm8k", "GSM8K", 5, "exact_match", "gsm8k", "strict-match"),
    LeaderboardTask("hellaswag", "HellaSwag", 10, "acc_norm", "hellaswag"),
    LeaderboardTask("mmlu", "MMLU", 5, "acc", "mmlu/default"),
)
"""The six tasks, in the paper's order. The mean is reported only over all of them."""

LOCAL = (
    LeaderboardTask("local_choice", "local choice", 3, "acc_norm", "local"),
    LeaderboardTask("local_problems", "local problems", 3, "exact_match", "local", "strict-match"),
)
"""Tasks from embedded data: they need no network, and cover both kinds of prompts of the six (see ``local_data``)."""

PUBLISHED = {
    "zephyr-7b-sft-full (paper)": (60.41, 43.73, 74.19, 26.76, 82.85, 60.92),
    "SPIN iteration 3 (paper)": (65.87, 54.90, 73.72, 38.97, 85.54, 59.99),
}
"""Metrics of the paper in the order of ``LEADERBOARD``, × 100."""

AUTO = "auto"
SUITES = {"leaderboard": LEADERBOARD, "local": LOCAL}


def select(names: str) -> tuple[LeaderboardTask, ...]:
    """The tasks selected by ``TASKS``: a suite, or comma-separated tasks (``auto`` selects the six).

    Raises:
        UserError: a name is neither; the message suggests the nearest.
    """
    if names == AUTO:
        return LEADERBOARD
    if names in SUITES:
        return SUITES[names]
    known = {task.name: task for task in (*LEADERBOARD, *LOCAL)}
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name not in known:
            every = [AUTO, *SUITES, *known]
            hint = meant(name, every, f"choose among: {', '.join(every)}.")
            raise UserError(f"TASKS: there is no task {name!r}; {hint}")
        chosen.append(known[name])
    return tuple(chosen)
