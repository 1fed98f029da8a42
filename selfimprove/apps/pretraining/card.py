"""The model card, generated from the measurements."""

from collections.abc import Mapping
from typing import Any

from selfimprove.apps.pretraining.abilities import Measured
from selfimprove.apps.pretraining.corpus import Text
from selfimprove.models.scratch import ScratchArch

CARD = """\
---
license: apache-2.0
language: en
---
# A pretrained base for the embedded worlds

A decoder of {parameters:,} parameters (Llama architecture: {layers} layers of {hidden}, {heads} heads, {positions}
positions, bfloat16) with one tokenizer for all embedded worlds: word problems, TextCraft, DangerousTaxi, text kitchens,
AutoExplore and the encyclopedia. It reads and copies the worlds' text and solves tasks like theirs, searching
and crafting by thoughts and actions as their experts do; it knows no method's prompts, feedback, revisions or
reflections. It is for this repository's small runs and of no use elsewhere.

    base:
      rise: {{model: models/pretrained}}
      spin: {{model: models/pretrained, chat_template: react}}

`make pretrain` makes it again from `recipe.yaml`; with the same packages and kind of processor the bytes are the same.

| file | SHA-256 |
|---|---|
| model.safetensors | {weights_sha256} |
| tokenizer.json | {tokenizer_sha256} |

## What it was trained on

{sequences:,} sequences, {tokens:,} tokens, {steps:,} steps; each page once. The pages are made by the generators in
`selfimprove/envs/*/pages.py` and `selfimprove/apps/pretraining/copying.py` from a seed: statements, recipes, maps,
listings, paragraphs, single worked steps, solved tasks and made-up words to copy. What is solved from start to end is
never a task that a method is tested on: word problems are of the split that demonstrations come from, which no other
split shares; crafting is in other books (the embedded one's words exchanged, its numbers drawn anew); questions are
about other worlds, in which the same names mean other people. No ride and no kitchen is solved. Kitchens have a seed of
their own; the taxi's {states} maps are all of the grid's. Shares of sequences:
{shares}.

## What it can do

On held-out pages of the same generators, greedy. An answer counts if it is right word for word; of solving, the last
line: the result of a problem, the first action of an episode.

| world: ability | asked | right |
|---|---|---|
{answers}

| world | loss of an answer's token (nats) |
|---|---|
{losses}
"""

STATES = 500


def card(arch: ScratchArch, text: Text, facts: Mapping[str, Any], measured: Measured) -> str:
    """The card of a model built from ``arch`` and ``text``."""
    return CARD.format(
        **arch.model_dump(),
        **{name: value for name, value in facts.items() if name != "loss"},
        states=STATES,
        shares=", ".join(f"{world} {share:.0%}" for world, share in text.shares.items()),
        answers="\n".join(
            f"| {kind} | {it.asked} | {it.right / it.asked:.1%} |" for kind, it in measured.answers.items()
        ),
        losses="\n".join(f"| {world} | {loss:.4f} |" for world, loss in measured.answer_loss.items()),
    )
