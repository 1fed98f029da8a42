"""The model card, written from the measured values."""

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

A decoder of {parameters:,} parameters (Llama architecture: {layers} layers, hidden size {hidden}, {heads} heads,
{positions} positions, bfloat16) with one tokenizer for all embedded worlds: word problems, TextCraft, DangerousTaxi,
text kitchens, AutoExplore and the encyclopedia. It can read and copy the worlds' text and solve similar tasks; it
searches and crafts with thoughts and actions, as the worlds' experts do. It was not trained on any method's prompts,
feedback, revisions or reflections. It is intended only for this repository's small runs.

    base:
      rise: {{model: models/pretrained}}
      spin: {{model: models/pretrained, chat_template: react}}

`make pretrain` rebuilds it from `recipe.yaml`, with identical bytes for the same packages and kind of processor.

| file | SHA-256 |
|---|---|
| model.safetensors | {weights_sha256} |
| tokenizer.json | {tokenizer_sha256} |

## Training data

{sequences:,} sequences, {tokens:,} tokens, {steps:,} steps. {lines:,} of the sequences are lines of random token ids to
copy. The others consist of pages, each used once, that the generators in `selfimprove/envs/*/pages.py` and
`selfimprove/apps/pretraining/` create from a seed: statements, recipes, maps, listings, paragraphs, single worked
steps, solved tasks, and text to copy: made-up words (`copying`) and words from pages of five worlds (`words`). Shares
of these other sequences:
{shares}.

No page shows the complete solution of a task that a method is tested on:

- Complete word problems come from the split for demonstrations, which is disjoint from the other splits.
- Complete crafting episodes use other recipe books: the embedded book with its words exchanged and its numbers redrawn.
- Questions are about other worlds, in which the same names belong to other people.
- Taxi and kitchen tasks are never shown solved. Kitchens use a separate seed. The taxi's maps are those of all
  400 grid states in which passenger and destination differ.

## Abilities

Measured on held-out pages of the same generators, with greedy decoding. An answer counts as right if it matches word
for word. For solving, only the last line counts: the result of a problem or the first action of an episode.

| world: ability | questions | right |
|---|---|---|
{answers}

| world | mean loss per answer token (nats) |
|---|---|
{losses}
"""


def card(arch: ScratchArch, text: Text, facts: Mapping[str, Any], measured: Measured, lines: int) -> str:
    """The card of a model that was trained with ``arch`` and ``text``, and on ``lines`` sequences of random ids."""
    return CARD.format(
        **arch.model_dump(),
        lines=lines,
        **{name: value for name, value in facts.items() if name != "loss"},
        shares=", ".join(f"{world} {share:.0%}" for world, share in text.shares.items()),
        answers="\n".join(
            f"| {kind} | {it.asked} | {it.right / it.asked:.1%} |" for kind, it in measured.answers.items()
        ),
        losses="\n".join(f"| {world} | {loss:.4f} |" for world, loss in measured.answer_loss.items()),
    )
