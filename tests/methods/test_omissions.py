"""What a row's files say was left out."""

from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.methods.omissions import omissions


def test_revision_trajectories_that_failed_are_an_omission_of_the_conversion(tmp_path: Path) -> None:
    write_json(tmp_path / "convert.json", {"kept_pairs": 20, "dropped_by_judge": 18, "dropped_by_environment": 1})
    assert omissions(tmp_path) == {"convert": {"dropped_revisions": 19 / 20}}
    write_json(tmp_path / "convert.json", {"kept_pairs": 20, "dropped_by_judge": 0})
    assert omissions(tmp_path) == {}


def test_degenerate_samples_are_an_omission_of_the_collection(tmp_path: Path) -> None:
    write_json(tmp_path / "generate.json", {"episodes": 2, "degenerate": {"mean": 0.25, "se": 0.1, "n": 8}})
    assert omissions(tmp_path) == {"generate": {"degenerate": 0.25}}
