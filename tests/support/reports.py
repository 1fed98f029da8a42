"""A small run's results, written as the stages write them, for tests of the report page."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from selfimprove.core.journal import Journal
from selfimprove.core.outcomes import Outcome, average, compare
from selfimprove.core.records import Attempt, Episode, Example, Message, Pair, Turn, write_jsonl, write_rows
from selfimprove.core.tracking import TensorBoard
from selfimprove.methods.agent_r.formats import pair_row
from selfimprove.methods.agent_r.judge_prompt import Judgement
from selfimprove.methods.agent_r.revise import splice
from selfimprove.methods.agent_r.selection import LeafPair
from selfimprove.methods.agent_r.tree import Node, Tree
from selfimprove.pipeline.warm import born

HOSTILE = {
    "script": "<script>window.hacked = 1</script></script><!-- <script>",
    "handler": '"><img src=x onerror="window.hacked=1"><svg onload=window.hacked=1>',
    "entity": "&lt;b&gt; &amp; {{ 7 * 7 }} {% raw %} ${7*7}",
    "bidi": "left \u202e thgir \u2066 isolate \u2069\u200b",
    "invisible": "soft\u00adhyphen \u2062 \u180e tag \U000e0041",
    "terminal": "\x1b[31mred\x1b[0m \x07 \x00 bell",
    "chunk end": '");window.hacked=1;chunk("x',
    "link": "javascript:window.hacked=1",
}
"""Texts with which a model's output might break out of the page."""

ROWS = ("base", "more_sft", "iter1")


def attempt(text: str, reward: float) -> Attempt:
    return Attempt(text=text, reward=reward, answer=text[-2:], token_ids=[1, 2, 3], finish="stop")


def rise_episode(number: int, solved: bool, text: str = "1 + 1 = 2", turns: int = 2) -> Episode:
    rewards = [0.0] * (turns - 1) + [float(solved)]
    return Episode(
        id=f"problem-{number}", env="gsm8k", query=f"How many apples are {number} apples?", gold=f"#### {number}",
        prompt=[Message(role="user", content=f"How many apples are {number} apples?")],
        turns=[Turn(model="student", attempts=[attempt(text, r)], chosen=0, observation="Try again.") for r in rewards],
        status="solved" if solved else "unsolved", seed=f"1/{number}", run="sequential",
    )  # fmt: skip


def rise_row(number: int, *, solved: bool) -> str:
    """A line of an episodes file, built quickly."""
    words = f"How many apples are {number} apples?"
    said = f'{{"text": "1 + 1 = 2 apples.", "reward": {float(solved)}, "token_ids": [1, 2, 3, 4], "finish": "stop"}}'
    turn = f'{{"model": "student", "attempts": [{said}], "chosen": 0, "observation": "Well."}}'
    return (
        f'{{"id": "problem-{number}", "env": "gsm8k", "query": "{words}", "gold": "#### 1", "prompt": '
        f'[{{"role": "user", "content": "{words}"}}], "turns": [{turn}], '
        f'"status": "{"solved" if solved else "unsolved"}", "seed": "1/{number}", "run": "sequential"}}\n'
    )


