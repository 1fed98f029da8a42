"""A folder of games in the layout of ALFWorld's download, and hashes to check that it stays unchanged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from selfimprove.envs.alfworld.games import TYPES, make_games
from selfimprove.envs.alfworld.kitchen_things import KINDS


def game_set(folder: Path, tasks: list[int]) -> Path:
    """Generated games in the layout of the download, with a grammar that must not be executed."""
    games = make_games(None, 0, KINDS, None, None)
    names = {kind: name for name, kind in TYPES.items()}
    for task in tasks:
        game = games.game(task)
        kind, thing, place = game.goal
        split = ("train", "valid_seen", "valid_unseen")[task % 3]
        trial = folder / split / f"{names[kind]}-{thing.title()}-None-{place.title()}-{task}" / "trial_T1"
        trial.mkdir(parents=True)
        wanted = {"object_target": thing.title(), "object_sliced": False, "mrecep_target": ""}
        toggled = kind == "look_in_light"
        wanted |= {"parent_target": "" if toggled else place.title(), "toggle_target": place.title() if toggled else ""}
        data = {"task_type": names[kind], "pddl_params": wanted}
        (trial / "traj_data.json").write_text(json.dumps(data))
        grammar = f'"task": [{{"rhs": "Your task is to: {game.sentence}."}}] {{open("/tmp/pwned", "w")}}'
        made = {"pddl_domain": "ignored", "grammar": grammar, "pddl_problem": game.problem, "solvable": True}
        (trial / "game.tw-pddl").write_text(json.dumps(made))
    return folder


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
