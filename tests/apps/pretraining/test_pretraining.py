"""``make pretrain`` reproduces a base byte for byte, and the methods' base stages accept its folder."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from string import digits

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML
from safetensors.torch import load_file

from selfimprove.apps.pretraining.__main__ import RECIPE, main
from selfimprove.apps.pretraining.corpus import WORLDS, Lines, Text, Writer, page_of
from selfimprove.apps.pretraining.make import Phase, make, read_recipe
from selfimprove.apps.pretraining.words import FIXED
from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message
from selfimprove.core.seeds import rng
from selfimprove.envs.math.arithmetic import split_of
from selfimprove.envs.taxi.grid import STATES, place
from selfimprove.envs.textcraft.files import item_name
from selfimprove.envs.textcraft.recipes import RecipeBook
from tests.support.repo_copy import copy_repo, run

ROOT = Path(__file__).resolve().parents[3]
SMOKE = {
    "vocabulary": {"size": 900, "pages": 4},
    "arch": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64, "positions": 1024},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real recipe with smaller sizes."""
    values = YAML(typ="safe", pure=True).load(RECIPE)
    values |= SMOKE
    values["text"] |= {"held_out": 1}
    values["phases"] = [
        {**phase, "sequences": 16, "batch_size": 8} for phase in (values["phases"][0], values["phases"][-1])
    ]
    values["train"] |= {"save_steps": 1, "dtype": "float32"}
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    YAML(typ="safe", pure=True).dump(values, file)
    return file


