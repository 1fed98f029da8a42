"""The local teacher as a real server: the engine of a run queries it, and it stops with the process that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message, write_rows
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Request
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.engines.openai import OpenAiEngine
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.llm_tasks import excerpts, parse_pairs, prompt
from selfimprove.envs.autoexplore.playable import write_tasks
from selfimprove.envs.autoexplore.world import AutoExploreParams
from selfimprove.methods.reflect_rl.generate import teach, teaching_tasks
from selfimprove.methods.reflect_rl.params import GenerateParams
from selfimprove.methods.reflect_rl.teacher import ChatTeacher
from selfimprove.methods.rise.prompts import feedback, opening
from selfimprove.pipeline.rehearsal.experts import FALLBACK, answer
from selfimprove.pipeline.rehearsal.folder import port_of
from selfimprove.pipeline.rehearsal.rule import Here, rehearsed
from selfimprove.pipeline.rehearsal.teacher import KEY, serving
from tests.support.processes import child_of, gone
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[3]
QUESTION = "Ann has 3 apples and buys 4. How many has she?"
FILES = {
    "README.md": "# Installing the event library\n\n" + "Run the installer and read what it prints. " * 20,
    "core/bus.py": '"""How events travel."""\n\n\nclass Bus:\n    """Carries events."""\n' + "    b = 1\n" * 40,
    "core/hub.py": '"""Where events meet."""\n\n\nclass Hub:\n    """Forwards events to subscribers."""\n'
    + "    a = 1\n" * 40,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal's folder with one problem and one repository to explore."""
    here = tmp_path_factory.mktemp("rehearsal")
    for name, text in FILES.items():
        (here / "library/eventlib" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "library/eventlib" / name).write_text(text)
    params = profile("reflect-rl-gpt2-xl")
    params["reflect_rl"]["env"]["repos"] = str(here / "library")
    machine = Here(0, {}, "http://127.0.0.1:1/v1", "chats", "snippets.jsonl")
    own, _ = rehearsed(params, ["reflect_rl"], machine)
    own["rise"]["tasks"]["source"] = "gsm8k"
    YAML().dump(own, here / "params.yaml")
    split = here / "data/rise/tasks/train.jsonl"
    split.parent.mkdir(parents=True)
    write_rows(split, [{"id": "p1", "question": QUESTION, "answer": "3 + 4 = 7\n#### 7"}])
    tasks = here / "data/reflect_rl/tasks"
    tasks.mkdir(parents=True)
    env = explore(here)
    write_tasks(tasks / TASKS_FILE, env.template_tasks(env.repositories()))
    return here


def explore(folder: Path) -> AutoExploreParams:
    return AutoExploreParams(max_turns=15, shuffle_action=True, repos=str(folder / "library"))


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_the_teacher_answers_rise_with_the_gold_solution_at_every_turn(folder: Path) -> None:
    expert = answer(folder)
    for last in (opening(QUESTION)[-1].content, feedback(0.0, QUESTION)):
        assert "7" in expert(user(last), 0).splitlines()[-1]
    told = feedback(0.0, QUESTION, told="> get 7 clay\nGot 7 clay")
    dialogue = [*opening(QUESTION, few_shot=False), Message(role="assistant", content="8"), *user(told)]
    assert "7" in expert(dialogue, 0).splitlines()[-1]


def test_the_teacher_solves_episodes_of_autoexplore_and_reflects_at_every_step(folder: Path) -> None:
    expert, env = answer(folder), explore(folder).make(folder / "data/reflect_rl/tasks")

    class Asked:
        """The engine interface that the method uses."""

        async def generate(self, request: Request) -> list[Completion]:
            return [Completion(expert(request.messages, 0), "stop")]

    cfg = GenerateParams(negatives=1)
    teacher = ChatTeacher(Asked(), "expert", cfg)  # type: ignore[arg-type]
    train = list(env.task_ids())
    made = [asyncio.run(teach(job, env, teacher, cfg, 1)) for job in teaching_tasks(train, cfg)]
    whole = made[: len(train)]
    assert whole
    for trajectory in whole:
        assert trajectory is not None
        assert trajectory.status == "solved"
        assert all(step.reflection not in ("", FALLBACK) for step in trajectory.steps)
    assert any(one is not None and one.status == "solved" for one in made[len(train) :])  # with a wrong file


def test_the_teacher_s_questions_about_a_file_can_be_parsed_as_pairs(folder: Path) -> None:
    env = explore(folder)
    repo = env.repositories()["eventlib"]
    expert = answer(folder)
    for excerpt in excerpts(repo, 0):
        assert parse_pairs(expert(prompt(repo, excerpt, 2), 0))


def test_an_unrecognised_prompt_gets_the_fallback_answer(folder: Path) -> None:
    assert answer(folder)(user("Good morning."), 0) == FALLBACK


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    port = port_of(folder)
    with serving(folder, port, folder / "teacher.log"):
        yield f"http://127.0.0.1:{port}/v1"


def ask(url: str, monkeypatch: pytest.MonkeyPatch, key: str = KEY, samples: int = 1) -> list[Completion]:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    async def work() -> list[Completion]:
        engine = OpenAiEngine(OpenAiEngineConfig(engine="openai", base_url=url, model="gpt-4", tries=1))
        try:
            return await engine.generate(Request(opening(QUESTION), SeedKey(1, "p1"), n=samples))
        finally:
            await engine.close()

    return asyncio.run(work())


def test_the_engine_of_a_run_receives_the_requested_number_of_samples(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ask(url, monkeypatch, samples=3)
    assert len(answers) == 3
    assert all("7" in one.text for one in answers)


def test_a_real_key_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="rejects the key"):
        ask(url, monkeypatch, key="sk-somebody-s-own")


def test_a_call_without_messages_is_refused_with_a_reason(url: str) -> None:
    said = httpx.post(
        f"{url}/chat/completions", json={"model": "m", "messages": []}, headers={"Authorization": f"Bearer {KEY}"}
    )
    assert said.status_code == 400
    assert "at least 1" in said.json()["error"]["message"]


def test_the_server_stops_when_the_rehearsal_ends(folder: Path) -> None:
    port = port_of(folder)
    with serving(folder, port, folder / "log"):
        pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/v1/models")


OWNER = """
import psutil, sys, time
from pathlib import Path
from selfimprove.pipeline.rehearsal.folder import port_of
from selfimprove.pipeline.rehearsal.teacher import serving
folder = Path({folder!r})
with serving(folder, port_of(folder), folder / "orphan.log"):
    print(psutil.Process().children()[0].pid, flush=True)
    time.sleep(600)
"""


def test_the_server_stops_when_the_rehearsal_is_killed(folder: Path) -> None:
    assert gone(child_of(OWNER.format(folder=str(folder)), "idle"))


def test_the_port_stays_the_same_unless_another_process_uses_it(tmp_path: Path) -> None:
    import socket

    first = port_of(tmp_path)
    assert port_of(tmp_path) == first
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        assert port_of(tmp_path) != first
