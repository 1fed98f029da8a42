from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.tools.replay import ReplaySearch, read_snippets

PAIRS = [
    ("director of Beowulf 2007", "Robert Zemeckis"),
    ("Boston College location", "Chestnut Hill"),
    ("Boston College founder", "Society of Jesus"),
    ("director of Beowulf 2007", "somebody else"),
    ("?", "odd"),
]


def test_an_exact_query_returns_its_own_snippet_or_the_first_of_several() -> None:
    search = ReplaySearch(PAIRS)
    assert search("director of Beowulf 2007") == "Robert Zemeckis"
    assert search(" Boston College founder ") == "Society of Jesus"
    assert search("?") == "odd"  # contains no word, but matches exactly


def test_any_other_query_returns_the_snippet_of_the_nearest_query() -> None:
    search = ReplaySearch(PAIRS)
    assert search("who was the director of the film Beowulf") == "Robert Zemeckis"
    assert search("founder Boston") == "Society of Jesus"
    assert search("Boston College") == "Chestnut Hill"  # a tie: the order of the file
    assert search("zzyx") is None
    assert ReplaySearch([])("Boston") is None


def test_rows_without_a_snippet_are_skipped_and_malformed_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "snippets.jsonl"
    file.write_text('{"query": "a", "snippet": null}\n{"query": "b", "snippet": "B", "source": "x"}\n')
    assert read_snippets(file) == [("b", "B")]
    file.write_text('{"query": "b", "snippet": "B"}\n{"snippet": "B"}\n')
    with pytest.raises(UserError, match=r"snippets\.jsonl, line 2: expected a query and a snippet"):
        read_snippets(file)


@pytest.mark.parametrize(
    "rows", ['{"query": "a", "snippet": null}\n', '{"query": "a"}\n{"query": "b", "snippet": " "}\n']
)
def test_a_file_without_any_snippet_is_refused(rows: str, tmp_path: Path) -> None:
    (tmp_path / "snippets.jsonl").write_text(rows)
    with pytest.raises(UserError, match=r"snippets\.jsonl: no row has a snippet"):
        read_snippets(tmp_path / "snippets.jsonl")
