"""Pairs for the page: two continuations of one prompt, with marks on the words found on only one side.

A pair of the page::

    {"i": "iter0-encyclopedia-19c2", "q": "…", "same": false, "margin": [-3.2, 8.1],
     "real": [["assistant", [[0, "Thought: I search for "], [1, "the birthplace"], …]], …], "generated": […]}

A piece is [mark, text]; the mark is 1 if only this side has the text, else 0. ``margin``: log p(real) −
log p(generated), before and after training, if it was computed.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import Any

from selfimprove.apps.page.chunks import write_chunk, write_records
from selfimprove.apps.page.episodes import clip
from selfimprove.apps.page.library import counted
from selfimprove.apps.page.lines import Pair, PairLog, Trajectory
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.words import method_name, row_name

WORDS = 3000
"""Sides with more words are shown without marks, because comparing them would take too long."""

Json = dict[str, Any]
Said = tuple[str, str]
"""Role and text."""

TRAINED = ("pairs", "outcome")
"""Names of the files of pairs that a model is trained on; only these have margins."""

SIDES = {
    "pairs": ("Expert", "Opponent"), "outcome": ("Rewarded", "Not rewarded"), "negatives": ("Positive", "Negative"),
}  # fmt: skip
"""What the two sides of a set are called, by the last part of its key; of Agent-R's logs, good and bad path."""

Margin = Callable[[str, str, Mapping[str, Any], int], list[float] | None]
"""(method, row, pair, number of lines in its file) -> the pair's margins before and after training."""


