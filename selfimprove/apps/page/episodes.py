"""Conversion of every method's episodes and training examples to one format, which the page's reader displays.

A record of the page::

    {"i": "textcraft-87", "t": "textcraft-87", "s": "solved", "r": 1.0, "u": "", "e": null, "gold": "…",
     "m": [{"r": "user", "p": [["Crafting commands: …", 0, null]]},
           {"r": "assistant", "p": [["Thought: … Action: get 2 grape", 0, [294, 30, …]]], "reward": 0.0, "ok": true},
           {"r": "environment", "p": [["Got 2 grape", 0, null]], "v": {"carries": {"grape": 2}}}]}

``i`` id, ``t`` task, ``s`` status, ``r`` reward, ``u`` run or curriculum level. A message's parts ``p`` are
[text, weight in training, token ids], followed by the tokens' log-probabilities after and before training if they were
computed. ``v`` is a scene (``scenes.py``). ``n``, ``x`` and ``z`` count turns, invalid actions and misread maps: a
reflection with ``misread`` gives another place than the taxi's map (``envs/taxi/places.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.apps.page import scenes
from selfimprove.apps.page.lines import check_line
from selfimprove.envs.plans import RULE
from selfimprove.envs.taxi.places import misreads

if TYPE_CHECKING:
    from selfimprove.apps.page.run import Run  # needs packages that inspect_ai's environment lacks

Json = dict[str, Any]

PARALLEL, BEGUN = "parallel", "from a bad beginning"
"""The second runs of evaluations: RISE's has one turn of several attempts, Agent-R's continues from given replies."""

STARTS = {"given": BEGUN, "actor": "from the start"}
"""Agent-R's evaluation: the model of an episode's first turn (``agent_r.play.GIVEN``, ``ACTOR``) -> the run's name."""

CUT = 100_000
"""The page truncates longer texts, with a note."""


def to_page(record: Mapping[str, Any], number: int = 0) -> Json:
    """Convert a line of any method's episodes, trajectories or training examples.

    Raises:
        ValueError: the line is of no known kind, not valid, or an iteration of a log, which has several episodes.
    """
    check_line(record)
    if "log" in record:
        raise ValueError("an iteration of a log")
    return _to_page(record, number)


def _to_page(record: Mapping[str, Any], number: int) -> Json:
    if "turns" in record:
        return _turns(record)
    if "rounds" in record:
        return _rounds(record)
    if "steps" in record:
        return _steps(record)
    return _example(record, number)


def _turns(record: Mapping[str, Any]) -> Json:
    """RISE and Agent-R: ``core.records.Episode``."""
    messages = _opening(record["prompt"])
    # A RISE plan is a sequence of actions, from which no scene can be drawn.
    planned = RULE in record["query"]
    seen = None if planned else scenes.Inventory() if record["env"] == "textcraft" else scenes.Seen()
    if seen:
        for message in messages:
            message |= _scene(seen.text(message["p"][0][0]))
    invalid = 0
    rewards = []
    for turn in record["turns"]:
        attempt = turn["attempts"][turn.get("chosen", 0)]
        rewards.append(attempt.get("reward"))
        valid = attempt.get("valid", True)
        invalid += not valid
        others = [
            [clip(one["text"]), one.get("reward")] for place, one in enumerate(turn["attempts"])
            if place != turn.get("chosen", 0)
        ]  # fmt: skip
        said: Json = {
            "r": "assistant", "p": [[clip(attempt["text"]), 0, attempt.get("token_ids")]],
            "reward": attempt.get("reward"), "by": turn["model"],
        }  # fmt: skip
        said |= {} if valid else {"ok": False}
        said |= {"answer": clip(attempt["answer"])} if attempt.get("answer") is not None else {}
        said |= {"others": others} if others else {}
        said |= {"cut": True} if attempt.get("finish") == "length" else {}
        answer: Json = {"r": "environment", "p": [[clip(turn.get("observation", "")), 0, None]]}
        if seen:
            answer |= _scene(seen.step(attempt.get("answer") or "", turn.get("observation", "")))
        messages += [said, answer]
    scored = [reward for reward in rewards if reward is not None]
    run = record.get("run") or (STARTS.get(record["turns"][0]["model"], "") if record["turns"] else "")
    known = re.match(r"(.+)-\d+$", record["id"]) if record["env"] in ("textcraft", "webshop", "sciworld") else None
    return _record(
        record, messages, task=record["id"], reward=scored[-1] if scored else None, invalid=invalid,
        turns=len(record["turns"]), run=run, text=record["query"], gold=record.get("gold", ""),
        kind=known[1] if known else record["env"],
    )  # fmt: skip


