"""Rollout throughput: the engine with hundreds of waiting episodes, against what the same model could do at best.

Every way plays two-turn episodes whose second turn continues the first:

- ``limit``: a hand-written static-cache loop in which all rows have the same (mean) lengths, start together, keep
  their keys and values between turns and attend to nothing else; no row ever waits, ends early or reads twice;
- ``lockstep``: the same loop over the same requests as the engine gets, so the second turn reads its prompt anew;
- ``generate``: ``model.generate`` over whole batches, the shortest way with the library alone;
- ``one at a time``: the engine with a single slot, one episode after another.

Tokens are the completions' own tokens; times include reading the prompts. Ways are timed in turn, for several rounds,
and each keeps its best round. ``python -m bench.rollouts`` prints a table, and JSON on its last line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selfimprove.engines.base import Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.records import Message
from selfimprove.seeds import SeedKey, rng

FEEDBACK = "Your answer is incorrect. Please try again!"
SHORTEST, LONGEST = 24, 72
CONTEXT = 256


def measure(
    model_dir: Path | None = None,
    *,
    episodes: int = 320,
    slots: int = 64,
    batches: tuple[int, ...] = (32, 64, 128),
    rounds: int = 2,
    threads: int = 1,
) -> dict[str, Any]:
    """Tokens per second of every way, and the ratios between them.

    Args:
        model_dir: a model folder; None makes a random Llama (0.8M parameters), whose completions never end early.
        episodes: how many wait at once for the engine.
        slots: the engine's.
        batches: sizes that the batched ways try; the best one counts.
        rounds: how often each way is timed.
        threads: CPU threads of all ways.

    Returns:
        ``tokens_per_second`` by way; ``of_limit``, ``of_lockstep``, ``of_generate``, ``over_one_at_a_time``: the
        engine's rate over each (only the first has 1.0 as its limit: the engine reads shared prefixes once);
        ``generate_of_limit``; ``occupancy`` (all steps) and ``occupancy_until_tail`` (until 90 % of the tasks are
        done), both shares; ``valid``: whether no share exceeds 1.0, since a measurement above the limit is wrong.
    """
    import torch

    torch.set_num_threads(threads)
    with TemporaryDirectory() as scratch:
        if model_dir is None:
            from tests.tiny import make_tiny_model

            model_dir = make_tiny_model(Path(scratch), hidden=128, layers=3, heads=4)
        many = _Engine(model_dir, slots=slots, threads=threads)
        single = _Engine(model_dir, slots=1, threads=threads)
        lengths = many.typical_lengths(episodes)
        few, some = range(max(2, episodes // 40)), range(min(episodes, max(batches)))
        ways: dict[str, Callable[[], tuple[int, float]]] = {"engine": lambda: many.play(range(episodes))}
        for batch in batches:
            ways[f"limit {batch}"] = partial(_lockstep, many.model, batch, lengths, keep=True)
            ways[f"lockstep {batch}"] = partial(_lockstep, many.model, batch, lengths, keep=False)
            ways[f"generate {batch}"] = partial(_generate, many, batch, some)
        ways["one at a time"] = lambda: single.play(few, at_once=1)
        for engine in (many, single):
            engine.play(range(-2, 0))  # first calls are slower
        rates = dict.fromkeys(ways, 0.0)
        occupancy, until_tail = 0.0, 0.0
        for _ in range(rounds):
            for name, way in ways.items():
                tokens, seconds = way()
                rates[name] = max(rates[name], tokens / seconds)
                if name == "engine":
                    occupancy, until_tail = many.occupancy()
    best = {
        name: max(r for way, r in rates.items() if way.rpartition(" ")[0] == name)
        for name in ("limit", "lockstep", "generate")
    }
    rate, of_limit = rates["engine"], rates["engine"] / best["limit"]
    return {
        "threads": threads,
        "episodes": episodes,
        "slots": slots,
        "lengths": dict(zip(("prompt", "first", "feedback", "second"), lengths, strict=True)),
        "tokens_per_second": {name: round(rate, 1) for name, rate in (rates | best).items()},
        "of_limit": round(of_limit, 4),
        "of_lockstep": round(rate / best["lockstep"], 4),
        "of_generate": round(rate / best["generate"], 4),
        "generate_of_limit": round(best["generate"] / best["limit"], 4),
        "over_one_at_a_time": round(rate / rates["one at a time"], 2),
        "occupancy": round(occupancy, 4),
        "occupancy_until_tail": round(until_tail, 4),
        "valid": max(of_limit, occupancy, until_tail) <= 1.0,
    }


class _Engine:
    """The engine, and the episodes that it plays."""

    def __init__(self, folder: Path, *, slots: int, threads: int) -> None:
        from selfimprove.engines.models import load_causal_lm
        from selfimprove.engines.transformers import TransformersEngine

        rows = min(16, slots)
        cfg = TransformersEngineConfig(engine="transformers", slots=slots, context=CONTEXT, prefill_rows=rows)
        self.engine = TransformersEngine(cfg, folder, threads=threads)
        self.model = load_causal_lm(folder)
        self._tail: tuple[int, int] | None = None
        self._before = (0, 0)

    def request(self, episode: int, turn: int, messages: list[Message]) -> Request:
        """Turn ``turn`` of an episode: how long it may be is drawn from the episode's own key."""
        limit = rng("bench", episode, turn).randint(SHORTEST, LONGEST)
        return Request(messages, SeedKey(run=0, task=f"bench{episode}", turn=turn), max_tokens=limit)

    def opening(self, episode: int) -> list[Message]:
        """The first message of an episode: a word problem of its own."""
        draw = rng("bench", episode)
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        text = (
            f"Mia has {a} apples and buys {b} more. Tom reads {c} pages a day for {b} days and gives Mia {c} apples. "
            "How many apples does she have now, and how many pages does he read?"
        )
        return [Message(role="user", content=text)]

    def following(self, messages: list[Message], text: str, ids: list[int]) -> list[Message]:
        """The dialogue after a completion and the feedback on it."""
        answer = Message(role="assistant", content=text, token_ids=ids)
        return [*messages, answer, Message(role="user", content=FEEDBACK)]

    def typical_lengths(self, episodes: int) -> tuple[int, int, int, int]:
        """Mean lengths in tokens, rounded down: opening prompt, first completion, feedback, second completion."""
        prompts = [self.engine.prompt_tokens(self.opening(episode)) for episode in range(episodes)]
        turns = [[self.request(e, turn, []).max_tokens for e in range(episodes)] for turn in range(2)]
        opening = self.opening(0)
        feedback = self.engine.prompt_tokens(self.following(opening, "", [])) - self.engine.prompt_tokens(opening)
        first, second = (sum(lengths) // episodes for lengths in turns)
        return sum(prompts) // episodes, first, feedback, second

    def play(self, episodes: range, at_once: int | None = None) -> tuple[int, float]:
        """Play episodes; returns the completions' tokens and the seconds taken."""
        stats = self.engine.stats
        self._before, self._tail = (stats.busy_slot_steps, stats.slot_steps), None
        self.engine.forget_prefixes()
        began = time.perf_counter()
        tokens = asyncio.run(self._all(episodes, at_once or len(episodes)))
        return tokens, time.perf_counter() - began

    async def _all(self, episodes: range, at_once: int) -> int:
        gate = asyncio.Semaphore(at_once)
        done = 0

        async def one(episode: int) -> int:
            nonlocal done
            async with gate:
                messages, tokens = self.opening(episode), 0
                for turn in range(2):
                    completion = (await self.engine.generate(self.request(episode, turn, messages)))[0]
                    ids = completion.token_ids or []
                    messages = self.following(messages, completion.text, ids)
                    tokens += len(ids)
            done += 1
            if self._tail is None and done >= 0.9 * len(episodes):
                self._tail = (self.engine.stats.busy_slot_steps, self.engine.stats.slot_steps)
            return tokens

        return sum(await asyncio.gather(*(one(episode) for episode in episodes)))

    def occupancy(self) -> tuple[float, float]:
        """Busy slots over all, in the last play: in whole, and until 90 % of its episodes were done."""
        stats = self.engine.stats
        assert self._tail is not None
        whole, tail = (
            (busy - self._before[0]) / (steps - self._before[1])
            for busy, steps in ((stats.busy_slot_steps, stats.slot_steps), self._tail)
        )
        return whole, tail


def _lockstep(model: Any, batch: int, lengths: tuple[int, int, int, int], *, keep: bool) -> tuple[int, float]:
    """Rows of equal lengths over a static cache; greedy, so that drawing costs least.

    ``lengths``: opening prompt, first completion, feedback, second completion. ``keep``: the second turn reads the
    feedback only; otherwise its whole prompt.
    """
    import torch
    from transformers.cache_utils import Cache, CacheLayerMixin

    class Static(CacheLayerMixin):
        """Preallocated keys and values, written in place and read up to what has been written."""

        length = 0
        keys: Any
        values: Any

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            end = self.length + key_states.shape[2]
            self.keys[:, :, self.length : end] = key_states
            self.values[:, :, self.length : end] = value_states
            self.length = end
            return self.keys[:, :, :end], self.values[:, :, :end]

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
            shape = (*key_states.shape[:2], sum(lengths), key_states.shape[3])
            self.keys, self.values = (key_states.new_zeros(shape) for _ in range(2))
            self.is_initialized = True

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.length + query_length, 0

        def get_seq_length(self) -> int:
            return self.length

        def get_max_length(self) -> int:
            return sum(lengths)

    began = time.perf_counter()
    prompt, first, feedback, second = lengths
    vocabulary = model.get_input_embeddings().num_embeddings
    cache = Cache(layers=[Static() for _ in range(model.config.num_hidden_layers)])
    with torch.inference_mode():
        for read, written in ((prompt, first), (feedback if keep else prompt + first + feedback, second)):
            if not keep:
                cache = Cache(layers=[Static() for _ in range(model.config.num_hidden_layers)])
            ids = torch.arange(batch * read).view(batch, read) % vocabulary
            for _ in range(written):
                out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                ids = out.logits[:, -1].argmax(-1, keepdim=True)
    return batch * (first + second), time.perf_counter() - began


def _generate(owner: _Engine, batch: int, episodes: range) -> tuple[int, float]:
    """``model.generate``, a batch of left-padded prompts at a time; each batch runs to its longest row."""
    import torch

    chat, model = owner.engine.chat, owner.model
    began, tokens = time.perf_counter(), 0
    torch.manual_seed(0)
    for start in range(0, len(episodes), batch):
        dialogues = {episode: owner.opening(episode) for episode in episodes[start : start + batch]}
        for turn in range(2):
            prompts = [chat.encode(m, add_generation_prompt=True).ids for m in dialogues.values()]
            limits = [owner.request(episode, turn, []).max_tokens for episode in dialogues]
            width = max(map(len, prompts))
            ids = torch.tensor([[chat.pad_id] * (width - len(p)) + p for p in prompts])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=max(limits),
                    do_sample=True,
                    top_k=0,
                    pad_token_id=chat.pad_id,
                )
            for row, (episode, limit) in enumerate(zip(dialogues, limits, strict=True)):
                drawn = out[row, width : width + limit].tolist()
                ends = [at for at, token in enumerate(drawn) if token in chat.stop_ids]
                drawn = drawn[: ends[0]] if ends else drawn
                tokens += len(drawn)
                dialogues[episode] = owner.following(dialogues[episode], chat.decode(drawn), drawn)
    return tokens, time.perf_counter() - began


def show(result: dict[str, Any]) -> None:
    """Print a result of ``measure`` as a table."""
    from rich.console import Console
    from rich.table import Table

    engine = result["tokens_per_second"]["engine"]
    table = Table(title=f"Rollouts, {result['threads']} thread(s), {result['episodes']} two-turn episodes")
    table.add_column("way")
    table.add_column("tokens/s", justify="right")
    table.add_column("engine is", justify="right")
    for name, rate in result["tokens_per_second"].items():
        table.add_row(name, f"{rate:,.0f}", f"{engine / rate:.2f} x")
    Console().print(table)


def main() -> None:
    """Measure and print; exit code 1 when a ratio lies above its limit."""
    result = measure()
    show(result)
    print(json.dumps(result))
    sys.exit(0 if result["valid"] else 1)


if __name__ == "__main__":
    main()