def write_pairs(
    run: Run, folder: Path, margin: Margin | None = None, trained: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Write every pair, one file per set, and an index of each set; returns (key, label) of the non-empty sets.

    Args:
        trained: file -> the row trained on it, whose margins are computed (``graph.trained_on``).
    """
    sets: list[dict[str, Any]] = []
    for method in run.methods:
        for key, label, source in _sources(run, method, margin, trained or {}):
            found: dict[str, list[Any]] = {"ids": [], "texts": [], "margins": []}
            same: list[str] = []

            def records(source: Any = source, found: Any = found, same: Any = same) -> Iterator[Json]:
                for pair in source():
                    found["ids"].append(pair["i"])
                    found["texts"].append(_gist(pair["q"]))
                    found["margins"].append(pair.get("margin"))
                    same.append("i" if pair["same"] else "d")
                    yield pair

            name = f"pairs-{len(sets)}"
            starts = write_records(folder, name, records())
            if same:
                write_chunk(folder, f"{name}-index", {"starts": starts, "same": "".join(same), **found})
                sides = SIDES.get(key.rpartition("/")[2], ("Good path", "Bad path"))
                sets.append({"key": key, "label": label, "file": name, "sides": sides})
    write_chunk(folder, "pairs-index", {"sets": sets})
    return [(str(one["key"]), str(one["label"])) for one in sets]


def _sources(
    run: Run, method: str, margin: Margin | None, trained: Mapping[str, str]
) -> Iterator[tuple[str, str, Callable[[], Iterator[Json]]]]:
    data = run.root / "data" / method
    for row in run.rows(method):
        for path in sorted((data / row / "train").glob("*.jsonl")):
            if path.stem in TRAINED:
                learner = trained.get(run.name(path), "") if trained else row
                what = "training pairs" if learner else f"{path.stem} (not used in training)"
                label = f"{row_name(method, learner or row)}: {what}"
                read = _of_pairs(run, method, learner, path, margin if learner else None)
                yield f"{method}/{row}/{path.stem}", label, read
            elif path.stem.endswith("_centric"):
                label = f"{row_name(method, row)}: good and bad paths, {path.stem.removesuffix('_centric')}"
                yield f"{method}/{row}/{path.stem}", label, _of_logs(run, path)
    path = data / "trajectories.jsonl"
    if path.is_file():
        label = f"{method_name(method)}: teacher's positive and negative trajectories"
        yield f"{method}/negatives", label, lambda: _of_trajectories(run, path)


def _of_pairs(run: Run, method: str, row: str, path: Path, margin: Margin | None) -> Callable[[], Iterator[Json]]:
    def read() -> Iterator[Json]:
        total = counted(path)
        for _, line, _ in run.records(path, "a pair", Pair.model_validate):
            prompt = "\n".join(one["content"] for one in line["prompt"])
            pair = to_page(line["id"], prompt, _said(line["real"]), _said(line["generated"]))
            if margin is not None and (values := margin(method, row, line, total)) is not None:
                pair["margin"] = values
            yield pair

    return read


def _of_logs(run: Run, path: Path) -> Callable[[], Iterator[Json]]:
    """Agent-R's pair logs: the parts of both paths after the opening."""

    def read() -> Iterator[Json]:
        for number, line, _ in run.records(path, "a pair log", PairLog.model_validate):
            good, bad, prompt = _said(line["high_log"]), _said(line["low_log"]), line["task_description"]
            opened = next((place for place, one in enumerate(good) if one[1] == prompt), -1) + 1
            yield to_page(f"task {line.get('task_num')}, line {number}", prompt, good[opened:], bad[opened:])

    return read


def _of_trajectories(run: Run, path: Path) -> Iterator[Json]:
    """Reflect-RL's negatives, each paired with the positive trajectory from the same start, if there is one."""
    right: dict[tuple[Any, Any], list[Said]] = {}
    wrong: dict[tuple[Any, Any], list[tuple[str, list[Said]]]] = defaultdict(list)
    for _, line, _ in run.records(path, "a trajectory", Trajectory.model_validate):
        start = (line["task_id"], line.get("level"))
        steps = [
            part for step in line["steps"]
            for part in (("reflector", step.get("reflection") or ""), ("assistant", step.get("command") or ""))
        ]  # fmt: skip
        if line.get("info") == "positive":
            right[start] = steps
        else:
            wrong[start].append((line["id"], steps))
    for start, several in wrong.items():
        for name, steps in several:
            yield to_page(name, f"start {start[0]}, {start[1]}", right.get(start, []), steps)


def _gist(prompt: str) -> str:
    """The last line of a prompt that is neither blank nor a heading of the template."""
    lines = [line for line in prompt.splitlines() if line.strip() and not line.startswith("#")]
    return lines[-1][-160:] if lines else ""


def to_page(name: str, prompt: str, real: Sequence[Said], generated: Sequence[Said]) -> Json:
    """Convert one pair, marking the words that differ."""
    left, right = [_words(side) for side in (real, generated)]
    marks: tuple[list[int], list[int]] = ([0] * len(left), [0] * len(right))
    if max(len(left), len(right)) <= WORDS:
        ours, theirs = [word for _, word in left], [word for _, word in right]
        shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(ours, theirs, strict=False)))
        matcher = SequenceMatcher(None, ours[shared:], theirs[shared:], autojunk=False)
        for tag, *places in matcher.get_opcodes():
            if tag != "equal":
                a, b, c, d = (place + shared for place in places)
                marks[0][a:b], marks[1][c:d] = [1] * (b - a), [1] * (d - c)
    same = [text for _, text in real] == [text for _, text in generated]
    shown = [
        _pieces(side, words, mark) for side, words, mark in zip((real, generated), (left, right), marks, strict=True)
    ]
    return {"i": clip(name), "q": clip(prompt), "same": same, "real": shown[0], "generated": shown[1]}


def _words(side: Sequence[Said]) -> list[tuple[int, str]]:
    """(message number, word or whitespace) for each token of a side."""
    return [(place, word) for place, (_, text) in enumerate(side) for word in re.findall(r"\s+|\w+|[^\w\s]", text)]


def _pieces(side: Sequence[Said], words: Sequence[tuple[int, str]], marks: Sequence[int]) -> list[list[Any]]:
    pieces: list[list[Any]] = [[role, []] for role, _ in side]
    for (place, word), mark in zip(words, marks, strict=True):
        held = pieces[place][1]
        if held and held[-1][0] == mark:
            held[-1][1] += word
        else:
            held.append([mark, word])
    return pieces


def _said(messages: Sequence[Mapping[str, Any]]) -> list[Said]:
    """Messages with consecutive ones of one role merged; the role ``user`` becomes ``environment``."""
    found: list[Said] = []
    for one in messages:
        role, text = "environment" if one["role"] == "user" else one["role"], clip(one["content"])
        if found and found[-1][0] == role:
            found[-1] = (role, found[-1][1] + text)
        else:
            found.append((role, text))
    return found