def _rounds(record: Mapping[str, Any]) -> Json:
    """SPIN: ``methods.spin.play.SpinEpisode``."""
    messages = _opening(record["prompt"]) + _joined(record.get("messages", []))
    tools = iter(record.get("rounds", []))
    for message in messages:
        if message["r"] == "assistant" and (entry := next(tools, None)):
            message |= {"tool": clip(str(entry["tool"])), "argument": clip(entry["argument"])} if entry["tool"] else {}
            message |= {"ok": False} if entry.get("failed") or not entry["tool"] else {}
    run = record.get("run", 0)
    return _record(
        record, messages, task=record["id"].removesuffix(f"#{run}"), reward=record.get("reward"),
        invalid=sum(bool(entry.get("failed")) for entry in record.get("rounds", [])),
        turns=len(record.get("rounds", [])), run=f"run {run}" if run else "", text=record["question"],
        gold=record.get("gold", ""), kind=record.get("kind", ""), answer=record.get("answer", ""),
    )  # fmt: skip


def _steps(record: Mapping[str, Any]) -> Json:
    """Reflect-RL: ``episode.RLEpisode`` and the teacher's trajectories."""
    messages, counts = _walked(record["steps"])
    cost = record.get("cost", sum(step.get("cost", 0.0) for step in record["steps"]))
    level = record.get("level", "")
    run = " ".join(str(part) for part in (level, record.get("info"), record.get("episode")) if part not in (None, ""))
    task = f"{record['env']}-{record['task_id']}"
    return _record(
        record, messages, task=task, reward=None if cost is None else -cost, **counts, run=run,
        text=f"{record['env']} {record['task_id']}", gold="", kind=record["env"],
    )  # fmt: skip


def _logged(iteration: Mapping[str, Any]) -> Iterator[Json]:
    """Reflect-RL: the episodes logged in an iteration of reinforcement learning (docs/reflect-rl.md, L48)."""
    for entry in iteration["log"]:
        steps = [{**step, "label": step["generation"], "togo": step["Q_value"]} for step in entry["detail"]]
        for step in steps:
            listed = re.search(rf"^Action {re.escape(step['label'])}: (.+)$", step["prompt"], re.MULTILINE)
            step["command"] = listed[1] if listed else ""
        messages, counts = _walked(steps)
        name = f"iteration {iteration['iter']}"
        yield _record(
            {"id": f"{name}, episode {entry['batch'] + 1}", "status": "logged"}, messages, task=name,
            reward=-sum(step["cost"] for step in steps), **counts, run=iteration["level"],
            text=f"success {iteration['succ']:.2f} over the iteration" if iteration["succ"] is not None else "",
        )  # fmt: skip


