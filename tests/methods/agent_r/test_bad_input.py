"""Bad input to Agent-R's real stages: a one-sentence error, exit code 2, nothing published and nothing lost.

No reply of the actor ends a stage, because every reply is acted on.

Related tests:

- params: tests/pipeline/test_params.py
- AgentGym servers that are down or misbehave: test_bad_server.py
- more cases of the individual parts: tests/envs and the other files in this folder
- RISE's and the shared stages: tests/test_bad_input.py
- rows and missing files: tests/contracts/test_bad_input.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import Episode, read_jsonl, read_rows
from selfimprove.methods.agent_r.tree import Tree
from tests.engines.http_endpoint import Reply as Said
from tests.engines.http_endpoint import Seen, answer, endpoint
from tests.methods.agent_r.refusals import TREES, done, refused, with_env
from tests.pipeline.workbench import Workbench, lines_of

pytestmark = pytest.mark.timeout(600)

EXAMPLES = "data/agent_r/base/train/examples.jsonl"
BEGINNINGS = "data/agent_r/beginnings.jsonl"
SPLITS = ("train", "dev", "test")


def with_search(generate: dict[str, Any], **section: Any) -> dict[str, Any]:
    return {"agent_r": {"iterations": {"iter2": {"generate": generate}}, **section}}


def with_convert(**convert: Any) -> dict[str, Any]:
    return {"agent_r": {"iterations": {"iter2": {"convert": convert}}}}


# Requirements of the environment


def test_without_java_the_error_says_that_java_is_missing(agent_bench: Workbench, tmp_path: Path) -> None:
    """The packages appear to be installed, and Java is in none of the places that are searched."""
    folder = agent_bench.copy(tmp_path / "bench", with_env(name="sciworld"))
    for package in ("scienceworld", "py4j"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    sentence = refused(agent_bench, folder, "data", env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert "there is no java on the PATH: install Java 8 or newer" in sentence


def one(output: str, **ingredients: str) -> dict[str, Any]:
    kind = {"type": "minecraft:crafting_shapeless", "result": {"item": f"minecraft:{output}"}}
    return {**kind, "ingredients": [{key: f"minecraft:{name}"} for key, name in ingredients.items()]}


@pytest.mark.parametrize(
    ("book", "said"),
    [
        ({"a.json": one("a", item="a")}, "my/book.json: nothing can be crafted"),
        ({"a.json": one("a", item="log"), "b.json": one("b", thing="a")}, "my/book.json, b.json"),
        ({"a.json": {"type": "minecraft:crafting_shapeless", "ingredients": [{"item": "log"}]}}, "'result' is missing"),
    ],
)
def test_a_recipe_book_with_a_cycle_an_unknown_item_or_a_missing_key_is_refused(
    agent_bench: Workbench, tmp_path: Path, book: dict[str, Any], said: str
) -> None:
    folder = agent_bench.copy(tmp_path / "bench", with_env(recipes="my/book.json"))
    assert "my/book.json" in refused(agent_bench, folder, "data")  # does not exist
    (folder / "my").mkdir()
    (folder / "my/book.json").write_text(json.dumps(book))
    assert said in refused(agent_bench, folder, "data")


def chain(length: int, **last: Any) -> dict[str, Any]:
    """Recipes that craft each item from the previous one."""
    return {f"{i}.json": one(f"part_{i + 1}", item=f"part_{i}") for i in range(length)} | last


def test_an_edited_recipe_book_is_read_again(agent_bench: Workbench, tmp_path: Path) -> None:
    small = {"train": 3, "dev": 1, "test": 2, "demonstrations": 3, "judge_examples": 3}
    searches = {name: {"generate": {"tasks": 3}} for name in ("iter1", "iter2")}
    changes = {"env": {"recipes": "book.json"}, "tasks": small, "iterations": searches}
    folder = agent_bench.copy(tmp_path / "bench", {"agent_r": changes})
    for name in ("first", "second"):
        book = chain(9, last=one(f"the_{name}", item="part_0", tag="part_1"))
        (folder / "book.json").write_text(json.dumps(book))
        done(agent_bench, folder, "data")
        assert f"the {name}" in (folder / "data/agent_r/texts.jsonl").read_text()


def test_ids_in_both_the_user_s_training_and_test_lists_are_named(agent_bench: Workbench, tmp_path: Path) -> None:
    files = {"train": "my/train.json", "test": "my/test.json"}
    folder = agent_bench.copy(tmp_path / "bench", {"agent_r": {"tasks": {"files": files}}})
    assert "my/test.json does not exist" in refused(agent_bench, folder, "data")
    (folder / "my").mkdir()
    (folder / "my/train.json").write_text(json.dumps(list(range(30))))
    (folder / "my/test.json").write_text(json.dumps([{"item_id": f"textcraft_{i}"} for i in range(28, 60)]))
    sentence = refused(agent_bench, folder, "data")
    assert "agent_r.tasks: task 28, 29 is in both the training file and the test file" in sentence
    (folder / "my/test.json").write_text(json.dumps(list(range(30, 60))))
    done(agent_bench, folder, "data")  # corrected
    splits = [{row["task_id"] for _, row in read_rows(folder / f"data/agent_r/tasks/{p}.jsonl")} for p in SPLITS]
    assert splits[0] | splits[1] <= set(range(30))
    assert splits[2] <= set(range(30, 60))


def test_requests_for_more_tasks_than_exist_are_refused(agent_bench: Workbench, tmp_path: Path) -> None:
    folder = agent_bench.copy(tmp_path / "few", {"agent_r": {"tasks": {"train": 100_000}}})
    assert "agent_r.tasks.train: 100000 tasks of textcraft are requested" in refused(agent_bench, folder, "data")
    folder = agent_bench.copy(tmp_path / "many", with_search({"tasks": 7}))
    sentence = refused(agent_bench, folder, "generate", "iter2")
    assert "iterations.iter2.generate: offset 0 + tasks 7 exceeds tasks.train, which is 6" in sentence


# Thresholds and shares


def test_judge_examples_use_the_judge_style_of_the_conversion_and_a_mismatch_is_refused(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    full = {"judge_style": "full"}
    other = with_convert(**full)
    sentence = refused(agent_bench, agent_bench.copy(tmp_path / "other", other), "data")
    assert "tasks.judge_style: is 'short', but iterations.iter2.convert.judge_style is 'full'" in sentence
    assert "set both to the same value" in sentence
    iterations = {name: {"convert": full} for name in ("iter1", "iter2")}
    alike = agent_bench.copy(tmp_path / "alike", {"agent_r": {"tasks": full, "iterations": iterations}})
    done(agent_bench, alike, "data")
    shown = [
        {
            row["id"]: row["messages"][0]["content"]
            for _, row in read_rows(folder / "data/agent_r/base/train/examples.jsonl")
        }
        for folder in (agent_bench.folder, alike)
    ]
    judgements = [[text for name, text in each.items() if name.startswith("judgement")] for each in shown]
    assert len(judgements[0]) == len(judgements[1]) == 4
    assert min(map(len, judgements[1])) > max(map(len, judgements[0])), "the full prompt explains what to do"


def test_thresholds_that_keep_nothing_are_refused_with_the_counts_of_trees_and_leaves(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    trees = read_jsonl(agent_bench.folder / TREES, Tree)
    rewarded = [tree for tree in trees if tree.root.value]
    leaves = sum(len(tree.leaves()) for tree in rewarded)
    good = sum(tree.nodes[leaf].reward > 0.5 for tree in rewarded for leaf in tree.leaves())
    assert 0 < good < leaves
    none = len(trees) - len(rewarded)
    folder = agent_bench.copy(tmp_path / "alpha", with_convert(alpha=1.0))
    assert (
        f"nothing to train on: 6 trees ({none} of them with root value 0), {leaves} leaves, 0 good ones (above alpha "
        "1), 0 pairs (above beta 0.2 apart); lower alpha or beta"
    ) in refused(agent_bench, folder, "convert", "iter2")
    folder = agent_bench.copy(tmp_path / "beta", with_convert(alpha=0.5, beta=1.0, mix={"good": 0.0}))
    assert f"{leaves} leaves, {good} good ones (above alpha 0.5), 0 pairs (above beta 1 apart)" in refused(
        agent_bench, folder, "convert", "iter2"
    )


def test_with_accumulate_an_iteration_without_useful_trees_keeps_its_parent_s_examples(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    """This includes the controls' data: these trees contain neither good trajectories nor direct revisions."""
    child = {"init": "iter2", "convert": {"judge": "scripted", "alpha": 1.0, "accumulate": True}}
    iterations = {"iter1": child, "iter2": {"convert": {"judge": "scripted"}}}
    overlay = {"agent_r": {"iterations": iterations, "rows": {"iter1": {"init": "iter2"}}}}
    folder = agent_bench.copy(tmp_path / "bench", overlay)
    done(agent_bench, folder, "convert", "iter2")
    (folder / "data/agent_r/iter1").mkdir()
    shutil.copyfile(folder / TREES, folder / "data/agent_r/iter1/trees.jsonl")
    shutil.copytree(folder / "models/agent_r/base", folder / "models/agent_r/iter2")
    done(agent_bench, folder, "convert", "iter1")
    parent, own = (folder / f"data/agent_r/{name}/train" for name in ("iter2", "iter1"))
    for name in ("examples", "collected", "good", "direct"):
        assert sorted(lines_of(own / f"{name}.jsonl")) == sorted(lines_of(parent / f"{name}.jsonl")) != [], name


