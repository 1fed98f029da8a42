"""The warm start's demonstrations of a revision, and the share of its examples in later training."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.records import Example, Message, read_jsonl
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.recipes import RecipeBook
from selfimprove.methods.agent_r.mixing import mixed
from selfimprove.methods.agent_r.params import Mix
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.reply import WAIT, parse_action
from selfimprove.methods.agent_r.revise import REVISION_THOUGHTS
from selfimprove.methods.agent_r.tasks import demonstrate_revision
from tests.methods.agent_r.corridor import Corridor
from tests.pipeline.workbench import Workbench

ENV = TextCraft(RecipeBook.load(None))


def revisions() -> list[Example]:
    made = [demonstrate_revision(ENV, task, 1) for task in range(0, 1200, 20)]
    return [example for example in made if example is not None]


def test_a_revision_demonstration_trains_on_the_revision_turn_and_all_but_the_slip() -> None:
    examples = revisions()
    assert len(examples) > 50
    for example in examples:
        replies = [message for message in example.messages[OPENING:] if message.role == "assistant"]
        (slip,) = [place for place, message in enumerate(replies) if message.weight == 0]
        assert parse_action(replies[slip + 1].content) == WAIT
        assert [parse_action(reply.content) for reply in replies].count(WAIT) == 1
        assert all(reply.weight == 1 for reply in replies[:slip] + replies[slip + 1 :])


def test_executing_a_revision_demonstration_reaches_the_goal() -> None:
    for example in revisions()[:10]:
        ENV.reset(int(example.source.removeprefix("textcraft-")))
        step = None
        for message in example.messages[OPENING:]:
            action = parse_action(message.content)
            if message.role == "assistant" and action != WAIT:
                step = ENV.step(action)
        assert step is not None
        assert step.reward == 1


def test_all_ten_thoughts_are_drawn_and_the_draw_depends_on_its_key() -> None:
    said = "\n".join(message.content for example in revisions() for message in example.messages)
    assert all(thought in said for thought in REVISION_THOUGHTS)
    assert demonstrate_revision(ENV, 300, 1) == demonstrate_revision(ENV, 300, 1)
    assert demonstrate_revision(ENV, 300, 1) != demonstrate_revision(ENV, 300, 2)


KEY_IN_ROOM_3 = 16


def slipped(env: Corridor, *key: object) -> tuple[int, str] | None:
    """The place and the action of the slip of a demonstration, which is played to its end; None without one."""
    made = demonstrate_revision(env, KEY_IN_ROOM_3, *key)
    if made is None:
        return None
    env.reset(KEY_IN_ROOM_3)
    replies = [message for message in made.messages[OPENING:] if message.role == "assistant"]
    assert made.messages[-1] is replies[-1]  # nothing is trained on after it
    found = []
    for place, reply in enumerate(replies):
        action = parse_action(reply.content)
        if reply.weight == 0:
            found.append((place, action))
            assert action in (env.valid_actions() or [])
            assert action != env.expert()[0].action
        step = env.step(action) if action != WAIT else None
    assert step is not None
    assert step.reward == 1
    [slip] = found
    return slip


def test_the_slip_may_be_at_any_step_and_is_a_valid_action_that_is_not_the_expert_s() -> None:
    slips = [slipped(Corridor(), key) for key in range(80)]
    assert {slip[0] for slip in slips if slip} == set(range(7))  # the expert needs seven actions
    assert {slip[1] for slip in slips if slip} == {"left", "right"}
    assert None in slips  # after a fall into the pit there is no way to the goal


class Straight(Corridor):
    """A corridor that lists no valid action but the expert's, or none at all."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.listed = listed

    def valid_actions(self) -> list[str] | None:
        return [self.expert()[0].action] if self.listed else None


@pytest.mark.parametrize("listed", [True, False])
def test_without_another_valid_action_there_is_no_slip(listed: bool) -> None:
    assert demonstrate_revision(Straight(listed), KEY_IN_ROOM_3, 1) is None


def examples(kind: str, count: int) -> list[Example]:
    said = Message(role="assistant", content="Action: inventory", weight=1)
    return [Example(id=f"{kind}{i}", messages=[said]) for i in range(count)]


def test_warm_start_examples_are_added_in_proportion_and_repeated_once_exhausted() -> None:
    revision, good, warm = examples("r", 6), examples("g", 4), examples("w", 8)
    kinds = mixed(revision, good, Mix(warm_start=0.5), 3, warm)
    assert len(kinds["warm_start"]) == 5
    assert len({example.id for example in kinds["warm_start"]}) == 5
    assert len(mixed(revision, good, Mix(warm_start=2.0), 3, warm)["warm_start"]) == 20
    assert mixed(revision, good, Mix(), 3, warm)["warm_start"] == []
    assert mixed(revision, good, Mix(warm_start=1.0), 3)["warm_start"] == []


def test_demonstrations_are_written_in_every_layout_and_revisions_in_both(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    folder = agent_bench.copy(
        tmp_path / "bench",
        {"agent_r": {"tasks": {"layouts": 2, "revision_demonstrations": 16, "observation_weight": 0.5}}},
    )
    agent_bench.done(folder, "agent_r.data")
    made = read_jsonl(folder / "data/agent_r/base/train/examples.jsonl", Example)
    layouts: dict[str, set[str]] = {}
    for one in made:
        if one.id.startswith("demonstration"):
            layouts.setdefault(one.source, set()).add(one.messages[3].content)
            assert one.messages[3].weight == 0.5
    assert sum(len(texts) == 2 for texts in layouts.values()) > len(layouts) / 2
    first, second = ({one.messages[3].content for one in made if one.id.endswith(f"_layout{i}")} for i in (0, 1))
    revised = {one.messages[3].content for one in made if one.id.startswith("revision")}
    assert revised & (first - second)
    assert revised & (second - first)
