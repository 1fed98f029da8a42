"""The sandbox's commands: their output, its limits, and refusals."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.autoexplore.sandbox import LIST_LIMIT, READ_LIMIT, SHOWN_LIMIT, Sandbox
from selfimprove.envs.autoexplore.tree import Tree, View
from selfimprove.envs.autoexplore.truncation import first_tokens, max_lines, token_count, truncate


def everything(path: Path, name: Any, kind: Any) -> bool:
    return True


def sandbox(folder: Path, keep: Any = everything) -> Sandbox:
    return Sandbox(View(Tree.scan(folder, keep)))


@pytest.fixture
def box(make_folder: Callable[[str, dict[str, str]], Path]) -> Any:
    files = {
        "a.py": "x = 1\n",
        "src/b c.md": "one\ntwo\nthree\n",
        "src/deep/d.txt": "deep\n",
        "..foo": "dotted\n",
        "it's; rm -rf $(x) > y.txt": "odd\n",
        "-n": "dash\n",
    }
    return sandbox(make_folder("root", files))


def test_commands_report_success_and_their_output(box: Any) -> None:
    answers = [
        (["cd", "src"], "Success: Now at src"),
        (["ls"], "Success: The result of ls is:\n'b c.md'\n'deep'"),
        (["ls", "deep"], "Success: The result of ls is:\n'd.txt'"),
        (["cat", "b c.md"], 'Success: The content of "b c.md" is:\none\ntwo\nthree\n'),
        (["head", "-n", "1", "b c.md"], 'Success: The content of "b c.md" is:\none\n'),
        (["tail", "-n", "2", "b c.md"], 'Success: The content of "b c.md" is:\ntwo\nthree\n'),
        (["tail", "-n", "0", "b c.md"], 'Success: The content of "b c.md" is:\n'),
        (["head", "deep/d.txt"], "Success: The content of deep/d.txt is:\ndeep\n"),
        (["cd", "deep"], "Success: Now at src/deep"),
        (["cd", "../.."], "Success: Now at ."),
    ]
    for argv, text in answers:
        result = box.run(argv)
        assert (result.ok, result.text, result.identified) == (True, text, None)


@pytest.mark.parametrize("operand", ['"src/b c.md"', 'src/"b c.md"', '"src"/"b c.md"', "'src'/'b c.md'"])
def test_quotes_around_a_path_or_around_each_of_its_parts_are_ignored(box: Any, operand: str) -> None:
    assert box.run(["id", operand]).identified == "src/b c.md"
    assert box.run(["cat", operand]).text.startswith('Success: The content of "src/b c.md" is:\n')


def test_id_reports_the_path_from_the_root_however_the_file_was_named(box: Any) -> None:
    box.run(["cd", "src"])
    root = box.view.tree.root
    for operand in ("b c.md", '"b c.md"', "./deep/../b c.md", f"{root}/src/b c.md"):
        assert box.run(["id", operand]).identified == "src/b c.md"
    for operand in ("deep", "nothing.py", "b c.md/x"):
        result = box.run(["id", operand])
        assert (result.ok, result.identified) == (False, None)
        assert result.text == f"Error: {operand} does not exist!"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
        ["exit"],
        ["echo", "x"],
        ["python", "-c", "1"],
        ["pip"],
        ["cat a.py"],
        ["/bin/cat", "a.py"],
        ["CAT", "a.py"],
        ["cat"],
        ["cat", "a.py", "a.py"],
        ["cat", "a.py", ">", "new.py"],
        ["cat", "a.py", "|", "ls"],
        ["cat", ""],
        ["cat", "src"],
        ["cat", "a.py/"],
        ["cat", "a.py\0"],
        ["cd"],
        ["cd", ""],
        ["cd", "-"],
        ["cd", "~"],
        ["cd", "$HOME"],
        ["cd", "a.py"],
        ["cd", "src", "src"],
        ["ls", "-a"],
        ["ls", "-a", "/"],
        ["ls", "src", "src"],
        ["head", "a.py", "/etc/passwd"],
        ["head", "-n", "-1", "a.py"],
        ["head", "-n", "+1", "a.py"],
        ["head", "-n", "x", "a.py"],
        ["head", "-n", "9" * 5000, "a.py"],
        ["head", "-n", "٣", "a.py"],
        ["head", "-5", "a.py"],
        ["head", "-c", "5", "a.py"],
        ["tail", "-f", "a.py"],
        ["tail", "-n", "3"],
        ["id"],
        ["id", "a.py", "a.py"],
    ],
)
def test_any_other_input_is_an_error_that_changes_nothing(box: Any, argv: Any) -> None:
    system = os.getcwd()
    result = box.run(argv)
    assert not result.ok
    assert result.text.startswith("Error: ")
    assert result.identified is None
    assert (box.cwd, os.getcwd()) == ("", system)


@pytest.mark.parametrize("name", ["cd", "ls", "cat", "head", "tail", "id"])
@pytest.mark.parametrize(
    "operand", ["..", "../..", "src/../..", "../root/a.py", "/", "/etc/passwd", "{root}x", "//etc"]
)
def test_relative_and_absolute_paths_out_of_the_root_are_refused(box: Any, name: str, operand: str) -> None:
    root = box.view.tree.root
    result = box.run([name, operand.format(root=root)])
    assert not result.ok
    assert "outside the repo! You are now at ." in result.text
    assert box.cwd == ""


def test_a_refused_path_is_shown_relative_to_the_root(box: Any) -> None:
    box.run(["cd", "src/deep"])
    text = "Error: You cannot access file ../x outside the repo! You are now at src/deep"
    assert box.run(["cat", "../../../x"]).text == text


def test_links_inside_the_root_work_and_links_out_of_it_are_hidden(
    make_folder: Callable[[str, dict[str, str]], Path],
) -> None:
    folder = make_folder("root", {"a/real.py": "inside\n"})
    make_folder("outside", {"secret.py": "secret\n"})
    (folder / "in.py").symlink_to("a/real.py")
    (folder / "here").symlink_to("a")
    (folder / "top").symlink_to(".")
    (folder / "out.py").symlink_to(folder.parent / "outside" / "secret.py")
    (folder / "away").symlink_to("../outside")
    (folder / "hop").symlink_to("away")
    (folder / "loop").symlink_to("loop")
    box = sandbox(folder)
    assert box.run(["cat", "in.py"]).text == "Success: The content of in.py is:\ninside\n"
    found = box.run(["id", "here/real.py"])
    assert (found.identified, found.text) == ("a/real.py", "Success: Identified file a/real.py")
    assert box.run(["cd", "top/top/here"]).text == "Success: Now at a"
    assert box.run(["cd", ".."]).text == "Success: Now at ."  # the real folder's parent
    for argv in (["cat", "out.py"], ["cat", "away/secret.py"], ["cd", "away"], ["ls", "hop"], ["id", "hop/secret.py"]):
        result = box.run(argv)
        assert not result.ok
        assert "secret\n" not in result.text
    listed = box.run(["ls", "."]).text.splitlines()[1:]
    assert listed == ["'a'", "'here'", "'in.py'", "'loop'", "'top'"]
    for name in ("cd", "cat", "id", "head"):
        assert not box.run([name, "loop"]).ok


@pytest.mark.parametrize("swap", ["file", "folder", "fifo", "gone"])
def test_a_tree_that_changes_after_it_was_listed_gives_no_access_outside(
    make_folder: Callable[[str, dict[str, str]], Path], swap: str
) -> None:
    folder = make_folder("root", {"src/a.py": "inside\n"})
    outside = make_folder("outside", {"a.py": "secret\n"})
    box = sandbox(folder)
    (folder / "src/a.py").unlink()
    if swap == "file":
        (folder / "src/a.py").symlink_to(outside / "a.py")
    elif swap == "folder":
        (folder / "src").rmdir()
        (folder / "src").symlink_to(outside)
    elif swap == "fifo":
        os.mkfifo(folder / "src/a.py")
    result = box.run(["cat", "src/a.py"])
    assert not result.ok
    assert "secret" not in result.text


def test_file_names_are_taken_literally(box: Any) -> None:
    for name in ("it's; rm -rf $(x) > y.txt", "-n", "..foo"):
        assert box.run(["id", name]).identified == name
        assert box.run(["cat", name]).ok
    assert box.run(["head", "-n"]).text == "Success: The content of -n is:\ndash\n"


def test_the_root_is_known_by_its_real_path_and_as_it_was_given_in_any_spelling(
    make_folder: Callable[[str, dict[str, str]], Path], tmp_path: Path
) -> None:
    folder, link = make_folder("root", {"a.py": "placeholder\n"}), tmp_path / "link"
    link.symlink_to(folder)
    (folder / "a.py").write_text(f"{link}/a.py {folder}/a.py\n")
    box = sandbox(link)
    for root in (link, folder, f"{folder.parent}/./root", f"//{folder.parent}//root/"):
        assert box.run(["cat", f"{root}/a.py"]).text.endswith("is:\na.py a.py\n")
    for other in (f"{link}s/a.py", f"{link}/../secret", f"{folder}/../link/a.py"):
        assert "outside the repo" in box.run(["cat", other]).text


def test_the_location_of_the_root_is_hidden(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    folder = make_folder("root", {"a.py": "placeholder\n", "b.py": "placeholder\n"})
    (folder / "a.py").write_text(
        f"open('{folder}/b.py'); cd {folder}; ls {folder}er; x{folder}/y; file://{folder}/b.py\n"
    )
    box = sandbox(folder)
    shown = box.run(["cat", "a.py"]).text.split("\n", 1)[1]
    assert (
        shown == f"open('b.py'); cd .; ls {folder}er; x{folder}/y; file://b.py\n"
    )  # longer paths that contain the root's are unchanged
    (folder / "b.py").write_text(f'cc -I{folder}/include "-I{folder}" x-I{folder}; it is at {folder}. {folder}.bak\n')
    shown = box.run(["cat", "b.py"]).text.split("\n", 1)[1]
    assert shown == f'cc -Iinclude "-I." x-I{folder}; it is at .. {folder}.bak\n'
    assert box.run(["cat", f"{folder}/missing.py"]).text == "Error: cat: missing.py: No such file or directory"
    assert box.run(["cd", f"{folder}/a.py"]).text == "Error: [Errno 20] Not a directory: 'a.py'"


def test_two_sandboxes_in_two_threads_are_independent(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    folder = make_folder("root", {f"d{i}/f.txt": f"{i}\n" for i in range(2)})
    tree, seen = Tree.scan(folder), dict[int, set[Any]]({0: set(), 1: set()})

    def walk(i: Any) -> None:
        box = Sandbox(View(tree))
        for _ in range(200):
            box.run(["cd", f"d{i}"])
            seen[i].add(box.run(["cat", "f.txt"]).text)
            box.run(["cd", ".."])

    threads = [threading.Thread(target=walk, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {i: {f"Success: The content of f.txt is:\n{i}\n"} for i in range(2)}


def test_a_folder_that_cannot_be_listed_is_a_user_error(
    make_folder: Callable[[str, dict[str, str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder("root", {"a.py": "x", "b.py": "x"})
    for wrong in (folder / "missing", folder / "a.py", "nul\0"):
        with pytest.raises(UserError, match=r"cannot be listed .*; name a readable folder"):
            Tree.scan(wrong)
    monkeypatch.setattr("selfimprove.envs.autoexplore.tree.MAX_ENTRIES", 1)
    with pytest.raises(UserError, match=r"more than 1 entries; name a smaller folder"):
        Tree.scan(folder)


@pytest.mark.parametrize(
    ("name", "lines"),
    [("a.py", 1000), ("a.ipynb", 1000), ("a.csv", 5), ("a.tsv", 5), ("a.md", 100), ("a.yml", 100), ("a.sh", 10)],
)
def test_files_are_cut_at_a_number_of_lines_that_depends_on_their_suffix(name: str, lines: int) -> None:
    assert max_lines(name) == lines
    fits = "\n".join("x" * lines)
    notice = f"\n...\nLarge file, only display first {lines} lines and 500 tokens.\n"

    def show(text: Any, complete: bool = True) -> Any:
        return truncate(name, text, complete, cut=lambda text, limit: text)

    assert show(fits) == fits
    assert show(fits + "\ny") == fits + notice
    assert show(fits + "\n") == fits + notice  # the original counts the line after the last newline
    assert show(fits, complete=False) == fits + notice


def test_any_file_is_cut_at_500_tokens_of_the_given_tokenizer() -> None:
    text = " ".join(["word"] * 501)
    notice = "\n...\nLarge file, only display first 1000 lines and 500 tokens.\n"
    assert truncate("a.py", text) == " ".join(["word"] * 500) + notice
    assert truncate("a.py", text, cut=lambda text, n: text[: n // 100]) == "word " + notice
    assert first_tokens("one two", 0) == ""
    assert first_tokens(text, 501) == text
    assert token_count(text) == 501
    assert max(len(first_tokens(char * 100_000, 500)) for char in "a1_=é \n漢") <= 500 * 17


def test_the_location_of_the_root_is_hidden_before_a_file_is_cut(
    make_folder: Callable[[str, dict[str, str]], Path],
) -> None:
    folder = make_folder("root", {"a.py": ""})
    for words in range(480, 500):  # the cut falls into each part of the path
        (folder / "a.py").write_text("a " * words + f"{folder}/x" + " b" * 30)
        said = sandbox(folder).run(["cat", "a.py"]).text
        assert said.endswith("500 tokens.\n")
        assert "/" not in said
        assert " x" in said


def test_only_the_start_or_the_end_of_a_huge_file_is_read(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    folder = make_folder("root", {"huge.txt": "first\n"})
    with (folder / "huge.txt").open("r+b") as file:
        file.seek(3 * 2**30)  # sparse
        file.write(b"\nlast\n")
    box = sandbox(folder)
    notice = "\n...\nLarge file, only display first 100 lines and 500 tokens.\n"
    assert box.run(["cat", "huge.txt"]).text.startswith("Success: The content of huge.txt is:\nfirst\n�")
    assert box.run(["cat", "huge.txt"]).text.endswith(notice)
    assert box.run(["head", "-n", "1", "huge.txt"]).text == "Success: The content of huge.txt is:\nfirst\n"
    assert box.run(["tail", "-n", "1", "huge.txt"]).text == "Success: The content of huge.txt is:\nlast\n"
    assert len(box.view.tree.read("huge.txt", READ_LIMIT)[0]) == READ_LIMIT


def test_output_is_bounded_and_has_no_control_characters(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    folder = make_folder("root", {f"{i:05}.py": "" for i in range(LIST_LIMIT + 5)})
    (folder / "bin.py").write_bytes(b"\x1b[2J\x00\xff ok\r\nnext\rline\n")
    box = sandbox(folder)
    assert box.run(["cat", "bin.py"]).text.split("\n", 1)[1] == "�[2J�� ok\nnext\nline\n"
    listed = box.run(["ls"]).text
    assert listed.count("\n'") == LIST_LIMIT
    assert listed.endswith(f"\n...\nLarge folder, only display first {LIST_LIMIT} of {LIST_LIMIT + 6} entries.")
    assert len(box.run(["cat", "x" * 10**6]).text) < 2 * SHOWN_LIMIT
    assert box.run(["cat", "a\nError: b"]).text == "Error: cat: a\\nError: b: No such file or directory"
