"""models/pretrained, the start of the default profile's methods, matches its card and has the abilities it needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from selfimprove.apps.pretraining.__main__ import RECIPE, main
from selfimprove.apps.pretraining.abilities import measure
from selfimprove.apps.pretraining.make import read_recipe
from selfimprove.pipeline.params import METHODS
from tests.support.profiles import profile

SHIPPED = Path(__file__).resolve().parents[3] / "models/pretrained"


def test_its_recipe_is_the_one_that_make_pretrain_uses() -> None:
    assert (SHIPPED / "recipe.yaml").read_bytes() == RECIPE.read_bytes()


def test_its_files_match_the_hashes_on_its_card_and_are_small_enough_for_git() -> None:
    card, measures = (SHIPPED / "README.md").read_text(), json.loads((SHIPPED / "measures.json").read_text())
    for name, key in (("model.safetensors", "weights_sha256"), ("tokenizer.json", "tokenizer_sha256")):
        found = hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest()
        assert found == measures[key]
        assert found in card
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4_000_000


def test_rise_agent_r_and_spin_start_from_it_in_the_default_and_all_four_in_the_arenas() -> None:
    started = [method for method in METHODS if profile("default")["base"][method].get("model") == "models/pretrained"]
    assert started == ["rise", "agent_r", "spin"]
    for arena in ("arena-textcraft", "arena-encyclopedia"):
        assert {profile(arena)["base"][method]["model"] for method in METHODS} == {"models/pretrained"}


def test_an_unusable_recipe_gives_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "recipe.yaml"
    wrong.write_text(RECIPE.read_text().replace("threads:", "thread:", 1))
    for recipe, words in ((wrong, "recipe.yaml: field 'thread"), (tmp_path / "none.yaml", "none.yaml does not exist")):
        monkeypatch.setattr("sys.argv", ["pretraining", "--recipe", str(recipe), "--out", str(tmp_path / "out")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert (ended.value.code, said.count("\n")) == (2, 1)
        assert words in said
    assert not (tmp_path / "out").exists()


def test_it_solves_problems_and_copies_text_on_any_processor() -> None:
    text = read_recipe(RECIPE).text.model_copy(update={"held_out": 8})
    answers = measure(text, SHIPPED, 99, threads=1).answers
    for kind in ("math: solving", "qa: solving", "alfworld: copying"):
        assert answers[kind].asked >= 2, kind
        assert answers[kind].right >= 0.6 * answers[kind].asked, (kind, answers[kind])
