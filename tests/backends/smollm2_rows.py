"""A few real rows, embedded so that tests need no network, and the folder of the real model.

GSM8K: rows of the training split (Cobbe et al. 2021, github.com/openai/grade-school-math; MIT licence). HotpotQA:
questions of the dev split (Yang et al. 2018, hotpotqa.github.io; CC BY-SA 4.0). The trajectory: GPT-4's, from FireAct's
training set (Chen et al. 2023, github.com/anchen1011/FireAct; MIT licence).
"""

from __future__ import annotations

from pathlib import Path

from selfimprove.core.records import Example, Message
from selfimprove.envs.interface import Problem
from selfimprove.envs.math.gsm8k import Gsm8k
from selfimprove.models.base import SMOLLM2

MODEL = Path(__file__).resolve().parents[2] / SMOLLM2

GSM8K = [
    {
        "question": "James buys 5 packs of beef that are 4 pounds each.  The price of beef is $5.50 per pound.  "
        "How much did he pay?",
        "answer": "He bought 5*4=<<5*4=20>>20 pounds of beef\nSo he paid 20*5.5=$<<20*5.5=110>>110\n#### 110",
    },
    {
        "question": "John volunteers at a shelter twice a month for 3 hours at a time.  How many hours does he "
        "volunteer per year?",
        "answer": "He volunteers 2*12=<<2*12=24>>24 times a year\nSo he volunteers for 24*3=<<24*3=72>>72 hours\n"
        "#### 72",
    },
    {
        "question": "John writes 20 pages a day.  How long will it take him to write 3 books that are 400 pages each?",
        "answer": "He wants to write 3*400=<<3*400=1200>>1200 pages\n"
        "So it will take him 1200/20=<<1200/20=60>>60 days\n#### 60",
    },
]

HOTPOTQA = [
    {"question": "Tysons Galleria is located in what county?", "answer": "Fairfax County", "type": "bridge"},
    {"question": "Are Yingkou and Fuding the same level of city?", "answer": "no", "type": "comparison"},
    {"question": "Who is older, Annie Morton or Terry Richardson?", "answer": "Terry Richardson", "type": "bridge"},
]

TRAJECTORY = (
    '"Bye Bye Bye" is a song by American boy band NSYNC, formed in Orlando, Florida in which year?',
    "Thought: I need to search the year NSYNC was formed in Orlando, Florida.\nAction: search[NSYNC formation year]",
    "Observation: 1995",
    "Thought: I find the answer.\nAction: finish[1995]",
)


def model() -> Path:
    """The model's folder, which the make target of these tests creates."""
    assert (MODEL / "config.json").is_file(), f"run `make {SMOLLM2}` first"
    return MODEL


def problems() -> list[Problem]:
    """The rows of GSM8K, parsed as in a run."""
    return Gsm8k().load(enumerate(GSM8K), Path("embedded"))


def dialogues() -> list[list[Message]]:
    """The first message for each row: GSM8K's in RISE's form, HotpotQA's unchanged."""
    questions = [*(problem.question for problem in problems()), *(row["question"] for row in HOTPOTQA)]
    return [[Message(role="user", content=question)] for question in questions]


def examples() -> list[Example]:
    """Two solutions of GSM8K and a trajectory of HotpotQA; the assistant's messages are trained."""
    solved = [
        Example(
            id=problem.id,
            messages=[
                Message(role="user", content=problem.question),
                Message(role="assistant", content=Gsm8k().demonstration(problem), weight=1.0),
            ],
        )
        for problem in problems()[:2]
    ]
    question, search, observation, finish = TRAJECTORY
    messages = [
        Message(role="user", content=question),
        Message(role="assistant", content=search, weight=1.0),
        Message(role="user", content=observation),
        Message(role="assistant", content=finish, weight=1.0),
    ]
    return [*solved, Example(id="hotpotqa", messages=messages)]
