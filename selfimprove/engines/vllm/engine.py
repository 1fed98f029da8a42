"""The vLLM engine: for real models on GPUs; on a CPU, a cross-check of the exact engine.

Prompts are token ids from our chat format. Each sample is a separate request with a seed from its own key, because vLLM
seeds the children of one request with seed + index. ``thread`` drives vLLM itself.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.engines.base import Choice, Completion, EngineError, EngineStats, Request, Templated, first_stop
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm.thread import VllmThread, refusals, refused

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

IDS_AT_ONCE = 128
"""Maximum ids per request for log-probabilities (vLLM's MAX_LOGPROB_TOKEN_IDS); more ids need more requests."""


class VllmEngine(Templated):
    """Continuous batching by vLLM, with prefix caching.

    Guarantee: samples depend on their seed keys and the vLLM version. In float32 on a CPU, measurements showed no
    dependence on the batch; on GPUs and in bfloat16 that is not guaranteed. A completion that a stop string cuts inside
    a token has neither ``token_ids`` nor ``logprobs``, because no ids spell it.
    """

    def __init__(self, cfg: VllmEngineConfig, model_dir: Path) -> None:
        """Load the model, which takes from 10 s on a CPU to minutes on GPUs.

        Raises:
            UserError: there is no tokenizer or chat template, or vLLM cannot load or place the model.
        """
        self.stats = EngineStats()
        self.chat = ChatFormat.load(model_dir, cfg.chat_template)
        self.context = cfg.context
        self._thread = VllmThread(cfg, model_dir, self.stats)
        self._ask = self._thread.ask
        self._choices = lru_cache(maxsize=4096)(self._choice_ids)

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order.

        Raises:
            EngineError: prompt and ``max_tokens`` exceed the context, or vLLM refuses the request.
            UserError: the chat template refuses the messages, a choice has no ``allowed``, or vLLM has crashed.
        """
        self.stats.requests += 1
        prompt = self.chat.encode(request.messages, add_generation_prompt=True)
        ids = prompt.cut_left(self.context - request.max_tokens) if request.cut_left else prompt.ids
        try:
            self._check(request, len(ids))
            self.stats.prompt_tokens += len(ids)
            completions = await (self._decide(request, ids) if request.choice else self._write(request, ids))
        except EngineError:
            self.stats.failures += 1
            raise
        except refusals() as error:
            self.stats.failures += 1
            raise refused(error) from None
        self.stats.completions += len(completions)
        return completions

    async def close(self) -> None:
        """End the engine; waiting requests are cancelled. Closing the last engine frees the memory of all."""
        await self._thread.close()

    def _check(self, request: Request, prompt: int) -> None:
        if prompt + request.max_tokens > self.context:
            raise EngineError(
                f"the prompt has {prompt} tokens; with max_tokens {request.max_tokens} it exceeds the engine's "
                f"context of {self.context}"
            )
        if request.choice and request.max_tokens != 1:
            raise EngineError(f"{request.seed}: a choice has max_tokens {request.max_tokens} instead of 1")

    async def _write(self, request: Request, ids: list[int]) -> list[Completion]:
        """Completions of ordinary requests (not choices)."""
        outputs = await self._ask([(ids, self._params(request, index)) for index in range(request.n)])
        for output in outputs:  # vLLM ends an answer with "error" if its grammar fails, "abort" if it is cancelled
            if (ended := output.outputs[0].finish_reason) not in ("stop", "length"):
                raise EngineError(f"{request.seed}: vLLM ended the answer with {ended!r}")
        logprobs = [_logprobs(output) for output in outputs]
        if request.allowed is not None:
            logprobs = await self._score([(ids, list(output.outputs[0].token_ids)) for output in outputs])
        if outputs:
            self.stats.cached_prompt_tokens += outputs[0].num_cached_tokens or 0
        return [self._completion(o, request, p) for o, p in zip(outputs, logprobs, strict=True)]

    async def _decide(self, request: Request, ids: list[int]) -> list[Completion]:
        """Choices: vLLM returns the log-probabilities of ``allowed``, and we draw (``choices.decide``)."""
        import torch

        from selfimprove.engines.choices import decide

        if request.allowed is None:
            raise UserError(
                "engine vllm does not return probabilities over the whole vocabulary; limit the choice to labels "
                "(shrink_head or mask_invalid), or use engine transformers."
            )
        try:
            allowed = self._choices(tuple(request.allowed))
        except ValueError as error:
            raise EngineError(f"{request.seed}: {error}") from None
        scores = await self._next_logprobs(ids, allowed)
        answers = []
        for sample in range(request.n):
            # Renormalising log-probabilities over the allowed tokens equals renormalising logits.
            drawn = decide(torch.tensor([scores]), {0: (request, None)}, sample)[0]
            token = allowed[drawn.token]
            choice = Choice(ids, token, drawn.logprob, drawn.entropy)
            answers.append(Completion(self.chat.decode([token]), "length", [token], [scores[drawn.token]], choice))
        self.stats.generated_tokens += len(answers)
        return answers

    def _choice_ids(self, allowed: tuple[str, ...]) -> list[int]:
        """Ids of a choice's outputs, ascending, which is their order in a draw from the whole vocabulary."""
        from selfimprove.engines.choices import allowed_trie

        return sorted(allowed_trie(self.chat, allowed, choice=True))

    async def _next_logprobs(self, ids: list[int], tokens: list[int]) -> list[float]:
        """Log-probability of each of ``tokens`` as the next after ``ids``, under the unmodified model."""
        groups = [tokens[start : start + IDS_AT_ONCE] for start in range(0, len(tokens), IDS_AT_ONCE)]
        outputs = await self._ask([(ids, _scoring(group)) for group in groups])
        self.stats.cached_prompt_tokens += outputs[0].num_cached_tokens or 0
        scores: list[float] = []
        for group, output in zip(groups, outputs, strict=True):
            (row,) = output.outputs[0].logprobs or []
            scores += [float(row[token].logprob) for token in group]
        return scores

    def _params(self, request: Request, index: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        constraint = None
        if request.allowed is not None:
            constraint = StructuredOutputsParams(choice=list(request.allowed))
        return SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_tokens,
            seed=request.seed.at(request.seed.sample + index).bits() >> 1,  # vLLM accepts 63 bits
            stop=list(request.stop) or None,
            stop_token_ids=sorted(self.chat.stop_ids),
            structured_outputs=constraint,
            logprobs=0,  # of the sampled token only
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    async def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Log-probabilities of answers under the unconstrained model; sampling reports those of the constrained one.

        vLLM always generates one token after a prompt. An answer's last token is therefore scored as that next token,
        so that a prompt and answer that fill the context need no position beyond it.
        """
        asked = [(prompt + answer[:-1], _scoring(answer[-1:], prompt_logprobs=0)) for prompt, answer in pairs]
        scores = []
        for (prompt, answer), output in zip(pairs, await self._ask(asked), strict=True):
            rows = [*list(output.prompt_logprobs or [])[len(prompt) :], *(output.outputs[0].logprobs or [])]
            scores.append([float(row[token].logprob) for token, row in zip(answer, rows, strict=True)])
        return scores

    def _completion(self, output: RequestOutput, request: Request, logprobs: list[float]) -> Completion:
        sample = output.outputs[0]
        ids = list(sample.token_ids)
        self.stats.generated_tokens += len(ids)
        by_text = isinstance(sample.stop_reason, str)
        if sample.finish_reason == "stop" and not by_text and ids[-1:] and ids[-1] in self.chat.stop_ids:
            ids = ids[:-1]  # the end-of-turn token; its log-probability stays
        text = self.chat.decode(ids)
        found = first_stop(text, request.stop)
        if found is not None:
            return self._cut(text[: found[1] if request.keep_stop else found[0]], ids, logprobs)
        if by_text:  # vLLM found the stop string, but our decoder does not
            return self._cut(sample.text, ids, logprobs)
        return Completion(text, "length" if sample.finish_reason == "length" else "stop", ids, logprobs)

    def _cut(self, text: str, ids: list[int], logprobs: list[float]) -> Completion:
        for count in range(len(ids) + 1):
            if self.chat.decode(ids[:count]) == text:
                return Completion(text, "stop", ids[:count], logprobs[:count])
        return Completion(text, "stop")  # cut inside a token: no ids spell it


def _scoring(ids: list[int], **options: Any) -> SamplingParams:
    """Params of a request for the log-probabilities of ``ids`` as the next token."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=ids, output_kind=kind, **options)


def _logprobs(output: RequestOutput) -> list[float]:
    sample = output.outputs[0]
    assert sample.logprobs is not None
    return [float(row[token].logprob) for token, row in zip(sample.token_ids, sample.logprobs, strict=True)]
