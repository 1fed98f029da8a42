"""Questions from a language model: its prompts, the parsing of its answers, the tasks; and the inventory."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.engines.base import EngineError
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.autoexplore.inventory import filter_repo, inventory
from selfimprove.envs.autoexplore.llm_tasks import (
    MAX_TOKENS,
    PROMPTS,
    Asked,
    Asking,
    QuestionAnswer,
    excerpts,
    gather,
    kind_of,
    make_llm_tasks,
    names_file,
    parse_pairs,
    prompt,
)
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.tasks import filter_tasks, optimal_path
from selfimprove.envs.autoexplore.truncation import token_count

TEXT = "plain words of some length " * 20
ONE = "QUERY: Where are events passed on?\nANSWER: In the class Hub.\n"


def make(engine: Any, repos: Any, seed: int = 0, **options: Any) -> Any:
    return asyncio.run(make_llm_tasks(engine, repos, seed, Asking(**options), model="teacher"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *((f"a.{suffix}", "code") for suffix in ("py", "java", "sh", "ipynb")),
        *((f"a.{suffix}", "data") for suffix in ("csv", "tsv")),
        *((f"a.{suffix}", "text") for suffix in ("md", "yaml", "json", "txt")),
    ],
)
def test_each_kind_of_file_has_its_own_prompt(path: Any, kind: Any) -> None:
    assert kind_of(path) == kind
    assert len({PROMPTS[kind], *PROMPTS.values()}) == 3
    assert "QUERY" in PROMPTS[kind]


def test_the_prompt_contains_the_repository_the_path_and_the_excerpt(repo: Repo) -> None:
    [shown] = [excerpt for excerpt in excerpts(repo, 0) if excerpt.path == "core/hub.py"]
    [message] = prompt(repo, shown, 3)
    assert message.role == "user"
    assert "Write 3 pairs" in message.content
    assert message.content.endswith(f"Repository: eventlib\nFile: core/hub.py\nContent:\n{shown.text}")


def test_excerpts_have_50_to_2000_tokens_and_tables_20_lines(
    make_folder: Callable[[str, dict[str, str]], Path],
) -> None:
    word = "word "
    files = {
        "49.txt": (word * 49).strip(),
        "50.txt": (word * 50).strip(),
        "2000.txt": (word * 2000).strip(),
        "2001.txt": (word * 2001).strip(),
        "long.csv": "city,year\n" + "".join(f"Rome,{1900 + i}\n" for i in range(100)),
        "a/b/c/deep.txt": TEXT,
        "a/b/level.txt": TEXT,
        "layout.txt": TEXT,
        "build/out/x.txt": TEXT,
    }
    repo = Repo.open(make_folder("r", files))
    shown = {excerpt.path: excerpt.text for excerpt in excerpts(repo, 0)}
    assert sorted(shown) == ["2000.txt", "2001.txt", "50.txt", "a/b/level.txt", "layout.txt", "long.csv"]
    assert [token_count(shown[f"{n}.txt"]) for n in (50, 2000, 2001)] == [50, 2000, MAX_TOKENS]
    assert shown["2000.txt"] == files["2000.txt"]
    assert shown["long.csv"] == "\n".join(files["long.csv"].split("\n")[:20])


def test_at_most_max_files_are_drawn_and_the_draw_depends_on_the_seed(
    make_folder: Callable[[str, dict[str, str]], Path],
) -> None:
    repo = Repo.open(make_folder("r", {f"{i}.txt": TEXT for i in range(130)}))
    drawn = [[excerpt.path for excerpt in excerpts(repo, seed)] for seed in (0, 0, 1)]
    assert len(set(drawn[0])) == 100
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(list(excerpts(repo, 0, max_files=7))) == 7


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (ONE, [("Where are events passed on?", "In the class Hub.")]),
        ("QUERY: a?\nANSWER: 3.14 and 2 of 10\n", [("a?", "3.14 and 2 of 10")]),  # digits stay
        ("QUERY: a?\nANSWER: 7", [("a?", "7")]),
        ("1. QUERY: 2 plus 2?\n   ANSWER: 4\n2. QUERY: b?\n   ANSWER: 5\n", [("2 plus 2?", "4"), ("b?", "5")]),
        ("**QUERY 1:** a?\n**ANSWER 1:** 1 one\n\n**QUERY 2:** b?\n**ANSWER 2:** x", [("a?", "1 one"), ("b?", "x")]),
        ("Sure!\n\n- Query: a?\n- Answer: x\n\nI hope this helps!", [("a?", "x")]),
        ("QUERY: a?\r\nANSWER: x\r\n\r\nI hope this helps!", [("a?", "x")]),
        ("### QUERY: a?\n### ANSWER: x\n", [("a?", "x")]),
        ("(1) query: a?\n(2) answer: x\n", [("a?", "x")]),
        ("QUERY: What\n  is it?\nANSWER: one\nand two\n", [("What is it?", "one and two")]),
        ("QUERY: \"What is 'x'?\"\nANSWER: 'It is \"y\"'\n", [("What is 'x'?", 'It is "y"')]),
        ("QUERY: Use 'x'/'y'\nANSWER: 'host' is set to 'local'\n", [("Use 'x'/'y'", "'host' is set to 'local'")]),
        ('QUERY: "a" or "b"\nANSWER: \'a/"b"/c\'\n', [('"a" or "b"', 'a/"b"/c')]),
        ("```\nQUERY: a?\nANSWER: x\n```\n", [("a?", "x")]),
        ("```text\nQUERY: a?\nANSWER: x\n```\nI hope this helps!", [("a?", "x")]),
        ("QUERY: a?\nANSWER: Run `x`:\r\n```\r\n", [("a?", "Run `x`:")]),
        ("QUERY: a?\nQUERY: b?\nANSWER: x\nANSWER: y\n", [("b?", "x")]),
        ("QUERY: a?\nANSWER: x\nQUERY: A ?\nANSWER: y\nquery: a\nanswer: z\n", [("a?", "x")]),  # one of three
        ("QUERY:\nANSWER: x\nQUERY: a?\nANSWER:\n", []),
        ("ANSWER: x\nQUERY: a?\n", []),
        ("The QUERY: is not at the beginning\nANSWER: x", []),
        ("QUERY: " + "a" * 401 + "\nANSWER: x\n", []),
        ("QUERY: a\x1b[2J\u202eb?\r\nANSWER: x\x00\r\n", [("a [2J b?", "x")]),
        ("", []),
    ],
)
def test_pairs_are_parsed_completely_and_without_duplicates(text: Any, pairs: Any) -> None:
    assert parse_pairs(text) == [QuestionAnswer(*pair) for pair in pairs]


line = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=40)


@given(st.lists(st.tuples(line, line), max_size=5), st.sampled_from(["{}:", "{} {n}:", "**{}**:", "{n}. {}:"]))
def test_pairs_in_any_accepted_form_are_parsed_back(pairs: Any, form: str) -> None:
    text = "".join(
        f"{form.format('QUERY', n=n)} q{query}q\n{form.format('ANSWER', n=n)} a{answer}a\n"
        for n, (query, answer) in enumerate(pairs)
    )
    wanted: dict[str, Any] = {}
    for query, answer in pairs:
        plain = " ".join(f"q{query}q".split())
        wanted.setdefault(plain.casefold(), QuestionAnswer(plain, " ".join(f"a{answer}a".split())))
    assert {pair.query.casefold() for pair in parse_pairs(text)} <= set(wanted)
    assert all(pair in wanted.values() for pair in parse_pairs(text))
    assert len(parse_pairs(text)) == len({query.rstrip("?.! ") for query in wanted})


@given(st.text(max_size=300))
def test_any_text_can_be_parsed(text: str) -> None:
    for query, answer in parse_pairs(text):
        assert query
        assert answer
        assert (query + answer).isprintable()


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("What does core/hub.py do?", True),
        ("What is in HUB.PY?", True),
        ("Where is the hub?", False),
        ("See github.py", False),
        ("See hub.pyc", False),
        ("It is `hub.py`.", True),
    ],
)
def test_questions_that_name_their_target_are_detected(query: str, named: bool) -> None:
    assert names_file(query, "core/hub.py") is named


def test_tasks_contain_their_file_optimal_path_and_model(repo: Repo) -> None:
    seen = []

    def answer(request: Any, index: Any) -> str:
        seen.append(request)
        file = request.messages[0].content.split("\nFile: ")[1].split("\n")[0]
        return f"QUERY: What of {len(file)} letters?\nANSWER: 1\nQUERY: Is it {file}?\nANSWER: 2\n"

    made = make(ScriptedEngine(answer), {"eventlib": repo}, pairs=1)
    paths = [excerpt.path for excerpt in excerpts(repo, 0)]
    assert len(seen) == len(paths) == made.counts["files"] == made.counts["naming the file"]
    assert len({request.seed for request in seen}) == len(paths)
    assert {(task.model, task.root) for task in made.tasks} == {("teacher", "eventlib")}
    for task in made.tasks:
        assert task.optimal_path == optimal_path(task.filename)
        assert task.question == f"What of {len(task.filename)} letters?"
        assert task.n_level == task.filename.count("/")
    assert filter_tasks(made.tasks, {"eventlib": repo}) == made.tasks
    again = make(ScriptedEngine(answer), {"eventlib": repo}, pairs=1)
    assert again == made


def test_a_question_about_several_files_is_dropped(repo: Repo) -> None:
    def answer(request: Any, index: Any) -> Any:
        return ONE + ("QUERY: Only here?\nANSWER: x" if "File: run.sh" in request.messages[0].content else "")

    made = make(ScriptedEngine(answer), {"eventlib": repo})
    assert [(task.filename, task.question) for task in made.tasks] == [("run.sh", "Only here?")]
    assert made.counts["duplicates"] == made.counts["files"] == made.counts["pairs"] - 1


def test_pairs_over_the_limits_are_dropped_and_counted(repo: Repo) -> None:
    def answer(request: Any, index: Any) -> Any:
        pairs = [("q" * 400 + "?", "x"), ("r?", "x" * 801), ("s?", "x" * 800)]
        said = "\n".join(f"QUERY: {query}\nANSWER: {text}" for query, text in pairs)
        return said if "File: run.sh" in request.messages[0].content else "No."

    made = make(ScriptedEngine(answer), {"eventlib": repo})
    assert [task.question for task in made.tasks] == ["s?"]
    assert (made.counts["long pairs"], made.counts["pairs"]) == (2, 1)


def test_failures_are_counted_and_do_not_affect_other_files(repo: Repo) -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            if "README" in request.messages[0].content:
                raise EngineError("no answer")
            return await super().generate(request)

        def fits(self, messages: Any, max_tokens: Any) -> bool:
            return "cities" not in messages[0].content

    def answer(request: Any, index: Any) -> Any:
        file = request.messages[0].content.split("\nFile: ")[1].split("\n")[0]
        return "I can't." if file == "run.sh" else f"QUERY: {len(file)}?\nANSWER: x"

    made = make(Failing(answer), {"eventlib": repo})
    assert (made.counts["failed"], made.counts["too long"], made.counts["answers without pairs"]) == (1, 1, 1)
    assert made.counts["tasks"] == len(made.tasks) == made.counts["files"] - 3 > 0


def test_no_file_to_ask_about_and_no_usable_answer_are_user_errors(
    repo: Repo, make_folder: Callable[[str, dict[str, str]], Path]
) -> None:
    with pytest.raises(UserError, match="contain no usable QUERY and ANSWER; choose another model"):
        make(ScriptedEngine(lambda request, index: "no"), {"eventlib": repo})
    short = Repo.open(make_folder("r", {"a.txt": "too short to ask about"}))
    with pytest.raises(UserError, match="no file of r has the 50 tokens"):
        make(ScriptedEngine(lambda request, index: ONE), {"r": short})
    with pytest.raises(UserError, match="QUERY and ANSWER"):
        gather({("r", "a"): Asked([], Counter(files=1))})

    class Refused(ScriptedEngine):
        async def generate(self, request: Any) -> None:  # type: ignore[override]
            raise UserError("no key")

    with pytest.raises(UserError, match="no key"):
        make(Refused(lambda request, index: ONE), {"eventlib": repo})


def test_dropped_files_are_counted_by_reason(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    kept = {"a.py": TEXT, "precision.py": TEXT, "doc/b.md": TEXT}
    dropped = {".x.py": "hidden", "_x.py": "hidden", "tests/a.py": "ignored", "ci.yml": "ignored", "é.py": "not ASCII"}
    dropped |= {"a.png": "suffix", "README": "suffix", "s.py": "short", "crlf.py": "short"}
    files = kept | dict.fromkeys(dropped, TEXT) | {"s.py": "x"}
    folder = make_folder("r", files)
    (folder / "crlf.py").write_bytes(b"abcdefgh\r\n")  # nine characters
    (folder / "b.py").write_bytes(b"\xff" * 20)
    (folder / "g.md").write_text("é" * 20, encoding="utf-8")
    (folder / "l.py").symlink_to("a.py")
    found = filter_repo(folder)
    assert found.repos["r"].files == tuple(sorted(kept))
    [row] = found.rows
    more = Counter({"unreadable": 1, "little ASCII": 1, "special": 1})
    assert row.dropped == Counter(dropped.values()) + more
    assert (row.name, row.files, row.bytes) == ("r", 3, 3 * len(TEXT))


def test_the_inventory_depends_on_files_and_their_contents_but_not_on_the_location(
    make_folder: Callable[[str, dict[str, str]], Path], tmp_path: Path
) -> None:
    [row] = filter_repo(make_folder("x/lib", {"a.py": TEXT, "d/b.py": TEXT})).rows
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    [copied] = filter_repo(tmp_path / "y" / "lib").rows
    assert copied == row
    assert str(tmp_path) not in row.model_dump_json()
    seen = {row.sha256}
    for change in ({"a.py": TEXT + "x"}, {"c.py": TEXT}, {"d/b.py": TEXT.upper()}):
        make_folder("y/lib", change)
        [changed] = filter_repo(tmp_path / "y" / "lib").rows
        seen.add(changed.sha256)
    assert len(seen) == 4
    (tmp_path / "y/lib/a.py").rename(tmp_path / "y/lib/z.py")
    assert inventory({"lib": Repo.open(tmp_path / "y" / "lib")})[0].sha256 not in seen
