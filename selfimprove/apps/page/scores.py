"""Tokens of training examples, their log-probabilities before and after training, and the margins of pairs.

Ids come from the chat format that training uses, so that the page shows exactly what was learnt. Log-probabilities are
of the row's own model and of the one that it started from; they are computed where both are here and small enough for
this to take seconds, or where the user asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from selfimprove.apps.page.chunks import write_chunk
from selfimprove.apps.page.graph import StageShown
from selfimprove.apps.page.run import Run
from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError, first_line
from selfimprove.core.records import Example, Message, Pair

Wanted = Literal["auto", "yes", "no"]

SMALL = 200_000_000
"""Bytes of weights up to which log-probabilities are computed unasked."""

SCORED = 24
"""So many examples, and pairs, of a row are scored, evenly spread over those shown."""


class Scorer:
    """Reads the models of a run, one row's at a time."""

    def __init__(self, run: Run, stages: Iterable[StageShown], wanted: Wanted) -> None:
        self.run, self.wanted = run, wanted
        self._started = {
            out["path"]: next((path for path in stage.inputs if path.startswith("models/")), "")
            for stage in stages
            for out in stage.outputs
        }
        self._chats: dict[str, ChatFormat | None] = {}
        self._loaded: tuple[str, Any] | None = None
        self._before: tuple[str, Any] | None = None
        self._turns: dict[tuple[str, str, str], int] = {}
        self._ids: dict[str, set[int]] = {}
        self.scored = False

    def example(self, method: str, row: str, line: Mapping[str, Any], record: dict[str, Any], shown: int) -> None:
        """Add ids, and every few examples log-probabilities, to the parts of a training example.

        Args:
            shown: how many examples of its file the page shows.
        """
        chat = self.chat(method)
        if chat is None:
            return
        try:
            messages = Example.model_validate(line).messages
            encoded = chat.encode(messages)
        except (UserError, ValidationError):
            return
        scores = self._both(method, row, encoded.ids, "examples", shown)
        parts = [part for said in record["m"] for part in said["p"]]
        for part, span in zip(parts, encoded.spans, strict=True):
            part[2] = encoded.ids[span.start : span.stop]
            part += [_rounded(values[span.start : span.stop]) for values in scores]

    def margin(self, method: str, row: str, line: Mapping[str, Any], shown: int) -> list[float] | None:
        """log p(real) − log p(generated) of a pair, before and after training."""
        chat = self.chat(method)
        if chat is None:
            return None
        try:
            pair = Pair.model_validate(line)
            sides = [_encoded(chat, [*pair.prompt, *side], len(pair.prompt)) for side in (pair.real, pair.generated)]
        except (UserError, ValidationError):
            return None
        if not self._turn(method, row, "pairs", shown):
            return None
        both = [self._both(method, row, ids, "", 0) for ids, _ in sides]
        if not all(both):
            return None
        sums = [
            [sum(values[place] for place in places) for values in scores]
            for scores, (_, places) in zip(both, sides, strict=True)
        ]
        return [round(sums[0][1] - sums[1][1], 3), round(sums[0][0] - sums[1][0], 3)]

    def chat(self, method: str) -> ChatFormat | None:
        """The chat format of any of the method's models; None if none is here."""
        if method not in self._chats:
            models = self.run.root / "models"
            folders = [models / method / row for row in self.run.rows(method)] + [models / "base" / method]
            found = next((one for one in folders if (one / "tokenizer.json").is_file()), None)
            try:
                self._chats[method] = ChatFormat.load(found) if found else None
            except UserError as error:
                self.run.tell(str(error))
                self._chats[method] = None
        return self._chats[method]

    def note(self, method: str, record: Mapping[str, Any]) -> None:
        """Remember the ids of a record, for the vocabulary."""
        ids = self._ids.setdefault(method, set())
        for said in record["m"]:
            for part in said["p"]:
                ids.update(part[2] or ())

    def write_vocabulary(self, method: str, folder: Path) -> None:
        """The text of every token of a method's records."""
        chat = self.chat(method)
        if chat is not None:
            words = {str(token): chat.token_text(token) for token in sorted(self._ids.get(method, ()))}
            write_chunk(folder, f"{method}-vocabulary", words)

    def _turn(self, method: str, row: str, kind: str, shown: int) -> bool:
        """Whether this one, of ``shown`` that come in turn, is among those scored."""
        if self.wanted == "no":
            return False
        key = (method, row, kind)
        place = self._turns.get(key, 0)
        self._turns[key] = place + 1
        return shown <= SCORED or place * SCORED // shown != (place - 1) * SCORED // shown

    def _both(self, method: str, row: str, ids: list[int], kind: str, shown: int) -> list[list[float]]:
        """Log-probabilities of each token after and before training; [] if they are not computed."""
        if kind and not self._turn(method, row, kind, shown):
            return []
        after = f"models/{method}/{row}"
        before = self._started.get(after, "")
        if not before or not all(self._may_read(self.run.root / name) for name in (after, before)):
            return []
        try:
            if self._loaded is None or self._loaded[0] != after:
                self._loaded, self._before = (after, self._load(after)), (before, self._load(before))
        except Exception as error:  # whatever a damaged model raises, the rest of the page is worth more
            self.run.tell(f"{after}: its log-probabilities cannot be computed ({first_line(error)}).")
            self.wanted = "no"
            return []
        assert self._before is not None
        found = [_log_probs(model, ids) for model in (self._loaded[1], self._before[1])]
        self.scored = self.scored or all(found)
        return found if all(found) else []

    def _may_read(self, folder: Path) -> bool:
        files = list(folder.glob("*.safetensors"))
        if not files or not (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
            return False
        return self.wanted == "yes" or sum(path.stat().st_size for path in files) <= SMALL

    def _load(self, name: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        torch.set_num_threads(1)  # small models; and the run itself may be using the other processors
        return (
            AutoModelForCausalLM.from_pretrained(self.run.root / name, local_files_only=True, trust_remote_code=False)
            .float()
            .eval()
        )


def _log_probs(model: Any, ids: list[int]) -> list[float]:
    """Of each token after those before it (0 for the first); [] where the dialogue is longer than the model reads."""
    import torch

    if len(ids) > getattr(model.config, "max_position_embeddings", len(ids)):
        return []
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return [0.0, *chosen.tolist()]


def _encoded(chat: ChatFormat, messages: list[Message], opened: int) -> tuple[list[int], list[int]]:
    """Ids of a side, and the places that are scored in training."""
    encoded = chat.encode(messages)
    spans = [
        span for message, span in zip(messages[opened:], encoded.spans[opened:], strict=True) if message.weight
    ]  # fmt: skip
    return encoded.ids, [place for span in spans for place in range(span.start, span.stop)]


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 3) for value in values]
