"""Exports episodes and examples to the released code's formats, and imports its logs (docs/rise.md, R36).

    python -m selfimprove.interop.rise log        episodes.jsonl  5_turns.json --api teacher
    python -m selfimprove.interop.rise dataset    examples.jsonl  dataset.json
    python -m selfimprove.interop.rise import-log 5_turns.json    episodes.jsonl --env gsm8k

The log is one object keyed by task index; besides the original's fields it contains ``id, env, seed, model, answers,
status, omitted, run``. It stores neither token ids nor ``finish``: imported attempts are re-tokenised for training, and
those that the token limit cut get an end-of-turn token, as in the original.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, fault
from selfimprove.core.publish import aside, write_json, write_text
from selfimprove.core.records import (
    Attempt,
    Episode,
    Example,
    Message,
    Record,
    Status,
    Turn,
    load_json,
    read_jsonl,
    write_jsonl,
)
from selfimprove.envs.math.problem_files import Ids
from selfimprove.envs.math.world import make_env
from selfimprove.methods.rise.prompts import feedback, opening

BLOCKED = "blocked"
"""The action that the original logs when a client failed, with reward null."""

_ROLES_FROM = {"user": "human", "system": "human", "assistant": "gpt"}


def to_log(episodes: Sequence[Episode], api: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The original's log object: one entry per episode, keyed by its index as a string. ``api``: see ``log_entry``."""
    return {str(index): log_entry(index, episode, api) for index, episode in enumerate(episodes)}


def log_entry(index: int, episode: Episode, api: Collection[str] = ()) -> dict[str, Any]:
    """One entry of the log. ``dialogue`` is the last prompt: the messages shown before the last action.

    Its attempts have the role ``agent``, or ``assistant`` if one of the models ``api`` generated the last action.

    A turn on which the client failed appears only in ``actions`` (``["blocked"]``) and ``rewards`` (``[null]``); the
    other lists end before it. ``dialogue`` is then the whole history, as what that turn's prompt left out is not kept.
    """
    turns = list(takewhile(lambda turn: turn.attempt.reward is not None, episode.turns))
    # Not only of chosen attempts: a parallel run chooses its first one, whatever its reward.
    rewards = [attempt.reward for turn in turns for attempt in turn.attempts if attempt.reward is not None]
    failed = {str(len(turns))} if episode.status == "blocked" or len(turns) < len(episode.turns) else set()
    role = "assistant" if turns and turns[-1].model in api else "agent"
    begun = [{"role": role if m.role == "assistant" else "user", "content": m.content} for m in episode.prompt]
    pairs = []
    for turn in turns if failed else turns[:-1]:
        pairs.append({"role": role, "content": turn.attempt.text})
        pairs.append({"role": "user", "content": _told(turn, episode.query)})
    left_out = 0 if failed or not turns else turns[-1].omitted
    return {
        "task_id": index,
        "query": episode.query,
        "answer": episode.gold,
        "max_reward": max(rewards, default=None),
        "turn_history": {
            "best_actions": [turn.attempt.text for turn in turns],
            "actions": {str(t): [attempt.text for attempt in turn.attempts] for t, turn in enumerate(turns)}
            | {turn: [BLOCKED] for turn in failed},
            "best_observations": [_told(turn, episode.query) for turn in turns],
            "observations": {str(t): _observations(turn, episode.query) for t, turn in enumerate(turns)},
            "best_rewards": [turn.attempt.reward for turn in turns],
            "rewards": {str(t): [attempt.reward for attempt in turn.attempts] for t, turn in enumerate(turns)}
            | {turn: [None] for turn in failed},
        },
        "dialogue": begun + pairs[left_out:],
        "id": episode.id,
        "env": episode.env,
        "seed": episode.seed,
        "model": [turn.model for turn in turns],
        "answers": {str(t): [attempt.answer for attempt in turn.attempts] for t, turn in enumerate(turns)},
        "status": episode.status,
        "omitted": [turn.omitted for turn in turns],
        "run": episode.run,
    }


class _History(Record):
    model_config = ConfigDict(extra="ignore")

    best_actions: list[str]
    actions: dict[str, list[str]]
    best_observations: list[str | None]
    observations: dict[str, list[str | None]] = Field(default_factory=dict)
    best_rewards: list[float | None]
    rewards: dict[str, list[float | None]]


class _Entry(Record):
    model_config = ConfigDict(extra="ignore")

    task_id: int | str
    query: str
    answer: str
    turn_history: _History
    dialogue: list[dict[str, str]] | None = None
    id: str | None = None
    env: str | None = None
    seed: str | None = None
    model: list[str] = Field(default_factory=list)
    answers: dict[str, list[str | None]] = Field(default_factory=dict)
    omitted: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    status: Status | None = None
    run: str = ""