def write_rise(
    root: Path, count: int = 12, texts: Mapping[int, str] | None = None, rows: Sequence[str] = ROWS, query: str = "",
    examples: int = 5,
) -> None:  # fmt: skip
    """Write rows that solve a third, a half and two thirds of ``count`` problems, their summary, and training examples.

    The third row does not solve problem 3, which the others solve; the last problem is blocked in every row.
    ``texts``: the model's answer to each problem; ``query``: text prepended to every problem.
    """
    said = texts or {}
    outcomes: dict[str, list[Outcome]] = {}
    summary: dict[str, Any] = {
        "columns": ["m1@t1", "m1@t2"], "gains": [], "rates": {}, "note": "", "order": list(rows), "solid": ["iter1"],
        "rows": {}, "last": rows[-1], "headline": "m1@t2",
    }  # fmt: skip
    for place, row in enumerate(rows):
        folder = root / "results" / "rise" / row
        folder.mkdir(parents=True)
        share = (1 / 3, 1 / 2, 2 / 3)[place]
        solved = [number < share * count and not (number == 3 and place == 2) for number in range(count)]
        episodes = [rise_episode(n, ok, said.get(n, "1 + 1 = 2")) for n, ok in enumerate(solved)]
        for one in episodes:
            one.query = query + one.query
        episodes[-1].status, episodes[-1].error = "blocked", "the engine failed"
        write_jsonl(folder / "episodes.jsonl", episodes)
        outcomes[row] = [
            Outcome(id=f"problem-{n}", values={"m1@t1": 0.0, "m1@t2": float(ok)}) for n, ok in enumerate(solved)
        ]
        write_jsonl(folder / "outcomes.jsonl", outcomes[row])
        metrics = average(outcomes[row])
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "train.json").write_text(json.dumps({"real_tokens": 1000, "steps": 10}))
        (folder / "loss.csv").write_text("step,loss\n1,2.5\n2,1.5\n3,1.0\n")
        summary["rows"][row] = {
            "what": row, "metrics": metrics, "training_tokens": 1000, "training_steps": 10
        }  # fmt: skip
    summary["last_minus"] = {row: compare(outcomes[rows[-1]], outcomes[row]) for row in rows[:-1]}
    points = [
        {"row": row, "turn": turn, "accuracy": summary["rows"][row]["metrics"][f"m1@t{turn}"]["mean"], "se": 0.1}
        for row in rows
        for turn in (1, 2)
    ]
    summary["curve"] = {"x": "turn", "y": "attempt correct", "title": "accuracy by turn", "top": 1, "points": points}
    (root / "results" / "summary").mkdir(parents=True, exist_ok=True)
    (root / "results" / "summary" / "rise.json").write_text(json.dumps(summary))
    tasks = root / "data" / "rise" / "tasks"
    tasks.mkdir(parents=True)
    write_rows(tasks / "test.jsonl", [{"id": f"problem-{n}", "question": "?", "answer": "!"} for n in range(count)])
    train = root / "data" / "rise" / "iter1" / "train"
    train.mkdir(parents=True)
    write_jsonl(train / "examples.jsonl", [_example(n) for n in range(examples)])


def _example(number: int) -> Example:
    messages = [
        Message(role="user", content="How many?"),
        Message(role="assistant", content="wrong", token_ids=[4], finish="stop"),
        Message(role="user", content="Try again."),
        Message(role="assistant", content="right", token_ids=[5], finish="stop", weight=1.0 + number),
    ]
    return Example(id=f"identity_{number}", messages=messages, source=f"problem-{number}")


def rl_state(level: str, place: int) -> str:
    """A prompt of Reflect-RL's taxi."""
    grid = "\n".join("|" + ("T" if row == place else " ") + ": : : :P|" for row in range(5))
    return f"{level}\n+---------+\n{grid}\n+---------+\nThe actions are:\nAction 0: move south\nAction 1: move east\n"


def write_reinforcement(root: Path, iterations: int = 4) -> None:
    """Write Reflect-RL's last row, evaluated and reinforced at two levels, with two logged episodes per iteration."""
    folder = root / "results" / "reflect_rl" / "reflect_rl"
    folder.mkdir(parents=True)
    estimate = {"mean": 0.5, "se": 0.1, "n": 4}
    levels = {level: {"success": estimate, "cost": estimate, "episodes": 4} for level in ("pickup", "full")}
    (folder / "metrics.json").write_text(json.dumps({"success": estimate, "cost": estimate, "levels": levels}))
    write_rows(folder / "outcomes.jsonl", [{"id": "taxi-1", "values": {"success": 0.5, "cost": 0.5}}])
    step = {"logprob": -0.1, "entropy": 0.2, "cost": 0.05, "Q_value": -0.9, "generation": "1"}
    rows = []
    for number in range(1, iterations + 1):
        level = "pickup" if 2 * number <= iterations else "full"
        details = [[{**step, "step": n, "prompt": rl_state(level, n)} for n in range(number)] for _ in range(2)]
        log = [{"batch": batch, "detail": detail} for batch, detail in enumerate(details)]
        rows.append({"iter": number, "level": level, "succ": number / 10, "cost": 0.1, "loss": [0.1, None], "log": log})
    write_rows(folder / "log.jsonl", rows)


