"""``model.generate`` with one row as an engine: like the released code, it answers one request after another."""

from pathlib import Path
from typing import Any

from selfimprove.core.chat import ChatFormat
from selfimprove.engines.base import Completion, EngineStats, Request, Templated, first_stop


class LibraryEngine(Templated):
    """Samples at the request's temperature with the library's random numbers; ends at the first stop string."""

    def __init__(self, folder: Path, context: int) -> None:
        from transformers import AutoTokenizer

        from selfimprove.models.loading import load_causal_lm

        self.stats = EngineStats()
        self.chat, self._model, self.context = ChatFormat.load(folder), load_causal_lm(folder), context
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    async def generate(self, request: Request) -> list[Completion]:
        import torch

        ids = self.chat.encode(request.messages, add_generation_prompt=True).ids
        sampling = {"do_sample": True, "temperature": request.temperature} if request.temperature else {}
        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=request.max_tokens,
                stop_strings=list(request.stop),
                tokenizer=self._tokenizer,
                pad_token_id=self.chat.pad_id,
                eos_token_id=sorted(self.chat.stop_ids),
                top_k=0,
                **sampling,
            )
        drawn = out[0, len(ids) :].tolist()
        ended = drawn[-1] in self.chat.stop_ids
        drawn = drawn[:-1] if ended else drawn
        text = self.chat.decode(drawn)
        found = first_stop(text, request.stop)
        self.stats.generated_tokens += len(drawn)
        if found:
            text = text[: found[1] if request.keep_stop else found[0]]
        return [Completion(text, "stop" if found or ended else "length", drawn)]

    def forget_prefixes(self) -> None:
        """Nothing to do: there is no prefix cache."""
