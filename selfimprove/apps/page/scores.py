"""Token ids of trained and generated text, log-probabilities before and after training, and margins of pairs.

Ids come from the chat format used in training, so that the page shows exactly the trained tokens. Log-probabilities
are computed at temperature 1 under the row's model and under the model it started from: by default if both are
available and small enough for this to take seconds, otherwise on request. The actions of Reflect-RL's episodes have the
log-probability recorded when they were chosen.
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
from selfimprove.methods.rows import START

Wanted = Literal["auto", "yes", "no", "all"]
"""``auto``: a sample per file, small models only; ``yes``: a sample, any model; ``all``: everything; ``no``: none."""

SMALL = 200_000_000
"""Maximum size of a model's weights, in bytes, for ``auto``."""

SCORED = 24
"""Number of episodes, examples or pairs scored in each file, evenly spaced, unless ``all`` is requested."""

Dialogue = tuple[list[Message], list[list[Any] | None]]
"""Messages as the model read and wrote them; for each, the part of the page's record that gets its tokens, if any."""


class Scorer:
    """Computes ids and log-probabilities with a run's models; keeps the models of one row in memory."""

    def __init__(self, run: Run, stages: Iterable[StageShown], wanted: Wanted) -> None:
        self.run, self.wanted = run, wanted
        self._started = {
            out["path"]: next((path for path in stage.inputs if path.startswith("models/")), "")
            for stage in stages
            for out in stage.outputs
        }
        self._chats: dict[str, ChatFormat | None] = {}
        self._loaded: tuple[str, list[Any]] | None = None  # a row's folder; its models, after and before training
        self._turns: dict[tuple[str, str], int] = {}
        self._ids: dict[str, set[int]] = {}
        self.scored = False

    def extend(
        self, method: str, source: Source, count: int, line: Mapping[str, Any], record: Mapping[str, Any]
    ) -> None:
        """Add ids and log-probabilities to the parts of a record of ``source``, a file of ``count`` lines.

        Every training example gets its ids; a sample of them and of evaluation episodes gets log-probabilities.
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
            except (UserError, ValueError):
                pass  # not a dialogue in the model's chat format: shown without tokens
        ids = self._ids.setdefault(method, set())
        ids.update(*(part[2] or () for said in record["m"] for part in said["p"]))

    def margin(self, method: str, row: str, line: Mapping[str, Any], count: int) -> list[float] | None:
        """log p(real) − log p(generated), before and after training, of a pair from a file of ``count`` pairs."""
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
        """The chat format of the method's models, from any of them; None if none is available."""
        if method not in self._chats:
            models = self.run.root / "models" / method
            folders = (models / row for row in (*self.run.rows(method), START))
            found = next((one for one in folders if (one / "tokenizer.json").is_file()), None)
            try:
                self._chats[method] = ChatFormat.load(found) if found else None
            except UserError as error:
                self.run.tell(str(error))
                self._chats[method] = None
        return self._chats[method]

    def write_vocabulary(self, method: str, folder: Path) -> None:
        """Write the text of every token id that occurs in a method's records."""
        chat = self.chat(method)
        if chat is not None:
            words = {str(token): chat.token_text(token) for token in sorted(self._ids.get(method, ()))}
            write_chunk(folder, f"{method}-vocabulary", words)

    def _turn(self, method: str, name: str, shown: int) -> bool:
        """Whether to score the next of the ``shown`` items of a set; called once per item."""
        if self.wanted in ("no", "all"):
            return self.wanted == "all"
        place = self._turns.get((method, name), 0)
        self._turns[method, name] = place + 1
        return shown <= SCORED or place * SCORED // shown != (place - 1) * SCORED // shown

    def _both(self, method: str, row: str, ids: list[int]) -> list[list[float]]:
        """Log-probabilities of each token, after and before training; [] if they are not computed."""
        after = f"models/{method}/{row}"
        before = self._started.get(after, "")
        if not before or not all(self._may_read(self.run.root / name) for name in (after, before)):
            return []
        try:
            if self._loaded is None or self._loaded[0] != after:
                self._loaded = after, [self._load(name) for name in (after, before)]
            found = [_log_probs(model, ids) for model in self._loaded[1]]
        except Exception as error:  # whatever a damaged model raises, the rest of the page must still be written
            self.run.tell(f"{after}: its log-probabilities cannot be computed ({first_line(error)}).")
            self._started[after] = ""
            return []
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
        torch.set_num_threads(1)  # the models are small, and the run may be using the other CPUs
        return (
            AutoModelForCausalLM.from_pretrained(self.run.root / name, local_files_only=True, trust_remote_code=False)
            .float()
            .eval()
        )


def dialogues(line: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[Dialogue]:
    """The dialogues of a line as the engine processed them; only messages that the model wrote have a part.

    Usually one dialogue; several if later turns omitted earlier ones, none if every step has its own prompt.

    Raises:
        ValidationError: the line is neither an episode nor an example.
    """
    parts = [part for said in record["m"] for part in said["p"]]
    if "messages" in line:
        messages = [Message.model_validate(one) for one in [*line.get("prompt", ()), *line["messages"]]]
        yield messages, _written(messages, parts)
    elif "turns" in line:
        episode = Episode.model_validate(line)
        opened, later = len(episode.prompt), [message for turn in episode.turns for message in turn.messages]
        for omitted, turns in groupby(range(len(episode.turns)), lambda number: episode.turns[number].omitted):
            numbers = list(turns)
            first, last = 2 * numbers[0], 2 * numbers[-1]
            messages = [*episode.prompt, *later[omitted : last + 1]]
            written = _written([*episode.prompt, *later], parts)[opened + first : opened + last + 1]
            yield messages, [*[None] * (len(messages) - len(written)), *written]


def _written(messages: list[Message], parts: list[list[Any]]) -> list[list[Any] | None]:
    return [part if one.role == "assistant" else None for one, part in zip(messages, parts, strict=True)]


def _log_probs(model: Any, ids: list[int]) -> list[float]:
    """Log-probability of each token given its predecessors (0 for the first); [] if there are no ids, or too many.

    Raises:
        ValueError: one is not a finite number.
    """
    import torch

    if not ids or len(ids) > getattr(model.config, "max_position_embeddings", len(ids)):
        return []
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    if not chosen.isfinite().all():
        raise ValueError("some are not finite, so the weights of this model or of the one before are damaged")
    return [0.0, *chosen.tolist()]


def _encoded(chat: ChatFormat, messages: list[Message], opened: int) -> tuple[list[int], list[int]]:
    """Token ids of a side, and the positions that count in training."""
    encoded = chat.encode(messages)
    spans = [
        span for message, span in zip(messages[opened:], encoded.spans[opened:], strict=True) if message.weight
    ]  # fmt: skip
    return encoded.ids, [place for span in spans for place in range(span.start, span.stop)]
