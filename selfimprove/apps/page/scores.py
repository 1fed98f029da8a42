"""Tokens that a model was trained on or wrote, their log-probabilities before and after training, the margins of pairs.

Ids come from the chat format that training uses, so that the page shows exactly what was learnt. Log-probabilities are
of the row's own model and of the one that it started from, at temperature 1; they are computed where both are here and
small enough for this to take seconds, or where the user asks for them. Each action of Reflect-RL's episodes has the one
that was recorded when it was chosen.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from selfimprove.apps.page.chunks import write_chunk
from selfimprove.apps.page.graph import StageShown
from selfimprove.apps.page.library import Source
from selfimprove.apps.page.run import Run
from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError, first_line
from selfimprove.core.records import Episode, Message, Pair

Wanted = Literal["auto", "yes", "no", "all"]
"""``auto``: some of a row, with small models; ``yes``: with any; ``all``: every one, with any; ``no``: none."""

SMALL = 200_000_000
"""Bytes of weights up to which log-probabilities are computed unasked."""

SCORED = 24
"""So many episodes, examples and pairs of a file are scored, evenly spread, unless all are asked for."""

Dialogue = tuple[list[Message], list[list[Any] | None]]
"""Messages as a model read and wrote them; of each the part of the page that its tokens belong to, if any."""


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
        self._turns: dict[tuple[str, str], int] = {}
        self._ids: dict[str, set[int]] = {}
        self.scored = False

    def extend(
        self, method: str, source: Source, count: int, line: Mapping[str, Any], record: Mapping[str, Any]
    ) -> None:
        """Add ids and log-probabilities to the parts of a record of ``source``, a file of ``count`` lines.

        Every training example gets its ids; so many of them, and of evaluation episodes, get log-probabilities.
        """
        trained = source.phase.startswith("training")
        scored = (trained or source.phase == "evaluation") and self._turn(method, source.name, count)
        chat = self.chat(method) if trained or scored else None
        if chat is not None:
            try:
                for messages, parts in dialogues(line, record):
                    encoded = chat.encode(messages)
                    scores = self._both(method, source.row, encoded.ids) if scored else []
                    for part, span in zip(parts, encoded.spans, strict=True):
                        if part is not None:
                            part[2] = encoded.ids[span.start : span.stop]
                            part += [[round(value, 3) for value in values[span.start : span.stop]] for values in scores]
            except (UserError, ValidationError):
                pass  # no dialogue that the method's models read: shown without tokens
        ids = self._ids.setdefault(method, set())
        ids.update(*(part[2] or () for said in record["m"] for part in said["p"]))

    def margin(self, method: str, row: str, line: Mapping[str, Any], count: int) -> list[float] | None:
        """log p(real) − log p(generated) of a pair of a file of ``count``, before and after training."""
        chat = self.chat(method)
        if chat is None:
            return None
        try:
            pair = Pair.model_validate(line)
            sides = [_encoded(chat, [*pair.prompt, *side], len(pair.prompt)) for side in (pair.real, pair.generated)]
        except (UserError, ValidationError):
            return None
        if not self._turn(method, f"{row}/pairs", count):
            return None
        both = [self._both(method, row, ids) for ids, _ in sides]
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

    def write_vocabulary(self, method: str, folder: Path) -> None:
        """The text of every token of a method's records."""
        chat = self.chat(method)
        if chat is not None:
            words = {str(token): chat.token_text(token) for token in sorted(self._ids.get(method, ()))}
            write_chunk(folder, f"{method}-vocabulary", words)

    def _turn(self, method: str, name: str, shown: int) -> bool:
        """Whether this one, of ``shown`` that come in turn, is among those scored."""
        if self.wanted in ("no", "all"):
            return self.wanted == "all"
        place = self._turns.get((method, name), 0)
        self._turns[method, name] = place + 1
        return shown <= SCORED or place * SCORED // shown != (place - 1) * SCORED // shown

    def _both(self, method: str, row: str, ids: list[int]) -> list[list[float]]:
        """Log-probabilities of each token after and before training; [] if they are not computed."""
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
        return self.wanted in ("yes", "all") or sum(path.stat().st_size for path in files) <= SMALL

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


def dialogues(line: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[Dialogue]:
    """What the model read and wrote in a line of a file, as the engine had it; only what it wrote has a part.

    One dialogue, but several where later turns left out earlier ones, none where every step has a prompt of its own.

    Raises:
        ValidationError: no episode and no example.
    """
    parts = [part for said in record["m"] for part in said["p"]]
    if "messages" in line:
        messages = [Message.model_validate(one) for one in [*line.get("prompt", ()), *line["messages"]]]
        yield messages, _written(messages, parts)
    elif "turns" in line:
        episode = Episode.model_validate(line)
        opened, later = len(episode.prompt), list[Message]()
        for turn in episode.turns:
            said = turn.attempt
            later.append(Message(role="assistant", content=said.text, token_ids=said.token_ids, finish=said.finish))
            later.append(Message(role="user", content=turn.observation))
        for omitted, turns in groupby(range(len(episode.turns)), lambda number: episode.turns[number].omitted):
            numbers = list(turns)
            first, last = 2 * numbers[0], 2 * numbers[-1]
            messages = [*episode.prompt, *later[omitted : last + 1]]
            written = _written([*episode.prompt, *later], parts)[opened + first : opened + last + 1]
            yield messages, [*[None] * (len(messages) - len(written)), *written]


def _written(messages: list[Message], parts: list[list[Any]]) -> list[list[Any] | None]:
    return [part if one.role == "assistant" else None for one, part in zip(messages, parts, strict=True)]


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