def test_excluding_good_trajectories_from_the_mix_keeps_them_for_the_control(
    agent_bench: Workbench, tmp_path: Path
) -> None:
    """The control on good trajectories needs them, whether or not the iteration itself mixes them in."""
    sets: list[Any] = []
    for mix in ({}, {"good": 0.0}):
        folder = agent_bench.copy(tmp_path / f"mix{len(sets)}", with_convert(mix=mix, judge="scripted"))
        done(agent_bench, folder, "convert", "iter2")
        train = folder / "data/agent_r/iter2/train"
        sets.append({name: lines_of(train / f"{name}.jsonl") for name in ("collected", "good", "direct")})
    assert sets[1]["good"] == sets[0]["good"] != []
    assert 0 < len(sets[1]["collected"]) < len(sets[0]["collected"])
    assert 0 < len(sets[1]["direct"]) < len(sets[0]["direct"])


def test_a_file_of_chats_that_is_missing_or_malformed_is_named(agent_bench: Workbench, tmp_path: Path) -> None:
    mix = {"general": 0.5, "general_file": "chats.jsonl"}
    folder = agent_bench.copy(tmp_path / "bench", with_convert(mix=mix, judge="scripted"))
    assert "chats.jsonl does not exist" in refused(agent_bench, folder, "convert", "iter2")
    (folder / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "Hello."}]}\n')
    assert "chats.jsonl, line 1: no assistant message" in refused(agent_bench, folder, "convert", "iter2")
    for text in ("Good day.", "Good evening."):  # an edited file is read again
        said = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": text}]
        (folder / "chats.jsonl").write_text(json.dumps({"messages": said}) + "\n")
        done(agent_bench, folder, "convert", "iter2")
        assert text in (folder / "data/agent_r/iter2/train/examples.jsonl").read_text()


