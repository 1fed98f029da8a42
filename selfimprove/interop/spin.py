"""Exports SPIN's files to the original's formats, and scores any trajectory file (docs/spin.md, S42 to S44).

python -m selfimprove.interop.spin trajectories episodes.jsonl trajs.json
python -m selfimprove.interop.spin alpaca       trajs.json alpaca.json --mode self_play
python -m selfimprove.interop.spin preferences  run_a.json run_b.json dpo.json
python -m selfimprove.interop.spin pairs        pairs.jsonl rows.jsonl
python -m selfimprove.interop.spin score        trajs.json
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError
from selfimprove.core.publish import aside, write_text
from selfimprove.core.records import LARGEST, Message, Pair, mean_and_error, read_jsonl, write_rows
from selfimprove.methods.spin.convert import Mode, alpaca_row
from selfimprove.methods.spin.play import SpinEpisode
from selfimprove.methods.spin.prompts import CUE, RESPONSE, WRAPPER, alpaca
from selfimprove.methods.spin.trajectory import read_trajectories, to_json

SCORES = ("em", "f1", "reward")


def alpaca_rows(trajectories: Mapping[str, Any], mode: Mode, where: str, *, rewarded: bool) -> list[dict[str, str]]:
    """One row per trajectory, in the file's order; with ``rewarded``, only of those that earned the reward.

    Raises:
        UserError: a trajectory has no instruction and response markers (the message contains its task).
    """
    rows = []
    for key, entry in trajectories.items():
        if rewarded and entry.get("reward") != 1:
            continue
        try:
            rows.append(alpaca_row(entry["traj"], mode))
        except (ValueError, AttributeError):
            raise UserError(
                f"{where}, task {key}: the trajectory has no Alpaca wrapper; generate it with prompt.format: alpaca."
            ) from None
    return rows


def preferences(one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> list[dict[str, str]]:
    """Rows {prompt, chosen, rejected} of the tasks that are in both runs and that only one was rewarded for.

    Rewarded means a reward of 1 or true, not a part of it (docs/spin.md, S6). A task with a null reward was not scored
    and gives no row, nor does one with a blocked episode, or with one that has no round. The prompt has the wrapper;
    the terminal observation is dropped on both sides. The original's rows have the columns instruction, input, chosen
    and rejected, and keep that observation; its trainer then repeats the prompt in both responses.

    Raises:
        UserError: a trajectory has no wrapper.
    """
    rows = []
    for key in one:
        earned = [run.get(key, {}).get("reward") for run in (one, other)]
        if None in earned or (earned[0] == 1) == (earned[1] == 1):
            continue  # one run lacks the task, it was not scored, or both or neither were rewarded
        right, wrong = (one, other) if earned[0] == 1 else (other, one)
        (chosen,) = alpaca_rows({key: right[key]}, "self_play", where, rewarded=False)
        (rejected,) = alpaca_rows({key: wrong[key]}, "self_play", where, rewarded=False)
        if right[key].get("blocked") or wrong[key].get("blocked") or not rejected["output"].strip():
            continue
        rows.append(
            {"prompt": alpaca(chosen["instruction"]), "chosen": chosen["output"], "rejected": rejected["output"]}
        )
    return rows


def pair_row(pair: Pair) -> dict[str, Any]:
    """A pair as the original's message lists, text only; the prompt is the question without its wrapper.

    A trainer applies its own chat format to the rows; a remaining wrapper would be doubled.
    """
    flat = [message.content for message in pair.real[:1]] == [CUE]  # else chat turns, which have no wrapper
    text = joined(pair.prompt, flat)
    prompt = {"role": "user", "content": asked_in(text) if flat else text}
    return {
        side: [prompt, {"role": "assistant", "content": joined(messages, flat)}]
        for side, messages in (("real", pair.real), ("generated", pair.generated))
    }


def asked_in(prompt: str) -> str:
    """The question in a prompt of one text, including any worked examples before it, without wrapper or newline."""
    shots, wrapper, rest = prompt.rpartition(WRAPPER)
    return shots + rest.removesuffix(RESPONSE) if wrapper else prompt.removesuffix("\n")


def joined(messages: Sequence[Message], flat: bool) -> str:
    """Messages as one text: parts of a growing text (``flat``) are concatenated, turns of a chat start on new lines."""
    text = ""
    for before, message in zip([None, *messages], messages, strict=False):
        turn = not flat and before is not None and before.role != message.role
        apart = turn and text and message.content and not (text.endswith("\n") or message.content.startswith("\n"))
        text += f"\n{message.content}" if apart else message.content
    return text


def score_file(trajectories: Mapping[str, Any], requested: int) -> dict[str, Any]:
    """EM, F1 and reward over ``requested`` tasks, and how many of them are missing (these count as wrong).

    A metric that no entry has is left out: the original writes no F1 for StrategyQA and MMLU.

    Raises:
        UserError: the file has more tasks than requested, a score is neither a finite number nor null, or there is
            none.
    """
    missing = requested - len(trajectories)
    if missing < 0:
        raise UserError(f"the file has {len(trajectories)} episodes, but {requested} are requested; raise --requested.")
    for key, entry in trajectories.items():
        if not isinstance(entry, Mapping):
            raise UserError(f"task {key}: the entry is not an object; fix or delete it.")

    def share(field: str) -> dict[str, float | int]:
        return mean_and_error([*(_mark(key, entry, field) for key, entry in trajectories.items()), *[0.0] * missing])

    fields = [field for field in SCORES if not trajectories or any(field in entry for entry in trajectories.values())]
    if not fields:
        raise UserError(
            f"no episode of the file has a score ({', '.join(SCORES)}); name the file of a run with an evaluation."
        )
    return {**{field: share(field) for field in fields}, "missing": missing}


def _mark(key: str, entry: Mapping[str, Any], field: str) -> float:
    """One score of an entry; 0 if it was not scored."""
    value = entry.get(field)
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise UserError(f"task {key}: {field!r} must be true, false, null or a finite number; fix or delete the entry.")
    return float(value)


def as_json(value: Any, indent: int = 2) -> str:
    """JSON in the original's style: keys in insertion order, ASCII, no newline at the end."""
    return json.dumps(value, indent=indent, allow_nan=False)


