"""YAML files are read fast, and as ruamel.yaml's own parser reads them."""

from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import DEEPEST, _parsed, read_yaml
from tests.support.repo_copy import ROOT

FILES = [ROOT / "params.yaml", ROOT / "dvc.yaml", *sorted((ROOT / "profiles").glob("*.yaml"))]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_this_repository_are_read_as_by_the_slower_parser(path: Path) -> None:
    assert read_yaml(path) == YAML(typ="safe", pure=True).load(path)


@given(VALUES, st.booleans())
@example({":0": None}, True)
def test_any_written_value_is_read_as_by_the_slower_parser(value: object, flow: bool) -> None:
    writer, text = YAML(), BytesIO()
    writer.default_flow_style = flow
    writer.dump(value, text)
    try:
        read = YAML(typ="safe", pure=True).load(text.getvalue())
    except YAMLError:
        reject()  # ruamel.yaml writes some keys, such as :0, in a way that it cannot read
    assert repr(_parsed(text.getvalue())) == repr(read)


@pytest.mark.parametrize(
    "text", ["run: {seed: 17}".encode("utf-16"), b"run: {seed: !!bool x}", b"run: {seed: !!int ''}"]
)
def test_text_that_is_not_utf_8_and_a_tag_s_wrong_value_are_errors(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "params.yaml").write_bytes(text)
    with pytest.raises(UserError, match=r"not YAML"):
        read_yaml(tmp_path / "params.yaml")


@pytest.mark.parametrize("text", ["a: 0x{}", "a: [-0x{}]", "? 0x{}\n: 1", "a: 0o7{}", "a: {}"])
def test_an_integer_of_thousands_of_digits_is_an_error(tmp_path: Path, text: str) -> None:
    """Python refuses to write it into a message, which ended in a traceback."""
    (tmp_path / "params.yaml").write_text(text.format("1" * 5000))
    with pytest.raises(UserError, match=r"not YAML \(.*digits"):
        read_yaml(tmp_path / "params.yaml")


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = b"[1e-3, 0o17, on, 12:30, .5, ~, 2001-01-01, 1_000, 0x1F, 'a', yes, .inf]"
    assert repr(_parsed(text)) == repr(YAML(typ="safe", pure=True).load(text))
    assert _parsed(text)[:4] == [0.001, 15, "on", "12:30"]


@pytest.mark.parametrize(
    "text",
    ["a: " + "[" * 200_000, "a: " + "{b: " * 200_000, "a:\n  " + "- " * 200_000 + "x", "? " * 200_000],
    ids=["lists", "mappings", "blocks", "keys"],
)
def test_a_nesting_that_would_crash_libyaml_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match="nested too deep"):
        read_yaml(tmp_path / "params.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: &r\n  again: *r\n", "or an alias contains itself"),
        ("run: &r [*r]\n", "or an alias contains itself"),
        ("a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
                                    for a, b in pairwise("abcdefghij")), "aliases stand for more than 1,000,000"),
    ],
    ids=["mapping", "list", "multiplied"],
)  # fmt: skip
def test_aliases_without_an_end_are_errors(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        read_yaml(tmp_path / "params.yaml")


def test_a_change_of_one_alias_s_value_does_not_act_on_the_other(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("one: &x {seeds: [1]}\ntwo: *x\n")
    values = read_yaml(tmp_path / "params.yaml")
    values["one"]["seeds"].append(2)
    assert values == {"one": {"seeds": [1, 2]}, "two": {"seeds": [1]}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: {seed: 1\nrise: 2\n", "line 2: not YAML"),
        ("run: {seed: 1}\nrun: {seed: 2}\n", 'line 2: not YAML (found duplicate key "run"'),
        ("run:\n  seed: 1\n  seed: 2\n", 'line 3: not YAML (found duplicate key "seed"'),
        ("run:\n\tseed: 1\n", "line 2: not YAML"),
        ("- run\n", "a mapping was expected"),
        ("", "a mapping was expected"),
        ("run: \x07\n", "not YAML"),
        ("? - - a\n: b\n", "not YAML"),
        ("run: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deep"),
        (f"run: {{seed: 1{'0' * 6000}}}\n", "not YAML"),
    ],
)
def test_a_file_that_is_not_a_yaml_mapping_is_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(tmp_path / "params.yaml")
    assert said in " ".join(str(caught.value).split())


def test_a_file_that_git_could_not_merge_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("<<<<<<< Updated upstream\n# A comment.\nrun:\n  seed: 17\n=======\nrun:\n>>>>>>> Stashed\n")
    with pytest.raises(UserError, match="has git's conflict markers; take one side whole, with `git checkout --ours"):
        read_yaml(path)


def test_invalid_utf8_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(UserError, match="does not exist; run this in the repository's root"):
        read_yaml(path)
    with pytest.raises(UserError, match="is a folder, but must be a file; name a file, or move the folder away"):
        read_yaml(tmp_path)
    path.write_bytes(b"run: {seed: \xff}\n")
    with pytest.raises(UserError, match="not YAML"):
        read_yaml(path)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ("{b: ", "}")], ids=["lists", "mappings"])
def test_the_levels_of_lists_and_of_mappings_are_limited(tmp_path: Path, begin: str, end: str) -> None:
    """Code that walks the values recursively would fail on more."""
    path = tmp_path / "params.yaml"
    path.write_text(f"a: {begin * (DEEPEST - 1)}1{end * (DEEPEST - 1)}\n")
    assert list(read_yaml(path)) == ["a"]
    path.write_text(f"a: {begin * DEEPEST}1{end * DEEPEST}\n")
    with pytest.raises(UserError, match="nested too deep"):
        read_yaml(path)