def from_log(log: Mapping[str, Any], where: str, env_name: str | None = None) -> list[Episode]:
    """Episodes of an original log (or of one that ``to_log`` wrote), in the log's order.

    ``env_name``: for logs without ``env``. If ``answers`` are missing they are extracted again, for GSM8K with the
    original's rule (``strict``); rewards stay as logged. Evaluation logs have no ``dialogue``: their opening is built
    from the question. Without ``status``, an episode is blocked if a reward is null or a turn has no best action;
    the observations of such a turn may be null.

    Raises:
        UserError: an entry does not fit the schema, or its environment is unknown or not ``env_name``.
    """
    try:
        entries = TypeAdapter(dict[str, _Entry]).validate_python(dict(log))
    except ValidationError as error:
        raise UserError(f"{where}: {fault(error)}; fix or delete the entry.") from None
    ids: dict[str, Ids] = {}
    return [_episode(entry, f"{where}, entry {key}", env_name, ids) for key, entry in entries.items()]


def to_dataset(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The original's data set: {id, conversations: [{from: human|gpt, value, loss}]}, loss = the message's weight.

    In examples converted with ``remove_duplication``, attempts are stripped of white space, as in the original.
    """
    return [
        {
            "id": example.id,
            "conversations": [
                {"from": _ROLES_FROM[message.role], "value": message.content, "loss": message.weight}
                for message in example.messages
            ],
        }
        for example in examples
    ]


def _told(turn: Turn, query: str) -> str:
    """The feedback on the chosen attempt; an evaluation's independent first attempts were told they are wrong."""
    return turn.observation or feedback(turn.attempt.reward, query, forced_negative=True)


def _observations(turn: Turn, query: str) -> list[str]:
    """The feedback on every attempt. If the chosen one was not told that it is right, none was.

    A collection chooses a right attempt if there is one; an evaluation tells also right ones that they are wrong.
    """
    told = _told(turn, query)
    forced = told != feedback(1, query)
    return [
        told if i == turn.chosen or attempt.reward is None else feedback(attempt.reward, query, forced_negative=forced)
        for i, attempt in enumerate(turn.attempts)
    ]


def _episode(entry: _Entry, where: str, env_name: str | None, ids: dict[str, Ids]) -> Episode:
    name = entry.env or env_name
    if name is None:
        raise UserError(f"{where}: the log does not name its environment; set --env gsm8k or --env math.")
    if env_name not in (None, name):
        raise UserError(f"{where}: the log's environment is {name}, so --env {env_name} cannot apply; omit --env.")
    history = entry.turn_history
    turns = []
    for t, action in enumerate(history.best_actions):
        turn = _turn(entry, t, action, where, name)
        if turn is not None:
            turns.append(turn)
    blocked = not turns or len(history.actions) > len(history.best_actions)
    blocked = blocked or any(None in rewards for rewards in (history.best_rewards, *history.rewards.values()))
    solved = any(turn.attempt.reward == 1 for turn in turns)
    return Episode(
        id=entry.id or ids.setdefault(name, Ids(name)).of(entry.query),
        env=name,
        query=entry.query,
        gold=entry.answer,
        prompt=_opening(entry),
        turns=turns,
        status=entry.status or ("blocked" if blocked else "solved" if solved else "unsolved"),
        seed=entry.seed or "",
        run=entry.run,
    )


def _turn(entry: _Entry, t: int, action: str, where: str, env_name: str) -> Turn | None:
    """Turn ``t`` of a log; None if the client failed on it. Of equal texts, the one with the best reward is chosen."""
    history, key = entry.turn_history, str(t)
    texts, rewards = history.actions.get(key, [action]), history.rewards.get(key, history.best_rewards[t : t + 1])
    if len(texts) != len(rewards) or action not in texts:
        raise UserError(
            f"{where}: turn {t}: the actions do not match the rewards or the best action; fix or delete the entry."
        )
    best = history.best_rewards[t : t + 1]
    alike = [i for i, text in enumerate(texts) if text == action]
    chosen = next((i for i in alike if rewards[i] in best), alike[0])
    if rewards[chosen] is None:
        return None
    observation = history.best_observations[t] if t < len(history.best_observations) else None
    if observation is None:
        raise UserError(f"{where}: turn {t} has no observation; fix or delete the entry.")
    answers = entry.answers.get(key) or _extracted(texts, where, env_name)
    if len(answers) != len(texts):
        raise UserError(f"{where}: turn {t}: the numbers of answers and actions differ; fix or delete the entry.")
    attempts = [
        Attempt(text=text, reward=reward, answer=answer)
        for text, reward, answer in zip(texts, rewards, answers, strict=True)
    ]
    model = entry.model[t] if t < len(entry.model) else ""
    omitted = entry.omitted[t] if t < len(entry.omitted) else 0
    return Turn(model=model, attempts=attempts, chosen=chosen, observation=observation, omitted=omitted)


def _extracted(texts: Sequence[str], where: str, env_name: str) -> list[str | None]:
    try:
        # Rewards stay as logged, so use the rule that determined them: the original gives 18.0 reward -1 and no answer.
        env = make_env(env_name, "strict" if env_name == "gsm8k" else "robust")
    except UserError:
        raise UserError(
            f"{where}: answers can be extracted for gsm8k and math, not for {env_name!r}; fix the entry's env, or "
            "--env."
        ) from None
    return [env.extract(text) for text in texts]


def _opening(entry: _Entry) -> list[Message]:
    """The messages before the first action: the logged dialogue without its (attempt, feedback) pairs.

    The dialogue of a blocked episode ends with the feedback on its last best action, that of others before the last
    best action. Therefore the first pair is searched for; its index cannot be computed.
    """
    if not entry.dialogue:
        return opening(entry.query)
    messages = [
        Message(role="assistant" if m.get("role") in ("agent", "assistant") else "user", content=m.get("content", ""))
        for m in entry.dialogue
    ]
    actions, told = entry.turn_history.best_actions, entry.turn_history.best_observations
    if entry.omitted:  # our own log: the number of pairs in the last prompt is known
        failed = len(entry.turn_history.actions) > len(actions)
        shown = 2 * len(actions) if failed else 2 * (len(actions) - 1) - entry.omitted[-1]
        if shown < len(messages):
            return messages[: len(messages) - shown]
    (problem,) = opening(entry.query, few_shot=False)
    for index in range(1, len(messages) - 1):
        before, attempt, after = messages[index - 1 : index + 2]
        # The feedback distinguishes the first attempt from a worked example that it repeats verbatim (if the dialogue
        # was cut between them, the problem does); the preceding message distinguishes it from the same attempt in a
        # later turn.
        first_pair = [attempt.content, after.content] == [*actions[:1], *told[:1]] and (index > 1 or before == problem)
        if first_pair and attempt.role == "assistant" and before.role == "user" and before.content != after.content:
            return messages[:index]
    if len(actions) < 2 and messages[-1].content not in told:
        return messages  # nothing was attempted before: all messages belong to the prompt
    # The limit on trailing messages cut off the first attempt and the problem; a worked example stays before the cut.
    begins = [message.role for message in messages[:2]] == ["user", "assistant"]
    if begins and messages[0].content not in (*told, problem.content):
        return [*messages[:2], problem]
    return opening(entry.query)


app = typer.Typer(add_completion=False, help="Our files in the original's formats, and back.", no_args_is_help=True)
_In = Annotated[Path, typer.Argument(help="file to read")]
_Out = Annotated[Path, typer.Argument(help="file to write")]


@app.command("log")
def export_log(
    source: _In,
    target: _Out,
    api: Annotated[
        list[str] | None,
        typer.Option(help="name of a model behind an API, whose dialogue uses the role assistant; repeatable"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--run", help="of an evaluation's episodes: sequential or parallel (the original has a log each)"),
    ] = None,
) -> None:
    """Episodes (JSONL) to the original's log."""
    episodes = [episode for episode in read_jsonl(source, Episode) if only in (None, episode.run)]
    if not episodes:
        raise UserError(f"{source} contains no episodes{f' of the run {only!r}' if only else ''}; name another.")
    models = {turn.model for episode in episodes for turn in episode.turns}
    if unknown := [name for name in api or () if name not in models]:
        there = ", ".join(sorted(models)) or "none"
        raise UserError(f"--api: {source} has no turn by {unknown[0]!r} (but by: {there}); fix the name, or omit it.")
    log = to_log(episodes, api or ())
    # Keep the episodes' order, in which the original converts: sorted keys would put "10" before "2".
    write_text(target, json.dumps(log, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@app.command("dataset")
def export_dataset(source: _In, target: _Out) -> None:
    """Examples (JSONL) to the original's data set."""
    write_json(target, to_dataset(read_jsonl(source, Example)))


@app.command("import-log")
def import_log(
    source: _In,
    target: _Out,
    env: Annotated[str | None, typer.Option(help="environment of a log that does not name it: gsm8k or math")] = None,
) -> None:
    """The original's log to episodes (JSONL)."""
    log = load_json(source)
    if not isinstance(log, dict):
        raise UserError(f"{source}: not a JSON object keyed by task index; name a log of the original.")
    if not log:
        raise UserError(f"{source} contains no episodes; name a log that has some.")
    with aside(target) as part:
        write_jsonl(part, from_log(log, str(source), env))


if __name__ == "__main__":
    run(app)
