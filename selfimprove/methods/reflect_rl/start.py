"""Checks of the initial model of reinforcement learning: the policy must match the environment and its labels.

The model folder of a policy names its environment and labels in ``environment.json``::

    {"env": "taxi", "labels": ["0", "1", "2", "3", "4", "5"]}

Models trained from it inherit the file, so that a checkpoint of another environment is never used by mistake.
"""

from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_json
from selfimprove.core.records import Message, read_object
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.labels import Spelling, label_ids

MARK = "environment.json"


def mark_environment(folder: Path, env: EnumeratedEnv | Spelling) -> None:
    """Record in a model folder the environment and labels that its policy was trained on."""
    write_json(folder / MARK, {"env": env.name, "labels": list(env.labels)})


def check_environment(folder: Path, env: EnumeratedEnv) -> None:
    """Refuse a policy of another environment or with other labels; one without ``environment.json`` passes.

    Raises:
        UserError: names both; or the mark is malformed.
    """
    if not (folder / MARK).is_file():
        return
    known = read_object(folder / MARK)
    name, labels = known.get("env"), known.get("labels")
    if not isinstance(name, str) or not isinstance(labels, list):
        raise UserError(f"{folder / MARK} lacks env or labels; restore it, or retrain the model.")
    if name != env.name:
        raise UserError(
            f"{folder} was trained to act in {name}, not in {env.name}; name another init, or fix reflect_rl.env.name."
        )
    if labels != list(env.labels):
        raise UserError(
            f"{folder} was trained with {len(labels)} labels that differ from the {len(env.labels)} of "
            "reflect_rl.env.labels; fix that, or retrain the model."
        )


def check_labels(folder: Path, env: EnumeratedEnv, template: str | None) -> dict[str, int]:
    """The token id of each of the environment's labels in the policy's tokenizer.

    Raises:
        UserError: some label is not one token, or shares one (names them, and suggests the smaller set).
    """
    chat = ChatFormat.load(folder, template)
    ids = label_ids(env.labels, lambda label: chat.content_ids(Message(role="assistant", content=label)))
    return dict(zip(env.labels, ids, strict=True))