app = typer.Typer(add_completion=False, help="SPIN's files in the original's formats.", no_args_is_help=True)


@app.command("trajectories")
def export_trajectories(
    source: Annotated[Path, typer.Argument(help="episodes.jsonl")],
    target: Annotated[Path, typer.Argument(help="output file (trajectories)")],
    run: Annotated[int, typer.Option(help="run of each question to export")] = 0,
) -> None:
    """Episodes to the trajectory JSON."""
    played = read_jsonl(source, SpinEpisode)
    episodes = [episode for episode in played if episode.run == run]
    if not episodes:
        last = max(episode.run for episode in played)
        raise UserError(f"{source} has no episodes of run {run}; set --run to at most {last}.")
    write_text(target, as_json(to_json(episodes)))


@app.command("alpaca")
def export_alpaca(
    source: Annotated[Path, typer.Argument(help="a trajectory file")],
    target: Annotated[Path, typer.Argument(help="output file: rows {instruction, input, output}")],
    mode: Annotated[Mode, typer.Option(help="parity: the original's bytes; self_play: without the terminal line")],
    rewarded: Annotated[bool, typer.Option(help="only trajectories that earned the reward")] = False,
) -> None:
    """Trajectories to Alpaca rows."""
    rows = alpaca_rows(read_trajectories(source), mode, str(source), rewarded=rewarded)
    if not rows:
        raise UserError(f"{source} contains no trajectory that earned the reward; name another, or omit --rewarded.")
    write_text(target, as_json(rows, indent=4))


@app.command("preferences")
def export_preferences(
    one: Annotated[Path, typer.Argument(help="a trajectory file")],
    other: Annotated[Path, typer.Argument(help="a trajectory file on the same tasks")],
    target: Annotated[Path, typer.Argument(help="output file: rows {prompt, chosen, rejected}")],
) -> None:
    """Two runs to outcome pairs for DPO."""
    rows = preferences(read_trajectories(one), read_trajectories(other), f"{one} or {other}")
    if not rows:
        raise UserError(f"{one} and {other} have no task with different rewards; name two runs of the same tasks.")
    write_text(target, as_json(rows))


@app.command("pairs")
def export_pairs(
    source: Annotated[Path, typer.Argument(help="pairs.jsonl")],
    target: Annotated[Path, typer.Argument(help="output file (JSONL): rows {real, generated}")],
) -> None:
    """Pairs to the original's message lists."""
    rows = [pair_row(pair) for pair in read_jsonl(source, Pair)]
    with aside(target) as part:
        write_rows(part, rows)


@app.command("score")
def score(
    source: Annotated[Path, typer.Argument(help="a trajectory file")],
    requested: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="number of requested tasks; default: those in the file")
    ] = None,
) -> None:
    """EM and F1 of a trajectory file over the requested tasks; absent ones count as wrong."""
    trajectories = read_trajectories(source)
    typer.echo(as_json(score_file(trajectories, requested or len(trajectories))))


if __name__ == "__main__":
    run(app)