def _walked(steps: Sequence[Mapping[str, Any]]) -> tuple[list[Json], dict[str, int]]:
    """Messages of Reflect-RL's steps, and the numbers of turns, invalid actions and misread maps."""
    messages: list[Json] = []
    counts = {"turns": len(steps), "invalid": 0, "misread": 0}
    for step in steps:
        state = step["prompt"] if "prompt" in step else step["pre"] + step["post"]
        shown: Json = {"r": "environment", "p": [[clip(state), 0, None]]}
        messages.append(shown | _scene(scenes.Seen().text(state)))
        if step.get("reflection"):
            reflected: Json = {"r": "reflector", "p": [[clip(step["reflection"]), 0, None]]}
            if misreads(scenes.last_grid(state), step["reflection"]):
                counts["misread"] += 1
                reflected["misread"] = True
            messages.append(reflected)
        valid = step.get("valid", True)
        counts["invalid"] += not valid
        command = step.get("command")
        said: Json = {"r": "assistant", "p": [[clip(step["label"]), 0, None]]}
        said |= {"answer": clip(command)} if command else {}
        said |= {} if valid else {"ok": False}
        said |= {key: step[key] for key in ("cost", "togo", "logprob", "entropy") if step.get(key) is not None}
        messages.append(said)
    return messages, counts


def _example(record: Mapping[str, Any], number: int) -> Json:
    """A training example: messages with their weights."""
    messages = _joined(record["messages"])
    seen = scenes.Seen()
    planned = any(RULE in message["p"][0][0] for message in messages)
    for message in messages:
        if message["r"] != "assistant" and not planned:
            message |= _scene(seen.text(message["p"][0][0]))
    text = next((part[0] for message in messages if message["r"] != "assistant" for part in message["p"]), "")
    task = re.split(r":|-(?:positive|negative)", record.get("source") or record["id"])[0]
    return _record(
        {**record, "status": "example"}, messages, task=task, reward=None, invalid=0,
        turns=sum(message["r"] == "assistant" for message in messages), run="", text=text[-400:], gold="",
        kind=re.sub(r"(?:[_-]|(?<!\d))\d+$", "", record["id"].split("-")[0]) if record["id"][:1].isalpha() else "",
        place=number,
    )  # fmt: skip


def _record(
    record: Mapping[str, Any], messages: list[Json], *, task: str, reward: float | None, run: str, turns: int,
    invalid: int, text: str, misread: int = 0, **rest: Any,
) -> Json:  # fmt: skip
    """The page's record of a line; of ``rest``, only keys with a value are kept."""
    found: Json = {
        "i": record["id"], "t": task, "s": record.get("status", "unsolved"), "r": reward, "u": run, "n": turns,
        "x": invalid, "z": misread, "m": messages, "q": clip(text),
    }  # fmt: skip
    found |= {"e": clip(str(record["error"]))} if record.get("error") else {}
    found |= {"src": clip(str(record["source"]))} if record.get("source") else {}
    return found | {key: clip(value) if isinstance(value, str) else value for key, value in rest.items() if value}


def _opening(prompt: list[Mapping[str, Any]]) -> list[Json]:
    return [{"r": one["role"], "p": [[clip(one["content"]), 0, None]], "opening": True} for one in prompt]


def _scene(scene: Json | None) -> Json:
    return {} if scene is None else {"v": scene}


def _joined(messages: list[Mapping[str, Any]]) -> list[Json]:
    """Messages; consecutive assistant messages become parts of one message."""
    found: list[Json] = []
    for one in messages:
        part = [clip(one["content"]), one.get("weight", 0), one.get("token_ids")]
        if found and one["role"] == found[-1]["r"] == "assistant":
            found[-1]["p"].append(part)
        else:
            found.append({"r": one["role"], "p": [part]})
    return found


def clip(text: str) -> str:
    """The text as valid UTF-8, truncated to ``CUT`` characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= CUT else f"{whole[:CUT]} … [truncated: {len(whole) - CUT:,} more characters]"


def lines(run: Run, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, line) of every episode or example, or iteration of a log; other lines are reported and skipped."""
    for number, line, _ in run.records(path, "an episode or example of this project", check_line):
        yield number, line


def read(run: Run, path: Path) -> Iterator[tuple[int, Mapping[str, Any], Json]]:
    """(line number, line, record) of every episode or example; other lines are reported and skipped.

    A line of a reinforcement learning log contains several episodes.
    """
    for number, line in lines(run, path):
        for record in _logged(line) if "log" in line else [_to_page(line, number)]:
            yield number, line, record
