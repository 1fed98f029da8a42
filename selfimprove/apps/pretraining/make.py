"""Builds a pretrained base: tokenizer, random weights, training on the worlds' pages, and an evaluation."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from selfimprove.apps.pretraining.abilities import Measured, measure
from selfimprove.apps.pretraining.card import card
from selfimprove.apps.pretraining.corpus import IDS, Lines, PhaseShares, Text, encoded
from selfimprove.apps.pretraining.tied import tie
from selfimprove.apps.pretraining.words import make_tokenizer
from selfimprove.core.errors import UserError, fault
from selfimprove.core.forking import START
from selfimprove.core.params import Section
from selfimprove.core.publish import publish, write_json
from selfimprove.core.sources import sha256_of
from selfimprove.core.yaml import read_yaml
from selfimprove.models.scratch import ScratchArch, build_scratch_model
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.launch import finish, launch, prepare
from selfimprove.training.progress import Progress
from selfimprove.training.report import TrainReport


class Vocabulary(Section):
    """The tokenizer's size, and the number of pages of each world on which words are counted."""

    size: int = Field(ge=300, le=1_000_000)
    pages: int = Field(ge=1, le=1_000_000)


class Phase(Section):
    """One training phase: its number of new sequences, each read once, and learning rate; the optimiser is reset."""

    sequences: int = Field(ge=1, le=10_000_000)
    lr: float = Field(gt=0)
    schedule: Literal["constant", "linear"]
    shares: PhaseShares | None = Field(default=None, description="overrides text.shares")
    lines: Lines | None = Field(
        default=None, description="lines to copy: the contents of the share ids, or the whole phase without shares"
    )
    batch_size: int | None = Field(default=None, ge=1, description="overrides train.batch_size")

    @model_validator(mode="after")
    def _lines_for_ids(self) -> Phase:
        if self.shares is not None and (IDS in self.shares) != (self.lines is not None):
            raise ValueError("lines: say what the share ids holds, and only where there is such a share")
        return self


class PretrainingRecipe(Section):
    """Everything that determines the model, except for package versions and the kind of processor."""

    seed: int
    threads: int = Field(ge=1)
    vocabulary: Vocabulary
    arch: ScratchArch
    text: Text
    train: FinetuneParams
    phases: list[Phase] = Field(
        min_length=1, description="run in order; more phases can be inserted before the last one"
    )


def read_recipe(file: Path) -> PretrainingRecipe:
    """Read a recipe from a YAML file.

    Raises:
        UserError: the file cannot be read, or a key is invalid (the message names it).
    """
    try:
        return PretrainingRecipe.model_validate(read_yaml(file))
    except ValidationError as error:
        raise UserError(f"{file}: {fault(error)}; fix the key.") from None


def make(recipe_file: Path, folder: Path, scratch: Path) -> Measured:
    """Build the model folder and publish it atomically; after an interruption, training resumes.

    Args:
        folder: replaced if it exists.
        scratch: folder for tokenizer, initial weights and checkpoints.
    """
    recipe = read_recipe(recipe_file)
    start, trained = scratch / "start", scratch / "trained"
    shutil.rmtree(start, ignore_errors=True)
    make_tokenizer(recipe.vocabulary.pages, recipe.vocabulary.size, scratch / "tokenizer", recipe.seed)
    parameters = build_scratch_model(recipe.arch, scratch / "tokenizer", start, recipe.seed)
    tie(start)
    reports = _train(recipe, start, scratch)
    shutil.rmtree(trained, ignore_errors=True)
    shutil.copytree(scratch / f"phase-{len(reports)}", trained)
    tie(trained, tied=False)
    measured = measure(recipe.text, trained, recipe.seed, threads=recipe.threads)
    facts = {
        "parameters": parameters,
        "sequences": sum(report.examples for report in reports),
        "steps": sum(report.steps for report in reports),
        "tokens": sum(report.real_tokens for report in reports),
        "weights_sha256": sha256_of(trained / "model.safetensors"),
        "tokenizer_sha256": sha256_of(trained / "tokenizer.json"),
        "loss": [loss for report in reports for _, loss in report.loss],
    }
    write_json(trained / "measures.json", {**facts, **measured.model_dump(mode="json")})
    shutil.copyfile(recipe_file, trained / "recipe.yaml")
    lines = sum(phase.sequences for phase in recipe.phases if phase.lines is not None and phase.shares is None)
    (trained / "README.md").write_text(card(recipe.arch, recipe.text, facts, measured, lines), encoding="utf-8")
    publish(trained, folder)
    return measured


def _train(recipe: PretrainingRecipe, start: Path, scratch: Path) -> list[TrainReport]:
    """Train each phase from the previous one's weights, in ``scratch/phase-<number>``; finished phases are reused."""
    from selfimprove.training.trainer import SftJob, train

    reports, first = [], 0
    for number, phase in enumerate(recipe.phases, start=1):
        out, done = scratch / f"phase-{number}", scratch / f"phase-{number}.json"
        key = _key(recipe, number, start)
        if done.is_file() and (kept := json.loads(done.read_text(encoding="utf-8")))["key"] == key:
            reports.append(TrainReport.model_validate(kept["report"]))
            start, first = out, first + phase.sequences
            continue
        shutil.rmtree(out, ignore_errors=True)
        part = prepare(start, out)
        numbers = range(first, first + phase.sequences)
        sequences = _sequences(recipe, phase, start, numbers)
        batch = phase.batch_size or recipe.train.batch_size
        changed = {"lr": phase.lr, "schedule": phase.schedule, "batch_size": batch}
        params = recipe.train.model_copy(update=changed)
        job = SftJob(
            model_dir=start,
            out_dir=part,
            checkpoints=scratch / "checkpoints",
            params=params,
            seed=recipe.seed,
            threads=recipe.threads,
        )
        reports.append(launch(job, scratch, sequences, train, TrainReport, _tell(number)))
        finish(start, part, out, params.dtype)
        write_json(done, {"key": key, "report": reports[-1].model_dump(mode="json")})
        start, first = out, first + phase.sequences
    return reports


def _sequences(recipe: PretrainingRecipe, phase: Phase, model: Path, numbers: range) -> list[EncodedExample]:
    """A phase's sequences in order, generated by as many processes as training uses."""
    write = partial(encoded, recipe.text, model, recipe.seed, shares=phase.shares, lines=phase.lines)
    parts = [numbers[i : i + 500] for i in range(0, len(numbers), 500)]
    with ProcessPoolExecutor(recipe.train.launcher.processes, get_context(START)) as pool:
        return [one for part in pool.map(write, parts) for one in part]


def _key(recipe: PretrainingRecipe, phase: int, start: Path) -> str:
    """A hash of everything that determines a phase's result: its settings, earlier phases' and the initial weights."""
    settings = recipe.model_copy(update={"phases": recipe.phases[:phase]}).model_dump_json()
    return blake2b(f"{settings}\n{sha256_of(start / 'model.safetensors')}".encode(), digest_size=12).hexdigest()


def _tell(phase: int) -> Progress:
    """A callback that prints a JSON line whenever training reports metrics."""
    began = time.monotonic()

    def tell(done: int, total: int, note: str, metrics: Mapping[str, float], /) -> None:
        if metrics:
            line = {"phase": phase, "step": done, "of": total, "seconds": round(time.monotonic() - began), **metrics}
            print(json.dumps(line), file=sys.stderr, flush=True)

    return tell
