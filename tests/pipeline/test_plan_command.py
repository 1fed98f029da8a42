"""The ``make plan`` command: its settings, the table that it prints, and its errors."""

from __future__ import annotations

import re
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from ruamel.yaml import YAML

from selfimprove.core import cli
from selfimprove.core.errors import UserError
from selfimprove.pipeline.jobs import gpu_shares
from selfimprove.pipeline.plan.__main__ import app
from selfimprove.pipeline.plan.hardware import GPUS, Asked, visible_gpus
from selfimprove.pipeline.plan.plan import methods_of, plans
from selfimprove.pipeline.profiles import compose, composed
from tests.pipeline.planned import PROFILES, ROOT, no_gpu, overlay  # noqa: F401


class Ended(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Ended:
    """Run the command in a terminal of 80 columns."""
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        cli.run(app, arguments)
    return Ended(int(ended.value.code or 0), stdout.getvalue(), stderr.getvalue())


def test_the_planned_values_of_a_profile_are_those_that_make_use_writes() -> None:
    for profile in ("default", "reflect-rl-autoexplore"):
        assert composed(profile, PROFILES) == YAML(typ="safe", pure=True).load(compose(profile, PROFILES))


def test_a_profile_plans_only_its_own_methods_and_the_default_plans_all() -> None:
    assert methods_of("rise-llama2-7b") == ["rise"]
    assert methods_of("default") == ["rise", "agent_r", "reflect_rl", "spin"]


def test_without_a_profile_params_yaml_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = compose("rise-24gb", PROFILES)
    before = [line.stage for line in plans("rise-24gb")[0].lines]
    wanted = YAML().load(params)
    wanted["rise"]["rows"]["half"] = {**wanted["rise"]["rows"]["more_sft"], "match": "iter1"}
    with (tmp_path / "params.yaml").open("w") as file:
        YAML().dump(wanted, file)
    (tmp_path / "profiles").symlink_to(PROFILES)
    monkeypatch.chdir(tmp_path)
    (plan,) = plans()
    own = [line.stage for line in plan.lines if line.stage not in before]
    assert own == ["rise-finetune@half", "rise-evaluate@half"]
    assert plan.machine.memory == 24e9, "the profile that make use wrote is for such a GPU"
    done = command()
    assert "rise, params.yaml: 1.54G parameters" in " ".join(done.stdout.split())
    (tmp_path / "params.yaml").write_text(params.replace("max_turns", "max_turn"))
    done = command()
    assert done.returncode == 2
    assert "params.yaml: rise" in done.stderr


def test_the_plan_of_a_cpu_profile_reports_that_no_gpu_is_needed() -> None:
    done = command("gsm8k-cpu")
    assert done.returncode == 0
    assert "no GPU is needed" in done.stdout
    (plan,) = plans("gsm8k-cpu")
    assert plan.hours is None
    assert all(line.gpus == 0 and line.host > 0 for line in plan.lines)


def test_stages_that_leave_gpus_idle_are_named() -> None:
    done = command("spin-llama2-7b", "--gpus", "2x80GB")
    assert "Some of the 2 GPUs are idle in finetune@base, finetune@iter0" in " ".join(done.stdout.split())


def test_visible_gpus_are_detected_from_nvidia_smi_and_cuda_visible_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    large_ones = 'for n in 1 2; do echo "NVIDIA H100 80GB HBM3, 81559, GPU-7bb$n"; done'
    tool.write_text(f"#!/bin/sh\necho 'NVIDIA A10, 23028, GPU-5aa0'\n{large_ones}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    small, large = 23028 * 2**20, 81559 * 2**20
    assert visible_gpus() == (3, small, GPUS["A10"])
    for named, expected in {
        "1": (1, large), "2, 1": (2, large), "1,0": (2, small), "GPU-7bb2": (1, large), "1,7,2": (1, large),
        "MIG-0": (1, small), "GPU-7bb": None, "-1": None, "NoDevFiles": None, "": None,
    }.items():  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert (visible_gpus() or (None,))[:2] == (expected or (None,)), named
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == (1, large, GPUS["H100"])
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus() is None


@pytest.mark.parametrize(
    ("shown", "mib", "planned"),
    [
        ("NVIDIA L40", 46068, "L40S"), ("NVIDIA L40S", 46068, "L40S"), ("NVIDIA L4", 23034, "L4"),
        ("NVIDIA RTX A1000", 8188, "RTX4090"), ("NVIDIA RTX A4000", 16376, "RTX4090"), ("NVIDIA A40", 46068, "A40"),
        ("NVIDIA A10G", 23028, "A10"), ("NVIDIA A100-SXM4-80GB", 81920, "A100"), ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX3090"), ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
    ],
)  # fmt: skip
def test_a_gpu_is_not_taken_for_another_whose_name_is_part_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, mib: int, planned: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{shown}, {mib}, GPU-5aa0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == (1, mib * 2**20, GPUS[planned])


def test_an_edited_method_is_planned_whatever_the_profile_of_the_file_sets_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = ROOT / "profiles"
    (tmp_path / "params.yaml").write_text(compose("rise-24gb", profiles))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    assert [one.method for one in plans(folder=profiles)] == ["rise"]
    text = (tmp_path / "params.yaml").read_text()
    head, spin = text.split("\nspin:\n")
    (tmp_path / "params.yaml").write_text(f"{head}\nspin:\n{spin.replace('train: 6000', 'train: 7000', 1)}")
    assert [one.method for one in plans(folder=profiles)] == ["rise", "spin"]
    assert [one.method for one in plans(method="spin", folder=profiles)] == ["spin"]


def test_one_run_at_a_time_is_not_advised_to_be_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"run": {"seed": 1, "threads": 1024}}
    gpu_shares(1, [run])
    assert capsys.readouterr().out == ""
    gpu_shares(2, [{"run": {"seed": 1, "threads": 1}}, run])
    assert "JOBS=2 runs of 1024 threads each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rise-llama-7b"], "did you mean 'rise-llama2-7b'?"),
        (["rise-llama2-7b", "--method", "spin"], "sets up only rise; its spin is the default's: plan that with"),
        (
            ["default", "--method", "rize"],
            "METHOD='rize' is not a method; choose all, rise, agent_r, reflect_rl, spin.",
        ),
        (["default", "--gpus", "four"], "GPUS='four' is not a number of GPUs with their memory"),
        (["default", "--gpus", "0x80GB"], "write for example GPUS=4x80GB."),
        (["default", "--disk", "2"], "DISK='2' is not a size"),
        (["default", "--price", "0.5"], "PRICE='0.5' is not two prices"),
        (["default", "--nodes", "0"], "NODES='0' is not a number of machines; write for example NODES=8."),
        (["default", "--gpu-price", "$3"], "GPU_PRICE='$3' is not the price of a GPU per hour"),
        (["default", "--gpu", "H10"], "GPU='H10' is unknown to the planner; did you mean 'H100'?"),
    ],
)
def test_invalid_arguments_give_a_one_line_error_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_on_several_machines_generation_uses_all_gpus_and_training_those_of_its_launcher() -> None:
    (one,) = plans("rise-llama2-7b", asked=Asked(gpus=(8, 80e9), price=(0.5, 1.5), hourly=2.5))
    (eight,) = plans("rise-llama2-7b", asked=Asked(gpus=(8, 80e9), price=(0.5, 1.5), nodes=8, hourly=2.5))
    (wide,) = plans("rise-llama2-7b", asked=Asked(gpus=(8, 80e9), nodes=8, wide=True))
    evaluated, trained = (
        [{line.stage: line for line in plan.lines}[stage] for plan in (one, eight, wide)]
        for stage in ("rise-evaluate@iter1", "rise-finetune@iter1")
    )
    assert evaluated[1].hours < evaluated[0].hours / 4  # type: ignore[operator]
    assert [line.at_work for line in evaluated] == [8, 64, 64]
    assert [line.at_work for line in trained] == [4, 4, 64]
    assert trained[1].hours == trained[0].hours
    assert trained[2].hours == pytest.approx(trained[0].hours * 4 / 64)  # type: ignore[operator]
    assert eight.bottleneck.stage.startswith("rise-finetune@")
    assert one.hours is not None
    assert eight.hours is not None
    teacher = 12_000  # requests
    assert eight.remote["teacher"][0] == teacher
    tokens = eight.remote["teacher"][1] * 0.5e-6 + eight.remote["teacher"][2] * 1.5e-6
    assert eight.cost == pytest.approx(eight.hours * 64 * 2.5 + tokens)
    assert wide.cost is None  # without prices
    done = command("rise-llama2-7b", "--gpus", "8x80GB", "--nodes", "8")
    assert "uses 4 of 64 GPUs" in " ".join(done.stdout.split())


