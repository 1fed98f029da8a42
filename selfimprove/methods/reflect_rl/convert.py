"""Converts the teacher's trajectories to the five supervised sets (docs/reflect-rl.md, L13 and L14).

=======================  ======================================================  =====================================
set                      prompt                                                  trained on
=======================  ======================================================  =====================================
sft                      pre, post, act                                          the label
sft_reflection           instr, pre, analyse                                     the reflection
sft_policy               instr, pre, analyse, reflection, post, act              the label
…_positive               the same, from complete trajectories only               the same
=======================  ======================================================  =====================================

Prompts are the same as in generation and reinforcement learning (``prompts.py``), and an end token is trained after
every answer; the original does neither. A complete trajectory is trained on if it succeeded, a negative one only at its
correction. Policies may be trained on fewer tasks than reflection models (``demonstrated``).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.envs.interface import State
from selfimprove.methods.reflect_rl.generate import TaughtStep, TeacherTrajectory
from selfimprove.methods.reflect_rl.params import DATA_SETS, DataSet
from selfimprove.methods.reflect_rl.prompts import Markers, policy_example, reflection_example


def trained_steps(trajectory: TeacherTrajectory) -> Iterator[tuple[str, TaughtStep]]:
    """(name, step) of the steps to train on; none if the trajectory failed."""
    if trajectory.status != "solved":
        return
    for number, step in enumerate(trajectory.steps):
        if step.learn:
            yield f"{trajectory.id}-{number}", step


def convert(
    trajectories: Sequence[TeacherTrajectory],
    instruction: str,
    markers: Markers,
    demonstrated: Collection[int] | None = None,
) -> dict[DataSet, list[Example]]:
    """The five sets, in the trajectories' order.

    Args:
        demonstrated: tasks whose actions are in the policies' sets (None: all). Reflections are kept for all tasks.

    Raises:
        UserError: no trajectory (of those tasks) has a step to train on.
    """
    sets: dict[DataSet, list[Example]] = {name: [] for name in DATA_SETS}
    for trajectory in trajectories:
        for name, step in trained_steps(trajectory):
            state = State(step.pre, step.post, tuple(step.labels))
            plain = policy_example(name, instruction, state, None, step.label, markers, trajectory.id)
            reflect = reflection_example(
                name, instruction, state, step.reflection, markers, trajectory.id, cut=step.cut
            )
            act = policy_example(name, instruction, state, step.reflection, step.label, markers, trajectory.id)
            positive, acts = trajectory.info == "positive", demonstrated is None or trajectory.task_id in demonstrated
            sets["sft_reflection"].append(reflect)
            if positive:
                sets["sft_reflection_positive"].append(reflect)
            if acts:
                sets["sft"].append(plain)
                sets["sft_policy"].append(act)
            if acts and positive:
                sets["sft_policy_positive"].append(act)
    if not sets["sft"]:
        raise UserError(
            "reflect_rl convert: the set sft is empty, because no trajectory has a step to train on; raise "
            "reflect_rl.generate.tasks or tasks.demonstrations, or use a better teacher."
        )
    return sets


def shortened(examples: Sequence[Example], chat: ChatFormat, limit: int) -> list[Example]:
    """The examples, with prompts cut on the left so that each has at most ``limit`` tokens up to its answer's end.

    Answers are never cut: an example whose answer alone is too long is kept unchanged, and training counts it.
    """
    kept = []
    for example in examples:
        prompt, answer = example.messages
        encoded = chat.encode(example.messages)
        over, span = encoded.spans[-1].stop - limit, encoded.spans[0]
        ids = encoded.ids[span.start : span.end]
        if 0 < over < len(ids):
            prompt = prompt.model_copy(update={"content": chat.decode(ids[over:]), "token_ids": ids[over:]})
            example = example.model_copy(update={"messages": [prompt, answer]})
        kept.append(example)
    return kept


def texts(
    sets: dict[DataSet, list[Example]], trajectories: Sequence[TeacherTrajectory], instruction: str, markers: Markers
) -> list[dict[str, Any]]:
    """Training texts of the small tokenizer; text that is the same in every prompt becomes one token (``fixed``).

    Such texts are the instruction, the markers and, if all states list the same actions, that list.
    """
    posts = {step.post for trajectory in trajectories for step in trajectory.steps}
    constants = [instruction, markers.analyse, markers.act, *(posts if len(posts) == 1 else ())]
    rows: list[dict[str, Any]] = [{"text": text, "fixed": True} for text in constants if text]
    for example in sets["sft_reflection" if len(posts) == 1 else "sft_policy"]:
        rows += [{"text": message.content.removeprefix(instruction)} for message in example.messages]
    return rows


def metrics(trajectories: Sequence[TeacherTrajectory], sets: dict[DataSet, list[Example]]) -> dict[str, Any]:
    """Counts: trajectories by kind, successes, dropped states, examples of each set; and statistics of reflections.

    Negatives without a correction and reflections cut at the token limit are counted if there are any.
    """
    positive = [one for one in trajectories if one.info == "positive"]
    unsolved = sum(one.info != "positive" and one.status == "unsolved" for one in trajectories)
    cut = sum(step.cut for one in trajectories for step in one.steps)
    reflections = [example.messages[1].content for example in sets["sft_reflection"]]
    return {
        "positives": len(positive),
        "positives_solved": sum(one.status == "solved" for one in positive),
        "negatives": len(trajectories) - len(positive),
        "blocked": sum(one.status == "blocked" for one in trajectories),
        "secrets_told": sum(one.told for one in trajectories),
        "examples": {name: len(examples) for name, examples in sets.items()},
        "reflection_words": sum(len(text.split()) for text in reflections) / len(reflections),
        "distinct_reflections": len(set(reflections)),
        **({"negatives_unsolved": unsolved} if unsolved else {}),
        **({"cut_reflections": cut} if cut else {}),
    }
