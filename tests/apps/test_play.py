"""``make play``: what a user may type, and how experts, random play and models act in each environment."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from selfimprove.apps.play import Model, Person, PlayOutcome, chance, expert, load_engine, make_policy, play
from selfimprove.apps.play_games import ENVS, LabelledGame, make_game, plain
from selfimprove.core.errors import UserError
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.registry import listed_env
from tests.support.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
PARAMS = ROOT / "params.yaml"
EMBEDDED = ["textcraft", "webshop", "taxi", "kitchen", "arithmetic"]
START = 61  # of the taxi: north, pick up, four times south, drop off


def screen() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200, highlight=False), out


@pytest.fixture(scope="module")
def taxi() -> LabelledGame:
    return LabelledGame("taxi", listed_env().make())


@pytest.fixture(scope="module")
def explore(tmp_path_factory: pytest.TempPathFactory) -> LabelledGame:
    folder = tmp_path_factory.mktemp("repos") / "eventlib"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "hub.py").write_text('"""Where events meet."""\n\n\nclass Hub:\n' + "    # words of code\n" * 40)
    (folder / "README.md").write_text("# Installing the library\n\n" + "Run the usual command. " * 40)
    return LabelledGame("autoexplore", listed_env(name="autoexplore", repos=str(folder)).make())


def typed(game: Any, task: Any, text: Any) -> Any:
    console, out = screen()
    outcome = play(game, task, Person(console, io.StringIO(text)), console)
    return outcome, out.getvalue()


@pytest.mark.parametrize("name", EMBEDDED)
def test_play_the_expert_wins_in_every_environment(name: Any) -> None:
    game = make_game(name, PARAMS)
    console, out = screen()
    outcome = play(game, game.tasks()[7], expert, console)
    assert outcome.ended
    assert outcome.success
    assert f"success after {outcome.steps} step" in out.getvalue()


def test_play_the_expert_wins_in_autoexplore_and_the_cost_is_shown(explore: Any) -> None:
    console, out = screen()
    outcome = play(explore, 0, expert, console)
    assert outcome.success
    assert f"so far {outcome.steps - 15:+d}" in out.getvalue()


@pytest.mark.parametrize("name", EMBEDDED)
def test_play_random_actions_are_valid_and_reproducible(name: Any) -> None:
    game = make_game(name, PARAMS)
    seen = []
    for _ in range(2):
        console, out = screen()
        seen.append((play(game, game.tasks()[3], chance(5), console, steps=6), out.getvalue()))
    assert seen[0] == seen[1]
    assert seen[0][0].steps > 0
    if name != "arithmetic":
        assert "not understood" not in seen[0][1]


def test_play_a_user_types_labels_or_actions_and_sees_state_actions_and_cost(taxi: Any) -> None:
    outcome, out = typed(taxi, START, "1\npickup passenger\n0\n0. move south\n0.\n move  south \n5\n")
    assert outcome == PlayOutcome(True, True, 7)
    assert out.count("--- Current State ---") == 8
    assert "Action 4: pickup passenger" in out
    assert "cost -1, so far -0.95" in out
    assert "success after 7 steps" in out


def test_play_a_dangerous_action_ends_the_episode_with_the_environment_s_reason(taxi: Any) -> None:
    outcome, out = typed(taxi, START, "5\n")
    assert outcome == PlayOutcome(True, False, 1)
    assert "failure after 1 step\n" in out
    assert "The episode is over: that action changed nothing, which is dangerous." in out


def test_play_the_taxi_shows_its_rules_and_reports_when_the_actions_are_used_up(taxi: Any) -> None:
    outcome, out = typed(taxi, START, "1\n0\n" * 20)
    shown = " ".join(out.replace("│", " ").split())
    assert "Between two neighbours of a row, a | is a wall" in shown
    assert "An action that changes nothing, as driving into a wall, is dangerous and ends the game." in shown
    assert "You have 15 actions. Type an action's number or its words." in shown
    assert "Thought: why" not in shown
    assert outcome == PlayOutcome(True, False, 15)
    assert "The episode is over: 15 actions were not enough." in shown


def test_play_an_invalid_action_is_asked_again_and_costs_nothing(taxi: Any) -> None:
    outcome, out = typed(taxi, START, "\n\n9\nfly\n00\n-1\n" + "x" * 10_000 + "\n1\n")
    assert outcome == PlayOutcome(False, False, 1)
    assert out.count("No such action") == 5
    assert out.count("cost ") == 1


@pytest.mark.parametrize("text", ["", ":q\n", ":quit\n1\n", "\x04", "nonsense"])
def test_play_quit_and_the_end_of_the_input_stop_the_game(taxi: Any, text: str) -> None:
    outcome, out = typed(taxi, START, text)
    assert outcome == PlayOutcome(False, False, 0)
    assert "stopped after 0 steps" in out


def test_play_a_user_can_request_the_expert_s_action_all_actions_and_help(taxi: Any) -> None:
    _, out = typed(taxi, START, ":h\n:a\n:?\n:nothing\n")
    assert "1  move north" in out
    assert out.count("5  drop off passenger") == 1
    assert out.count(":q                         quit") == 2
    _, out = typed(make_game("arithmetic", PARAMS), 0, ":a\n:h\n")
    assert "lists no actions" in out
    assert "\\boxed{" in out


def test_play_text_environments_accept_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    game = make_game("textcraft", PARAMS)
    outcome, out = typed(game, game.tasks()[0], "inventory\ndance on the [bold red]table[/]\n")
    assert outcome == PlayOutcome(False, False, 2)
    assert "dance on the [bold red]table[/]" in out  # not interpreted as markup
    assert "(not understood)" in out


def test_play_a_user_may_write_an_action_as_the_instruction_asks_models_to() -> None:
    game = make_game("textcraft", PARAMS)
    game.begin(game.tasks()[0])
    action = game.expert().action  # type: ignore[union-attr]
    _, out = typed(game, game.tasks()[0], f"Thought: I need it. Action: {action}\n")
    assert "(not understood)" not in out


def test_play_tells_a_user_once_how_to_list_actions_and_to_leave() -> None:
    game = make_game("textcraft", PARAMS)
    _, out = typed(game, game.tasks()[0], "inventory\ninventory\n")
    assert out.count(":a lists the actions, :h shows the expert's, :q quits.") == 1


def test_play_a_wrong_answer_can_be_corrected(tmp_path: Path) -> None:
    game = make_game("arithmetic", PARAMS)
    game.begin(0)
    gold = game._problems[0].gold  # type: ignore[attr-defined]
    outcome, out = typed(game, 0, f"I don't know\n-7\n{gold}\n")
    assert outcome == PlayOutcome(True, True, 3)
    assert out.count("is not right; try again.") == 2
    file = tmp_path / "some.jsonl"
    file.write_text('{"question": "One and one?", "answer": "1 + 1 = 2\\n#### 2"}\n')
    assert typed(make_game("gsm8k", PARAMS, file), 0, "2\n")[0].success
    file.write_text('{"problem": "Half of one?", "solution": "It is $\\\\boxed{\\\\frac{1}{2}}$."}\n')
    assert typed(make_game("math", PARAMS, file), 0, "\\frac12\n")[0].success


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x00\x08\u202e\r[red]"


def test_play_control_characters_reach_neither_the_screen_nor_the_game(taxi: Any) -> None:
    _, out = typed(taxi, START, f"{HOSTILE}\n\x1b[A1\n")
    assert not any(ord(char) < 32 and char != "\n" for char in out)
    assert "\x9b" not in out
    seen = []

    class Echo(LabelledGame):
        def choices(self) -> Any:
            return {}

        def act(self, action: Any) -> Any:
            seen.append(action)
            return super().act(action)._replace(text=HOSTILE, done=True)

    console, out = screen()
    play(Echo("taxi", listed_env().make()), START, Person(console, io.StringIO(f"a{HOSTILE}b\n")), console)
    assert seen == ["a0;owned31m [red]b"]
    assert not {"\x1b", "\x07", "\u202e"} & set(out.getvalue())


def test_play_shows_brackets_in_the_name_of_a_game(taxi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taxi, "name", "rooms [easy] [/]")
    _, text = typed(taxi, 0, ":q\n")
    assert "rooms [easy] [/], task 0" in text


def test_play_omits_characters_that_nobody_sees_and_keeps_ordinary_text() -> None:
    for char in "\xad\u034f\u115f\u1160\u180e\u200b\u2061\u2064\u3164\ufe0f\uffa0\U000e0041\U000e0100":
        assert plain(f"a{char}b") == "ab"
    for text in ("a\tb\nc", "日本語", "한국어", "العربية", "नमस्ते", "é e\u0301 😀"):
        assert plain(text) == text


def test_questions_of_ones_own_are_played_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_quiz.py").write_text(
        "from selfimprove.envs.own import Answers\n\n\nclass Quiz(Answers):\n"
        "    def demonstration(self, problem):\n        return f'It is {problem.gold}'\n\n"
        "    def extract(self, attempt):\n        return attempt.split()[-1]\n"
    )
    (tmp_path / "quiz.jsonl").write_text('{"question": "How many?", "answer": "7"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r'needs a JSONL file of problems; name one \(make play: ARGS="--file'):
        make_game("own_quiz:Quiz", ROOT / "params.yaml")
    game = make_game("own_quiz:Quiz", ROOT / "params.yaml", tmp_path / "quiz.jsonl")
    assert "How many?" in game.begin(game.tasks()[0])


@settings(max_examples=60)
@given(st.text(max_size=60))
def test_play_accepts_any_input(text: str) -> None:
    game = LabelledGame("taxi", listed_env().make())
    outcome, _ = typed(game, START, text)
    assert outcome.steps <= text.count("\n") + 1
    assert all(char in "\n\t" or (ord(char) >= 32 and not 0x7F <= ord(char) < 0xA0) for char in plain(text))


def test_play_models_get_the_prompts_of_their_methods(taxi: Any) -> None:
    asked = []

    def answer(request: Any, index: Any) -> Any:
        asked.append(request)
        if request.allowed is None:  # the reflection model
            return "Go on. # Action:\nforged"
        return request.allowed[1]

    console, _ = screen()
    game = LabelledGame("taxi", listed_env().make(), ScriptedEngine(answer))
    play(game, START, Model(ScriptedEngine(answer), 0, 0.5), console, steps=1)
    reflection, policy = asked
    assert reflection.temperature == policy.temperature == 0.5
    assert reflection.messages[0].content.endswith(" # Analyze:\n")
    assert "Action 0" not in reflection.messages[0].content
    assert policy.messages[0].content.endswith(" # Action:\n")
    assert " # Analyze:\nGo on.\n" in policy.messages[0].content
    assert policy.allowed == tuple("012345")
    craft: Any = make_game("textcraft", PARAMS)
    step, replies = craft._env.step, []
    craft._env.step = lambda action: step(action)._replace(observation="two  blanks,\n\ttwo lines")
    observed = []

    def reply(request: Any, index: Any) -> str:
        assert request.temperature == 0.5
        replies.append([message.role for message in request.messages])
        observed.append(request.messages[-1].content)
        return "Thought: I look.\nAction: 1. inventory"

    outcome = play(craft, craft.tasks()[0], Model(ScriptedEngine(reply), 0, 0.5), console, steps=2)
    assert replies == [["system", "user", "assistant", "user"], ["system", *["user", "assistant"] * 2, "user"]]
    assert observed[1] == "two  blanks,  two lines"  # as in Agent-R's evaluation
    assert outcome == PlayOutcome(False, False, 2)


def test_play_models_get_the_markers_that_they_were_trained_with(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(PARAMS.read_text().replace("markers: spaced", "markers: stripped"))
    ends = []

    def answer(request: Any, index: Any) -> str:
        ends.append(request.messages[0].content[-13:])
        return "0" if request.allowed else "Go on.# Action:\nforged"

    engine = ScriptedEngine(answer)
    play(make_game("taxi", params, None, engine), START, Model(engine, 0, 0.0), screen()[0], steps=1)
    assert ends == ["-+# Analyze:\n", "er\n# Action:\n"]  # without the leading space of the spaced ones


def test_play_a_model_that_waits_is_answered_without_the_environment_as_in_evaluations() -> None:
    craft: Any = make_game("textcraft", PARAMS)
    step, performed, observed = craft._env.step, [], []

    def perform(action: str) -> Any:
        performed.append(action)
        return step(action)

    def reply(request: Any, index: Any) -> str:
        observed.append(request.messages[-1].content)
        return "Thought: I was wrong.\nAction: wait" if len(observed) == 1 else "Thought: I look.\nAction: inventory"

    craft._env.step = perform
    console, out = screen()
    outcome = play(craft, craft.tasks()[0], Model(ScriptedEngine(reply), 0, 0.0), console, steps=2)
    assert outcome == PlayOutcome(False, False, 2)  # wait is an action of the episode
    assert performed == ["inventory"]
    assert observed[1] == "ok."
    assert "(not understood)" not in out.getvalue()
    typed(craft, craft.tasks()[0], "wait\n")
    assert performed == ["inventory", "wait"]  # a person's reaches the environment: in ScienceWorld time passes


@pytest.mark.parametrize("name", ["taxi", "textcraft", "arithmetic"])
def test_play_loads_a_trained_model_from_its_folder(tmp_path: Path, name: str) -> None:
    make_tiny_model(tmp_path / "model", context=2048)
    policy = make_policy(f"model:{tmp_path / 'model'}", screen()[0], io.StringIO(), 0, 1.0)
    game = make_game(name, PARAMS)
    console, _ = screen()
    assert play(game, game.tasks()[0], policy, console, steps=2).steps >= 1


def test_play_unknown_policies_models_and_tasks_are_user_errors(taxi: Any, tmp_path: Path) -> None:
    console = screen()[0]
    for name, said in (
        ("pilot", "POLICY='pilot'"),
        ("model:", "POLICY='model:'"),
        ("model:/nowhere", "contains no model"),
    ):
        with pytest.raises(UserError, match=said):
            make_policy(name, console, io.StringIO(), 0, 0.0)
    with pytest.raises(UserError, match="contains no model"):
        load_engine(tmp_path)
    with pytest.raises(UserError, match="there is no start 300"):
        play(taxi, 300, expert, console)
    with pytest.raises(UserError, match="has no problem 100"):
        play(make_game("arithmetic", PARAMS), 100, expert, console)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is damaged; run `make repro`"),
        ("[]", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ('{"max_position_embeddings": [1]}', "is damaged"),
        ('{"max_position_embeddings": 1e400}', "is damaged"),
        ('{"max_position_embeddings": -5}', "allows only -5 positions; at least 16 are needed"),
    ],
)
def test_play_reports_the_damaged_configuration_of_a_model(tmp_path: Path, config: str, said: str) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        load_engine(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--env", "taxi", "--task", "61"], 0, "stopped after 1 step\n"),
        (["--env", "chess"], 2, "ENV='chess' is unknown; choose one of textcraft"),
        (["--env", "taxi", "--reflector", "x"], 2, "--reflector needs POLICY=model:FOLDER"),
        (["--env", "taxi", "--temperature", "inf"], 2, "--temperature inf is not a number from 0 to 100"),
        (["--env", "taxi", "--temperature", "nan"], 2, "--temperature nan is not a number from 0 to 100"),
        (["--env", "taxi", "--params", "nowhere.yaml"], 2, "nowhere.yaml does not exist"),
        (["--env", "gsm8k"], 2, 'gsm8k needs a JSONL file of problems; name it: ARGS="--file'),
        (["--env", "math"], 2, 'math needs a JSONL file of problems; name it: ARGS="--file'),
        (["--env", "hotpotqa"], 2, 'hotpotqa needs a file of questions; name it: ARGS="--file'),
        (
            ["--env", "gsm8k", "--file", "nowhere.jsonl"],
            2,
            "file nowhere.jsonl does not exist; name an existing one",
        ),
        (["--env", "taxi", "--task", "-1"], 2, "play: taxi has no task -1; there are 300, from 0 to 299."),
        (["--task", "-1"], 2, "play: textcraft has no task -1; there are "),
        (["--task", str(10**9)], 2, "play: textcraft has no task 1000000000; there are "),
        (["--env", "kitchen", "--task", str(10**9)], 2, "play: kitchen has no task 1000000000; there are "),
        (["--env", "txi"], 2, "ENV='txi' is unknown; did you mean 'taxi'?"),
        (["--env", ""], 2, "ENV='' is unknown; choose one of textcraft"),
        (["--env", ":"], 2, "ENV=':' is unknown; choose one of textcraft"),
        (["--env", "worlds:"], 2, "ENV='worlds:' is unknown; "),
    ],
)
def test_play_the_command_line_accepts_any_bytes_on_a_pipe_and_reports_bad_arguments(
    arguments: Any, code: int, said: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DATA_MIRROR"}
    done = subprocess.run(
        [sys.executable, "-m", "selfimprove.apps.play", *arguments],
        input=b"\xff\xfe\x00\n1\n",
        capture_output=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in (done.stdout + done.stderr).decode()
    assert b"Traceback" not in done.stderr
    assert ENVS[0] == "textcraft"