def test_the_table_of_eight_machines_in_docs_scale_is_the_output_of_plan() -> None:
    shown = command(
        "all", "--gpus", "8x80GB", "--gpu", "H100", "--nodes", "8", "--price", "0.5,1.5", "--gpu-price", "2.5"
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.strip() in (ROOT / "docs/scale.md").read_text(encoding="utf-8")


def test_the_tables_in_docs_gpu_are_the_output_of_plan() -> None:
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert command("all").stdout.strip() in page
    shown = command("rise-llama2-7b", "--gpus", "4x80GB", "--disk", "2TB", "--price", "0.5,1.5").stdout
    lines = [line.strip() for line in page.splitlines()]
    assert [line for line in map(str.strip, shown.splitlines()) if line not in lines] == []


def test_the_table_fits_80_columns_and_a_plan_that_does_not_fit_exits_with_code_2() -> None:
    done = command("rise-llama2-7b", "--gpus", "1x24GB", "--detail")
    assert done.returncode == 2
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert re.search(
        r"^does not fit: rise-finetune@base: rise\.rows\.base\.train\.launcher\.processes is 4",
        done.stderr,
        re.MULTILINE,
    )
    for stage in ("generate@iter1", "finetune@single_turn", "total"):
        assert stage in done.stdout


def test_the_totals_of_all_gpu_profiles_are_one_table() -> None:
    done = command("all")
    assert done.returncode == 0
    rows = done.stdout.strip().splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert any(row.startswith("| `spin-zephyr-7b`") for row in rows)
    assert not any("gsm8k-cpu" in row for row in rows)


@pytest.mark.parametrize(
    ("options", "unfit"),
    [
        (["--gpus", "1x24GB"], "agent-r-llama3.1-8b reflect-rl-gpt2-xl rise-llama2-7b rise-mistral-7b-selfdistill "
         "spin-llama2-7b spin-zephyr-7b"),
        (["--disk", "300GB"], "agent-r-llama3.1-8b rise-llama2-7b rise-mistral-7b-selfdistill spin-zephyr-7b"),
        (["--disk", "300GB", "--nodes", "2"],
         "agent-r-llama3.1-8b rise-llama2-7b rise-mistral-7b-selfdistill spin-zephyr-7b"),
        (["--disk", "300GB", "--method", "rise"], "rise-llama2-7b rise-mistral-7b-selfdistill"),
        (["--disk", "1TB"], ""),
    ],
)  # fmt: skip
def test_after_the_totals_of_all_gpu_profiles_those_that_do_not_fit_are_named(options: list[str], unfit: str) -> None:
    done = command("all", *options)
    assert done.returncode == (2 if unfit else 0)
    assert done.stderr.splitlines() == [
        f"{name} does not fit; plan it alone (PROFILE={name}, other settings unchanged) to see why."
        for name in unfit.split()
    ]
    assert done.stdout.startswith("| profile | ")
    if "fits" in done.stdout:
        rows = [row.split("`") for row in done.stdout.splitlines()[2:]]
        assert [row[1] for row in rows if row[2].endswith(" no |")] == unfit.split()


def test_several_methods_have_a_total_and_share_the_disk() -> None:
    done = command("default", "--disk", "2GB")
    assert done.returncode == 0
    assert "All 4 methods: " in done.stdout
    most = max(plan.kept + plan.while_running for plan in plans("default"))
    done = command("default", "--disk", f"{most / 1e6 + 1:.0f}MB")  # enough for each, not for all
    assert done.returncode == 2
    assert "rise, agent_r, reflect_rl, spin: together they need" in done.stderr


def test_make_plan_passes_on_its_settings() -> None:
    shown = subprocess.run(
        ["make", "-n", "plan", "PROFILE=rise-llama2-7b", "METHOD=rise", "GPUS=4x80GB", "GPU=A100", "DISK=2TB",
         "PRICE=1,2", "ARGS=--detail"], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for part in (
        "'rise-llama2-7b'",
        "--method 'rise'",
        "--gpus '4x80GB'",
        "--gpu 'A100'",
        "--disk '2TB'",
        "--price '1,2'",
    ):
        assert part in shown
    assert "--detail" in shown


def test_an_invalid_profile_is_refused_with_the_key_at_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("rise.evaluate.max_turn: unknown key; did you mean 'max_turns'?")):
        plans("mine", folder=overlay(tmp_path, "rise: {evaluate: {max_turn: 3}}"))
    text = "run: {seed: -1}\nspin: {evaluate: {max_turns: 0}}"  # sections that the plan of RISE does not read
    with pytest.raises(UserError, match=r"(?s)run\.seed: .*got -1.*\n.*spin\.evaluate\.max_turns: .*got 0"):
        plans("mine", "rise", folder=overlay(tmp_path, text + "\nrise: {evaluate: {max_turns: 3}}"))


def test_the_cost_of_a_short_run_is_not_rounded_to_0_and_a_run_without_gpus_has_none() -> None:
    (plan,) = plans("smollm2-gpu", "rise", Asked(gpus=(1, 80e9), hourly=2.0))
    assert plan.cost is not None
    assert 0.4 < plan.cost < 0.6
    asked = ["smollm2-gpu", "--method", "rise", "--gpus", "1x80GB", "--gpu-price", "2"]
    assert f"- Cost: {plan.cost:.2f}, of all GPUs" in command(*asked).stdout
    assert "- Cost: 0, of all GPUs" in command(*asked[:-1], "0").stdout
    assert "Cost" not in command("default", "--method", "rise", "--gpu-price", "2").stdout


def test_a_teacher_s_tokens_are_priced() -> None:
    done = command("rise-llama2-7b", "--price", "0,2", "--gpus", "4x80GB")
    assert done.returncode == 0
    assert f"{12_000 * 512 * 2 / 1e6:.2f}" in done.stdout


def test_the_name_of_an_engine_is_printed_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = composed("default", PROFILES)
    names = ["gpt-4[eu]", "gpt-4[/us]"]
    wanted["rise"]["engines"] |= {
        name: {"engine": "openai", "model": "gpt-4", "base_url": "http://localhost:1/v1"} for name in names
    }
    wanted["rise"]["iterations"]["iter1"]["generate"]["models"] = names
    with (tmp_path / "params.yaml").open("w") as file:
        YAML().dump(wanted, file)
    for folder in ("models", "profiles"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    done = command("--method", "rise")
    assert done.returncode == 0
    assert all(name in done.stdout for name in names)