@pytest.fixture(scope="module")
def made(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(recipe, folder / "model", folder / "scratch")
    return folder


KILLED = """
import os, signal
from selfimprove.apps.pretraining import __main__, make

def dies_in(phase):
    def progress(done, total, *_):
        if (phase, done) == (2, total):
            os.kill(os.getpid(), signal.SIGKILL)
    return progress

make._tell = dies_in
__main__.main()
"""
"""The command, killed after the last step of the second phase, before the phase's model is written."""


@pytest.mark.slow
def test_a_run_killed_while_it_trains_resumes_and_ends_with_the_same_bytes(
    made: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "model"
    command = ["--recipe", str(recipe), "--out", str(out), "--scratch", str(scratch)]
    # Returns when all of its processes have ended, since they hold its output open.
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert (scratch / "phase-1.json").exists()
    assert not (scratch / "phase-2").exists()
    assert not out.exists()

    monkeypatch.setattr("sys.argv", ["pretraining", *command])
    capfd.readouterr()
    main()
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "resuming" in line] == ["finetune: resuming at step 1 of 2"]
    assert {json.loads(line)["phase"] for line in said if line.startswith("{")} == {2}
    names = sorted(file.name for file in (made / "model").iterdir())
    assert {"model.safetensors", "tokenizer.json", "README.md", "recipe.yaml", "measures.json"} <= set(names)
    assert sorted(file.name for file in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (made / "model" / name).read_bytes(), name


@pytest.mark.slow
def test_the_base_stage_accepts_the_folder_with_either_chat_template(made: Path, tmp_path: Path) -> None:
    root = copy_repo(tmp_path / "repo", "smoke")
    shutil.copytree(made / "model", root / "models/made")
    yaml = YAML(typ="safe", pure=True)
    params = yaml.load(root / "params.yaml")
    for method in ("agent_r", "spin"):
        params["base"][method] |= {"model": "models/made", "chat_template": "react" if method == "spin" else None}
    yaml.dump(params, root / "params.yaml")
    for method in ("agent_r", "spin"):
        (root / "data" / method).mkdir(parents=True, exist_ok=True)
        (root / "data" / method / "texts.jsonl").write_text('{"text": "unread"}\n')
        run(root, "python", "-m", "stages.base", method)
        base = root / "models" / method / "start"
        assert (base / "model.safetensors").read_bytes() == (made / "model/model.safetensors").read_bytes()
        assert ChatFormat.load(base).one_text == (method == "spin")


def test_the_tokenizer_round_trips_any_text(made: Path) -> None:
    chat = ChatFormat.load(made / "model")
    for text in ("Mia has 1234 kiwis – naïve…\t?", "a\n\n  b ", *FIXED, *(p.text for p in page_of("taxi", 1))):
        assert chat.token_bytes_known(text), text
    draws = rng("any text")
    for _ in range(50):
        text = "".join(
            chr(draws.choice((10, draws.randrange(32, 127), draws.randrange(161, 0x2FA0)))) for _ in range(30)
        )
        assert chat.token_bytes_known(text), text


def test_every_digit_of_a_text_is_a_token(made: Path) -> None:
    chat = ChatFormat.load(made / "model")
    for text in ("1234567890", "Mia has 1100 kiwis and 22 figs.", "12 * 30 = 360", "x1y22\n333 [4444]5"):
        pieces = [chat.token_text(token) for token in chat.content_ids(Message(role="user", content=text))]
        assert "".join(pieces) == text
        assert [piece for piece in pieces if set(piece) & set(digits)] == [char for char in text if char in digits]


def test_a_line_of_ids_is_trained_only_where_it_is_repeated(made: Path) -> None:
    writer = Writer(read_recipe(made / "model/recipe.yaml").text, made / "model")
    end = ChatFormat.load(made / "model").end_id
    for number in range(50):
        one = writer.repeated(Lines(of=[2, 5], lines=3), 1, number)
        assert one == writer.repeated(Lines(of=[2, 5], lines=3), 1, number)
        ends = [-1, *(place for place, token in enumerate(one.ids) if token == end)]
        said = [one.ids[a + 2 : b] for a, b in pairwise(ends)]  # without the role's token and the end
        assert said[::2] == said[1::2]
        assert 1 <= len(said) // 2 <= 3
        assert all(2 <= len(line) <= 5 for line in said)
        assert one.trained == sum(len(line) + 1 for line in said[1::2])  # each with its end, none with its role's token


def test_the_final_model_s_output_embeddings_are_an_untied_copy_of_the_input_embeddings(made: Path) -> None:
    weights = load_file(made / "model/model.safetensors")
    assert weights["lm_head.weight"].equal(weights["model.embed_tokens.weight"])
    assert json.loads((made / "model/config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" not in load_file(made / "scratch/phase-1/model.safetensors")


def test_answers_on_pages_are_correct() -> None:
    for number in range(300):
        for passage in page_of("math", 5, number):
            for a, op, b, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", passage.answer):
                assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[
                    op
                ] == int(result)
    for number in range(60):
        commands: list[str] = []
        for passage in page_of("textcraft", 5, number):
            if passage.text.startswith("Crafting commands:\n"):
                commands = passage.text.splitlines()[1:]
            if made_by := re.fullmatch(r"How is (.*) made\?", passage.text):
                assert passage.answer in commands
                assert re.match(rf"craft \d+ {made_by[1]} using ", passage.answer)
        assert {
            passage.answer[len("the ") :].split()[0] for passage in page_of("alfworld", 5, number) if passage.answer
        }


def test_problems_on_pages_come_only_from_the_demonstrations_split() -> None:
    asked = [p for i in range(600) for p in page_of("math", 9, i) if p.ability == "solving"]
    assert len(asked) > 300
    assert {split_of(passage.text) for passage in asked} == {"demonstrations"}
    for passage in asked:
        assert passage.answer.startswith(tuple("0123456789"))
        assert "boxed" in passage.answer


def test_crafting_on_pages_uses_other_recipes_than_textcraft_and_reaches_its_goal() -> None:
    book = RecipeBook.load(None)
    own = {recipe.command for recipes in book.recipes.values() for recipe in recipes}
    goals = {item_name(goal) for goal, _ in book.goals}
    episodes = 0
    for number in range(60):
        page = page_of("textcraft", 9, number)
        if page[0].ability != "solving":
            continue
        episodes += 1
        goal = page[0].text.rpartition("Goal: craft ")[2].removesuffix(".")
        final = page[-1].answer.rpartition("Action: ")[2]
        assert re.match(rf"craft \d+ {goal} using ", final)
        shown = page[0].text.splitlines()[1:-2]
        assert any(line.startswith(final.partition(" using ")[0]) for line in shown)
        assert goal not in goals or final not in own, (goal, final)
    assert episodes > 20


def test_searches_on_pages_end_with_an_answer_that_was_read(made: Path) -> None:
    for number in range(60):
        page = page_of("qa", 9, number)
        if page[0].ability != "solving":
            continue
        read = ""
        for passage in page:
            read = "" if passage.ability == "solving" else f"{read} {passage.text}"
            if finished := re.search(r"finish\[(.+)\]$", passage.answer):
                assert finished[1] in ("yes", "no") or finished[1] in f"{read} {passage.text}"


def test_pages_contain_no_fixed_texts_of_the_methods_and_no_taxi_actions(made: Path) -> None:
    text = "\n".join(f"{p.text}\n{p.answer}" for world in WORLDS for i in range(80) for p in page_of(world, 9, i))
    assert not any(fixed in text for fixed in FIXED)
    rides = "\n".join(f"{p.text}\n{p.answer}" for i in range(160) for p in page_of("taxi", 9, i))
    assert "Action" not in rides


@pytest.mark.slow
def test_held_out_sequences_are_not_training_sequences(made: Path, recipe: Path) -> None:
    text = read_recipe(recipe).text
    writer = Writer(text, made / "model")
    for world in WORLDS:
        train = {tuple(one.ids) for n in range(20) if (one := writer.sequence(world, 1, "train", n))}
        held = {tuple(one.ids) for n in range(20) if (one := writer.sequence(world, 1, "held out", n))}
        assert len(train) > 15
        assert len(held) > 15
        assert not train & held, world


def test_card_and_measures_contain_the_hashes_of_the_model_s_files(made: Path, recipe: Path) -> None:
    folder = made / "model"
    measures = json.loads((folder / "measures.json").read_text())
    card = (folder / "README.md").read_text()
    for name, key in (("model.safetensors", "weights_sha256"), ("tokenizer.json", "tokenizer_sha256")):
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert found == measures[key]
        assert found in card
    assert (folder / "recipe.yaml").read_bytes() == recipe.read_bytes()
    assert f"{measures['parameters']:,} parameters" in card


def test_the_card_gives_the_worlds_shares_of_the_sequences_that_are_not_lines_of_ids(made: Path) -> None:
    card = (made / "model" / "README.md").read_text()
    assert "32 sequences, " in card
    assert "16 of the sequences are lines of random token ids" in card
    assert re.search(r"Shares\nof these other sequences:\n.*math 34%, .*words 4%\.\n", card)


def test_the_card_counts_the_taxi_s_maps(made: Path) -> None:
    shown = sum(place(state).passenger != place(state).destination for state in range(STATES))
    assert f"{shown} grid states" in (made / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"maths": 1.0}, "'maths' is no world; choose from math, textcraft"),
        ({"math": -1.0}, "math: the share -1 is negative"),
        ({"math": 0.0}, "all shares are 0"),
    ],
)
def test_shares_of_unknown_worlds_and_impossible_shares_are_refused(shares: dict[str, float], said: str) -> None:
    text = {"held_out": 1, "lengths": {8: 1.0}, "shares": shares}
    phase = {"sequences": 1, "lr": 1.0, "schedule": "linear", "shares": shares}
    for section, values in ((Text, text), (Phase, phase)):
        with pytest.raises(ValidationError, match=said):
            section.model_validate(values)
    with pytest.raises(ValidationError, match="'ids' is no world"):  # only a phase has lines of ids
        Text.model_validate({**text, "shares": {"ids": 1.0}})
