"""A policy in training: model, head of labels and log-probabilities of packed prompts (docs/reflect-rl.md, L6).

An engine may decode with the same parameters at the same time. It keeps the whole output layer, which is frozen while
the head is shrunk, so that both compute the same distribution (``engines.base.Choice``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.errors import UserError
from selfimprove.engines.sampling import possible_by_id
from selfimprove.methods.reflect_rl.rl_config import ActingParams
from selfimprove.methods.reflect_rl.rl_objective import Decision
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.loading import Place, load_model, without_dropout, write_adapter
from selfimprove.training.objective import trained_positions
from selfimprove.training.packing import MicroBatch
from selfimprove.training.rows import render


@contextmanager
def shrunk_head(model: Any, ids: Sequence[int]) -> Iterator[torch.nn.Linear]:
    """The model with a frozen, bias-free output layer of one row per label, copied from its own; restored on exit.

    Its softmax is the full one renormalised over ``ids``, the labels' vocabulary ids in the order of the rows.
    """
    whole = model.get_output_embeddings()
    rows = _weight(whole)[list(ids)]
    head = torch.nn.Linear(rows.shape[1], len(ids), bias=False, device=rows.device, dtype=rows.dtype)
    head.weight = torch.nn.Parameter(rows.detach().clone(), requires_grad=False)
    model.set_output_embeddings(head)
    try:
        yield head
    finally:
        model.set_output_embeddings(whole)


RL = Place("rl", "engines.policy.context")


class Policy:
    """A model that takes one-token decisions and is trained on them.

    Attributes:
        model: the transformers model (with adapters: the base model that contains them).
        trainable: the trained parameters.
    """

    def __init__(
        self,
        model_dir: Path,
        params: FinetuneParams,
        seed: int,
        labels: Sequence[int] | None,
        acting: ActingParams | None = None,
    ) -> None:
        """``labels``: vocabulary ids of all labels, for a shrunk head; None keeps the vocabulary.

        ``acting``: sampling settings in play; the trained probability is the one that the policy plays with.

        Raises:
            UserError: the model cannot be loaded, its output layer has a bias, which a shrunk head would drop, or
                adapters are only in the output layer, which a shrunk head freezes.
        """
        self._model_dir, self._params, self._acting = model_dir, params, acting or ActingParams()
        self._outer, _ = load_model(model_dir, params, seed, place=RL)
        if params.lora is None or params.lora.quantize == "none":  # quantised weights are already on their device
            self._outer.to(params.device)
        else:
            in_training_dtype(self._outer, getattr(torch, params.dtype))
        self.model: Any = self._outer.get_base_model() if params.lora is not None else self._outer
        self._labels = None if labels is None else list(labels)
        head = self.model.get_output_embeddings()
        if self._labels is not None:
            if getattr(head, "bias", None) is not None:
                raise UserError(f"{model_dir}: the output layer has a bias; set shrink_head: false for this model.")
            head.requires_grad_(False)  # also freezes a tied embedding, or the copied label rows would become stale
        without_dropout(self._outer)
        if params.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.trainable = [parameter for parameter in self._outer.parameters() if parameter.requires_grad]
        if not self.trainable and params.lora is not None:
            raise UserError(
                f"rl.lora.targets: {params.lora.targets} leaves nothing to train, since shrink_head freezes the output "
                "layer; name other layers, or set shrink_head: false."
            )
        self._pad = int(getattr(self.model.config, "pad_token_id", None) or 0)
        self._wanted: torch.Tensor | None = None
        self._hidden = torch.empty(0)

    def evaluate(
        self, micro: MicroBatch, decisions: Sequence[Decision], examples: Sequence[EncodedExample]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [decisions] with gradient, and hidden states [decisions, hidden] without.

        ``examples`` contains ``example`` of each decision. Both results are in the order of the rows, ``order(micro)``.
        """
        scales = dict.fromkeys(order(micro), 1.0)
        tensors = render(micro, examples, scales, self._pad, self._params.attention)
        device = self._params.device
        self._wanted = trained_positions(tensors.pop("coefficients")).to(device)
        self._outer.train(self._params.gradient_checkpointing)
        inputs = {name: tensor.to(device) for name, tensor in tensors.items()}
        with self._head() as head:
            hook = head.register_forward_pre_hook(self._only_decisions)
            try:
                logits = self.model(**inputs, use_cache=False).logits
            finally:
                hook.remove()
        self._outer.eval()
        taken = [decisions[index] for index in order(micro)]
        return self._logprobs(logits.float(), taken), self._hidden

    @contextmanager
    def _head(self) -> Iterator[torch.nn.Module]:
        if self._labels is None:
            yield self.model.get_output_embeddings()
        else:
            with shrunk_head(self.model, self._labels) as head:
                yield head

    def _only_decisions(self, layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Pre-hook of the output layer that keeps only the hidden states at which an action is chosen."""
        chosen = inputs[0][self._wanted]
        self._hidden = chosen.detach()
        return (chosen,)

    def _logprobs(self, logits: torch.Tensor, taken: Sequence[Decision]) -> torch.Tensor:
        """[decisions] from logits [decisions, rows of the head], each renormalised over its allowed choices."""
        device = logits.device
        row = {token: at for at, token in enumerate(self._labels)} if self._labels is not None else None
        tokens = torch.tensor([row[one.token] if row else one.token for one in taken], device=device)
        whole = None if self._labels is None else set(self._labels)
        if any(one.allowed is not None and set(one.allowed) != whole for one in taken):
            barred = torch.ones_like(logits, dtype=torch.bool)
            for place, one in enumerate(taken):
                ids = range(logits.shape[1]) if one.allowed is None else one.allowed
                barred[place, [row[token] if row else token for token in ids]] = False
            logits = logits.masked_fill(barred, -torch.inf)
        cfg = self._acting
        scale = torch.full((len(taken), 1), cfg.temperature, device=device)
        with torch.no_grad():
            top_p = torch.full((len(taken),), cfg.top_p, device=device) if cfg.top_p < 1 else None
            top_k = torch.full((len(taken),), cfg.top_k, device=device) if cfg.top_k else None
            left_out = possible_by_id(logits, self._labels, scale, top_p, top_k) == -torch.inf
            left_out.scatter_(1, tokens[:, None], False)  # keep a replayed choice even if it is now excluded
        logs = torch.log_softmax(logits.masked_fill(left_out, -torch.inf) / scale, -1)
        return logs.gather(1, tokens[:, None])[:, 0]

    def state(self) -> dict[str, torch.Tensor]:
        """The trained parameters by name, as stored in checkpoints."""
        return {name: value.detach() for name, value in self._outer.named_parameters() if value.requires_grad}

    @torch.no_grad()
    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Copy a checkpoint's parameters in place, so that an engine that shares them is updated, too."""
        for name, value in self._outer.named_parameters():
            if value.requires_grad:
                value.copy_(state[name])

    def write(self, out_dir: Path, scratch: Path) -> None:
        """Write weights (with the whole output layer) and config in the training dtype, or only the adapter."""
        if self._params.lora is not None:
            adapter = scratch / "adapter"
            self._outer.save_pretrained(str(adapter))
            write_adapter(adapter, self._model_dir, self._params, out_dir)
            return
        self.model.to(getattr(torch, self._params.dtype))
        self.model.config.use_cache = True
        self.model.save_pretrained(out_dir)


def order(micro: MicroBatch) -> list[int]:
    """Indices of a micro-batch's decisions in the order of ``Policy.evaluate``'s results."""
    return [index for row in micro for index in row]


def in_training_dtype(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a quantised model's other frozen weights (embeddings, norms, biases) to the training dtype.

    peft converts them to float32. Values computed from them, including keys and values, would then be float32 too, and
    an engine over the model would need twice the memory. Adapters are not changed.
    """
    for parameter in model.parameters():
        if parameter.dtype == torch.float32 and not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def weights_hash(model: torch.nn.Module) -> str:
    """Hash of all parameters and buffers; that of a frozen model must never change."""
    digest = blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def example(decision: Decision) -> EncodedExample:
    """A decision as a training example: the prompt, and the label's token with weight 1."""
    ids = [*decision.prompt, decision.token]
    return EncodedExample(ids, [0.0] * len(decision.prompt) + [1.0])


def _weight(layer: Any) -> torch.Tensor:
    """An output layer's weights; with adapters, those of its base layer (which a new adapter doesn't change)."""
    return getattr(layer, "base_layer", layer).weight