# No reply of the actor is an error

REPLIES = {
    "no action": "I do not know.",
    "nothing": "",
    "several actions": "Thought: a\nAction: inventory\nThought: b\nAction: get 1 oak log\nObservation: Got 1 oak log",
    "10,000 characters": "x" * 10_000,
    "10,000 characters of an action": "Action: get " + "1" * 10_000 + " oak log",
    "half of a character": "Action: \ud83d",
    "control characters": "\x00\x1b[2J\x07\r\n\tAction: \u202einventory\x00",
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_the_episode_continues_whatever_the_actor_replies(agent_bench: Workbench, tmp_path: Path, reply: str) -> None:
    def say(seen: Seen) -> Said:
        return answer(*[reply] * seen.body["n"])

    with endpoint(then=say) as server:
        folder = agent_bench.copy(
            tmp_path / "bench",
            {
                "agent_r": {
                    "engines": {
                        "actor": {"engine": "openai", "model": "m", "base_url": server.url, "api_key_env": None}
                    },
                    "iterations": {"iter1": {"generate": {"tasks": 2, "max_depth": 3, "dives": 1}}},
                    "evaluate": {"max_turns": 3, "revision": False},
                }
            },
        )
        assert done(agent_bench, folder, "generate", "iter1") == []
        assert done(agent_bench, folder, "evaluate", "base") == []
    trees = read_jsonl(folder / "data/agent_r/iter1/trees.jsonl", Tree)
    assert [(tree.status, [node.depth for node in tree.nodes]) for tree in trees] == [("unsolved", [0, 1, 2, 3, 4])] * 2
    episodes = read_jsonl(folder / "results/agent_r/base/episodes.jsonl", Episode)
    assert [(episode.status, len(episode.turns)) for episode in episodes] == [("unsolved", 3)] * 4


def test_an_endpoint_that_refuses_connections_is_named(agent_bench: Workbench, tmp_path: Path) -> None:
    with endpoint() as server:
        pass
    engine = {"engine": "openai", "model": "m", "base_url": server.url, "api_key_env": None, "tries": 1, "backoff": 0.0}
    folder = agent_bench.copy(tmp_path / "bench", {"agent_r": {"engines": {"actor": engine}}})
    for stage, item in (("generate", "iter1"), ("convert", "iter2")):
        assert server.url in refused(agent_bench, folder, stage, item)
