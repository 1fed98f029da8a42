"""The card (README.md) of a trained row: its base, data, settings and results.

Text from params, files or data is shown literally: fenced, or with Markdown's special characters escaped.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import ModelCardData
from ruamel.yaml import YAML

from selfimprove.core.errors import printable_line
from selfimprove.core.git import git
from selfimprove.core.records import read_object
from selfimprove.core.sources import load_sources

METHODS = {
    "rise": ("RISE", "several attempts with feedback, learning from the better ones by their reward", "2407.18219"),
    "agent_r": ("Agent-R", "revision trajectories from tree search, iterated self-training", "2501.11425"),
    "reflect_rl": ("Reflect-RL", "a frozen reflection model, and a policy trained by reinforcement", "2402.12621"),
    "spin": ("SPIN", "self-play fine-tuning against the model of the round before", "2401.01335"),
}
"""By section: name, idea, arXiv number."""


@dataclass(frozen=True)
class Row:
    """A row of a method's table, with the data for its card.

    Attributes:
        base: name and revision of the public base; None: trained from scratch, or from a folder.
        base_text: description of the model that the method started from.
        licence: identifier of the weights' licence; None if only the base model's own page states it.
        settings: params of the row, by key.
        adapter: whether the repository contains a LoRA adapter of ``base`` instead of full weights.
    """

    method: str
    name: str
    base: tuple[str, str] | None
    base_text: str
    licence: str | None
    settings: Mapping[str, Any]
    section: Mapping[str, Any]
    adapter: bool


def card(row: Row, repository: str, results: Path) -> str:
    """The complete card of ``row`` for the repository ``owner/name``; ``results``: the row's folder of results."""
    name, idea, paper = METHODS[row.method]
    data = ModelCardData(
        base_model=row.base[0] if row.base else None,
        library_name="peft" if row.adapter else "transformers",
        pipeline_tag="text-generation",
        license=row.licence or "other",
        license_name=None if row.licence else "that-of-the-base-model",
        tags=["selfimprove", row.method.replace("_", "-")],
    )
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {escaped(repository.rpartition('/')[2])}",
        f"The row {escaped(row.name)} of {name} ({idea}; [arXiv {paper}](https://arxiv.org/abs/{paper})), trained with "
        "the repository *selfimprove*.",
        f"- **Base:** {row.base_text}\n- **Commit of the code:** {_commit()}",
        "## How to load it\n\n" + fenced(_loading(row, repository), "python"),
        "## Results\n\n" + _results(results),
        "## Data\n\n" + "\n".join(_data(row.section)),
        "## Settings\n\nOf this row, from `params.yaml`:\n\n" + fenced(_yaml(_shown(row.settings)), "yaml"),
        "## Licence\n\n" + _licence(row),
    ]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """One line of text that Markdown and HTML render literally."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&])", r"\\\1", printable_line(text))


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in the text; control characters are removed."""
    plain = "".join(c for c in text if c == "\n" or c.isprintable())
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence}{language}\n{plain.rstrip()}\n{fence}"


def _loading(row: Row, repository: str) -> str:
    if not row.adapter or row.base is None:
        return (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{repository}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{repository}")'
        )
    base, revision = row.base
    return (
        "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"base = AutoModelForCausalLM.from_pretrained({json.dumps(base)}, revision={json.dumps(revision)})\n"
        f'model = PeftModel.from_pretrained(base, "{repository}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{repository}")  # with the chat template of training'
    )


def _results(folder: Path) -> str:
    """Every metric that has a standard error."""
    file = folder / "metrics.json"
    if not file.is_file():
        return "Not evaluated yet."
    rows = list(_metrics(read_object(file)))
    lines = ["| metric | mean | standard error | n |", "|---|---:|---:|---:|"]
    lines += [f"| {escaped(name)} | {one['mean']:.4g} | {one['se']:.2g} | {one.get('n', '')} |" for name, one in rows]
    return "On held-out tasks:\n\n" + "\n".join(lines)


def _metrics(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(value.get("mean"), (int, float)) and "se" in value:
            yield place + name, {**value, "se": value["se"] if isinstance(value["se"], (int, float)) else float("nan")}
        elif isinstance(value, Mapping):
            yield from _metrics(value, f"{place}{name}.")


def _data(section: Mapping[str, Any]) -> Iterator[str]:
    """The declared sources whose names start with one of the method's tasks or tools, each with its licence."""
    named = {value for key in ("tasks", "tools", "play_tools") for value in _strings(section.get(key))}
    if named & {"hotpotqa", "gpt-4"}:
        named.add("fireact")
    found = [
        f"- {escaped(source.about)} (licence: {escaped(source.licence)})"
        for name, source in load_sources().items()
        if any(name == value or name.startswith(f"{value}_") for value in named)
    ]
    yield from found or ["- Tasks that the repository makes itself, or files of the user's."]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)


def _shown(value: Any) -> Any:
    """Settings without this machine's folders: an absolute path is reduced to its last part."""
    if isinstance(value, Mapping):
        return {str(key): _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, str) and (PurePath(value).is_absolute() or value.startswith("~")):
        return f"…/{PurePath(value).name}"
    return value


def _yaml(value: Any) -> str:
    out, yaml = StringIO(), YAML()
    yaml.width = 100
    yaml.dump(value, out)
    return out.getvalue()


def _commit() -> str:
    code, commit = git("rev-parse", "HEAD")
    if code != 0:
        return "unknown"
    _, changed = git("status", "--porcelain", "-uno")
    return f"`{commit.strip()}`" + (", with changes that were not committed" if changed.strip() else "")


def _licence(row: Row) -> str:
    data = "and, as far as it reaches, those of the data above"
    if row.licence is not None:
        return f"The weights are under {row.licence}, {data}; the code is under Apache-2.0."
    return f"The weights are under the licence of the base model, {data}; the code is under Apache-2.0."
