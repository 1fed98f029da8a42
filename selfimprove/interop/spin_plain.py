"""Plain SPIN step by step, like the original's scripts: reformat, generate in fractions, gather (docs/spin.md, S45).

    python -m selfimprove.interop.spin_plain reformat --data ultrachat --output-dir reformatted
    python -m selfimprove.interop.spin_plain generate --model models/sft --input-dir reformatted \\
        --output-dir generated --frac-len 800 --data-frac 0
    python -m selfimprove.interop.spin_plain gather --num-fracs 63 --input-dir generated --output-dir iter0

The pipeline does the same with ``tasks.source: chat``. A fraction is written as a whole, so a rerun gives the same
file; the original appended. Prompts have the format used in training, Zephyr's turns after an empty system turn; the
original generated with one format and trained with another.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError
from selfimprove.core.publish import aside
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, EngineError, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.methods.spin.chats import (
    STEM,
    FileFormat,
    Row,
    Split,
    content,
    fraction,
    fraction_name,
    fractions_of_test,
    gathered,
    make_row,
    read_rows_of,
    reformat,
    reformatted,
    write_rows_to,
)
from selfimprove.methods.spin.prompts import opening

EOS = "</s>"


async def answer_all(
    rows: Sequence[tuple[int, Row]], engine: Engine, *, seed: int, temperature: float, top_p: float, max_tokens: int
) -> list[Row]:
    """The opponent's answer to every (index, row), in order; the index determines its noise.

    The text of an end-of-turn token is removed, then leading white space, as in the original.

    Raises:
        UserError: as ``Engine.generate``; a row is malformed; or an answer failed permanently (with the row's index).
    """

    async def one(place: int, prompt: str, real: str) -> Row:
        request = Request(
            messages=opening(prompt, "reply"),
            seed=SeedKey(seed, f"chat-{place}"),
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
        )
        try:
            (answer,) = await engine.generate(request)
        except EngineError as error:
            raise UserError(f"row {place}: {error}; raise --context, or remove the row.") from None
        return make_row(prompt, real, answer.text.replace(EOS, "").lstrip())

    asked = [(place, content(row, f"row {place}", 0), content(row, f"row {place}", 1)) for place, row in rows]
    return list(await asyncio.gather(*(one(place, prompt, real) for place, prompt, real in asked)))


app = typer.Typer(add_completion=False, help="Plain SPIN's data, step by step.", no_args_is_help=True)


@app.command("reformat")
def reformat_command(
    data: Annotated[Path, typer.Option(help="folder of the SFT data set: JSONL, JSON or parquet files of chats")],
    output_dir: Annotated[Path, typer.Option(help="output folder of {train,test}_prefs-…")] = Path("reformatted"),
    kind: Annotated[
        Literal["ultrachat", "tulu-v2"], typer.Option(help="layout of the data set's splits")
    ] = "ultrachat",
    file_format: Annotated[FileFormat, typer.Option(help="parquet is the original's")] = "parquet",
) -> None:
    """Convert chats to rows of a prompt, its answer, and a placeholder for the opponent's."""
    rows, counts = reformat(data, kind)
    for split in ("train", "test"):
        with aside(output_dir / f"{STEM.format(split=split)}.{file_format}") as part:
            write_rows_to(part, rows[split])
    typer.echo(counts.model_dump_json())


@app.command("generate")
def generate_command(
    model: Annotated[Path, typer.Option(help="folder of the opponent")],
    input_dir: Annotated[Path, typer.Option(help="output folder of reformat")],
    output_dir: Annotated[Path, typer.Option(help="output folder of loser_<fraction>.jsonl")],
    data_frac: Annotated[int, typer.Option(min=0, help="index of the fraction")] = 0,
    frac_len: Annotated[int, typer.Option(min=0, help="number of rows in a fraction; 0: the whole set")] = 0,
    split: Annotated[Split, typer.Option()] = "train",
    batch_size: Annotated[int, typer.Option(min=1, max=8192, help="number of answers decoded concurrently")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    context: Annotated[
        int, typer.Option(min=16, max=10**7, help="maximum number of tokens in prompt and answer together")
    ] = 2048,
    temperature: Annotated[float, typer.Option(min=0, max=100)] = 1.0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1)] = 1.0,
    chat_template: Annotated[str, typer.Option(help="chat template; must be the one used in training")] = "zephyr",
    device: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    threads: Annotated[int, typer.Option(min=1)] = 2,
    seed: Annotated[int, typer.Option(min=0)] = 42,
) -> None:
    """Generate the opponent's answers to one fraction of the prompts."""
    mine = fraction([row for _, row in read_rows_of(reformatted(input_dir, split))], data_frac, frac_len)
    cfg = TransformersEngineConfig(
        engine="transformers", slots=batch_size, context=context, chat_template=chat_template, device=device,
        dtype="bfloat16" if device == "cuda" else "float32",
    )  # fmt: skip

    async def answered() -> list[Row]:
        engine = make_engine(cfg, policy_dir=model, threads=threads, expert=None)
        try:
            return await answer_all(
                mine, engine, seed=seed, temperature=temperature, top_p=top_p, max_tokens=max_tokens
            )
        finally:
            await engine.close()

    rows = asyncio.run(answered())
    with aside(output_dir / fraction_name(data_frac, split)) as part:
        write_rows_to(part, rows)


@app.command("gather")
def gather_command(
    input_dir: Annotated[Path, typer.Option(help="folder of the fractions")],
    output_dir: Annotated[Path, typer.Option(help="output folder of {train,test}_prefs-…")],
    num_fracs: Annotated[int, typer.Option(min=1, help="number of the train split's fractions")] = 125,
    split: Annotated[Split | None, typer.Option(help="only this split; default: train, and test if generated")] = None,
    file_format: Annotated[FileFormat, typer.Option(help="parquet is the original's")] = "parquet",
) -> None:
    """Combine the fractions of each split into one file; a missing one is an error."""
    of_test = fractions_of_test(input_dir)
    both: dict[Split, int] = {"train": num_fracs, "test": of_test or 1}
    wanted: list[Split] = [split] if split else ["train", "test"] if of_test else ["train"]
    gathered_rows = {one: gathered(input_dir, both[one], one) for one in wanted}
    for one, rows in gathered_rows.items():
        with aside(output_dir / f"{STEM.format(split=one)}.{file_format}") as part:
            write_rows_to(part, rows)


if __name__ == "__main__":
    run(app)
