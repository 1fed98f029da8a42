"""The small tokenizer of the embedded default: byte-level BPE with single digits, trained on the run's own texts.

Digits are separate tokens, which makes arithmetic learnable. With ``phrases`` merges may cross spaces, so that a
templated phrase becomes one token and sequences are two to three times shorter.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from selfimprove.core.chat import ChatFormat
from selfimprove.core.named_templates import NAMED_TEMPLATES, PLAIN_SPECIAL_TOKENS
from selfimprove.core.params import Section

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "tokenizer.model")


class TokenizerParams(Section):
    """Training of the tokenizer; ignored if the method's base specifies a model, whose own tokenizer is used."""

    vocab_size: int = Field(default=512, ge=300, le=1_000_000)
    texts: int = Field(default=12000, ge=1, description="number of the method's texts that it is trained on")
    phrases: bool = Field(default=True, description="merges may cross spaces")
    names: bool = Field(
        default=False, description="isolate capitalised words before merging, so that names are tokenized consistently"
    )
    template: Literal["plain", "react"] = Field(default="plain", description="react: SPIN's format, one growing text")


class TokenizerSection(Section):
    """The ``tokenizer`` section: one for each method, so that one method's texts do not affect another's results."""

    rise: TokenizerParams
    agent_r: TokenizerParams
    reflect_rl: TokenizerParams
    spin: TokenizerParams


def train_tokenizer(texts: Iterable[str], params: TokenizerParams, folder: Path, *, fixed: Sequence[str] = ()) -> None:
    """Write a tokenizer with the specified chat template to ``folder``; equal texts give equal bytes.

    ``fixed``: texts in every dialogue, such as an environment's instruction; each becomes one token.
    """
    tokenizer = Tokenizer(models.BPE())
    apart = [pre_tokenizers.Split(Regex("[A-Z][A-Za-z]*"), "isolated")] if params.names else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *apart,
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not params.phrases),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab_size,
        special_tokens=list(PLAIN_SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # With several threads, the trainer's merges of equal counts vary; one thread makes them deterministic.
    before = os.environ.get("RAYON_NUM_THREADS")
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        tokenizer.train_from_iterator(texts, trainer)
    finally:
        os.environ.pop("RAYON_NUM_THREADS") if before is None else os.environ.update(RAYON_NUM_THREADS=before)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(folder, {"pad_token": "<|pad|>", "eos_token": "<|end|>"}, NAMED_TEMPLATES[params.template])


def write_config(folder: Path, special: dict[str, str], template: str) -> None:
    """Write the two small files that make ``tokenizer.json`` a Hugging Face tokenizer folder with a chat template."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "chat_template.jinja").write_text(template)


def copy_tokenizer_files(source: Path, folder: Path) -> None:
    """Copy those of ``FILES`` that exist."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def copy_tokenizer(source: Path, folder: Path, template: str | None) -> None:
    """Copy a model's tokenizer. ``template`` (a name or a file) permanently replaces its chat template, so that every
    stage, and any server that loads the folder, formats dialogues in the same way.

    Raises:
        UserError: there is no tokenizer or no usable chat template.
    """
    ChatFormat.load(source, template)
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer_files(source, folder)
    if template is not None:
        text = NAMED_TEMPLATES[template] if template in NAMED_TEMPLATES else Path(template).read_text(encoding="utf-8")
        (folder / "chat_template.jinja").write_text(text)
    ChatFormat.load(folder)