def make_tree(branches: int = 3, depth: int = 4, number: int = 0, text: str = "get 1 oak log") -> Tree:
    """A tree of ``branches`` paths of ``depth`` steps that split at the root; only the last path is rewarded."""
    nodes = [Node(visits=branches, value=1.0)]
    for branch in range(branches):
        parent, reward = 0, float(branch == branches - 1)
        for step in range(depth):
            nodes[parent].children.append(len(nodes))
            last = step == depth - 1
            action = f"{text} {branch}.{step}"
            reply = f"Thought: so.\nAction: {action}"
            node = Node(
                parent=parent, reply=reply, action=action, observation=f"Got {branch}", depth=step + 1, visits=1
            )
            node.value, node.reward, node.terminal, node.done = reward, reward if last else 0.0, last, last
            nodes.append(node)
            parent = len(nodes) - 1
    said = [("system", "Help."), ("user", "Craft."), ("assistant", "Ok."), ("user", f"Goal {number}: craft a stick.")]
    prompt = [Message.model_validate({"role": role, "content": text}) for role, text in said]
    name = f"textcraft-{number}"
    return Tree(
        id=name, env="textcraft", task_id=number, prompt=prompt, nodes=nodes, seed=f"1/{name}", status="solved"
    )  # fmt: skip


def write_trees(root: Path, trees: Sequence[Tree]) -> None:
    """Write trees of iteration 1 with a revision trajectory each: two steps of the first branch, then the last one."""
    folder = root / "data" / "agent_r" / "iter1"
    (folder / "train").mkdir(parents=True)
    (root / "results" / "agent_r" / "iter1").mkdir(parents=True)
    write_jsonl(folder / "trees.jsonl", trees)
    rows = []
    for tree in trees:
        leaves = tree.leaves()
        pair = LeafPair(good=leaves[-1], bad=leaves[0])
        walked = tree.path(pair.bad)[:2]
        judged = [Judgement(verdict="good", text="It helps."), Judgement(verdict="bad", text="It harms.")]
        messages = splice(tree, tree.path(pair.good), walked, "I chose badly.")
        rows.append(pair_row(tree, pair, walked, judged, messages, revise=True))
    write_rows(folder / "train" / "textcraft_centric.jsonl", rows)


def write_pairs(root: Path, sides: Sequence[tuple[str, str]]) -> None:
    """Write SPIN's pairs of iteration 1 from (real, generated) texts."""
    folder = root / "data" / "spin" / "iter1" / "train"
    folder.mkdir(parents=True)
    (root / "results" / "spin" / "iter1").mkdir(parents=True)
    pairs = [
        Pair(
            id=f"iter0-question-{number}", prompt=[Message(role="user", content=f"Question {number}?")],
            real=[Message(role="assistant", content=real, weight=1.0)],
            generated=[Message(role="assistant", content=generated, weight=1.0)], source="iter0",
        )
        for number, (real, generated) in enumerate(sides)
    ]  # fmt: skip
    write_jsonl(folder / "pairs.jsonl", pairs)


def write_scratch(root: Path) -> None:
    """Write the scratch folder of a run in which one stage is running, in this process."""
    scratch = root / ".scratch"
    for name in ("locks", "logs", "timing", "stages/rise-finetune-iter1/key"):
        (scratch / name).mkdir(parents=True)
    owner = {"pid": os.getpid(), "created": born(psutil.Process()), "parents": []}
    (scratch / "locks/rise-finetune-iter1.owner.json").write_text(json.dumps(owner))
    dead = {**owner, "created": 1.0}
    (scratch / "locks/rise-evaluate-base.owner.json").write_text(json.dumps(dead))
    (scratch / "locks/torn.owner.json").write_text("{")
    log = "--- yesterday\nrise-finetune@iter1: 900/900\n--- today\n"
    log += "rise-finetune@iter1: 3/8 (1.0/s) \x1b[31mloss 0.5\x1b[0m\n"
    (scratch / "logs/rise-finetune@iter1.log").write_text(log)
    (scratch / "timing/rise-data.json").write_text('{"seconds": 2.5}')
    with Journal(scratch / "stages/rise-finetune-iter1/key/x.journal") as journal:
        journal.add("one", [{"text": "<b>first</b>"}])
        journal.add("two", {"turns": [{"text": "second"}]})
    events = TensorBoard("rise-finetune@iter1", scratch / "tensorboard/rise-finetune@iter1", 0)
    events.log(1, {"loss": 2.0})
    events.log(2, {"loss": 1.0})
    events.close()


def chunk(out: Path, name: str) -> Any:
    """What the page's script reads from a chunk."""
    text = (out / "data" / f"{name}.js").read_text(encoding="ascii")
    found = re.fullmatch(r'chunk\("([\w-]+)","([A-Za-z0-9+/=]*)"\);\n', text)
    assert found is not None
    assert found[1] == name
    return json.loads(gzip.decompress(base64.b64decode(found[2])))
