"""The critic: estimates a state's cost to go from the hidden state at its decision (docs/reflect-rl.md, L19).

It is a linear layer or a small MLP on the last hidden state, without gradient to the body. It is trained every few
policy updates on the decisions played since, by the MSE of (Q - V) / 100. Replayed successes are excluded: V is of the
current policy, and a critic that saw successes twice would underestimate costs. The decisions are dropped after the
update; the original keeps them forever, even without a critic.
"""

from typing import Any

import torch

from selfimprove.core.seeds import key_bits
from selfimprove.core.sums import float_sum
from selfimprove.methods.reflect_rl.rl_config import CriticParams
from selfimprove.methods.reflect_rl.rl_group import Group

SCALE = 100.0
"""Divisor of the errors, as in the original."""


class Critic:
    """V of hidden states [decisions, hidden]; initially 0, as without a critic."""

    def __init__(
        self,
        params: CriticParams,
        hidden: int,
        seed: int,
        device: str = "cpu",
        *,
        weight_decay: float,
        grad_clip: float,
    ) -> None:
        self._params, self._grad_clip = params, grad_clip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key_bits(seed, "critic") % 2**63)
            last = torch.nn.Linear(hidden, 1)
            torch.nn.init.zeros_(last.weight)
            torch.nn.init.zeros_(last.bias)
            layers = [torch.nn.Linear(hidden, hidden), torch.nn.Tanh()] if params.kind == "mlp" else []
            self.head = torch.nn.Sequential(*layers, last).to(device)
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=params.lr, weight_decay=weight_decay, fused=True)
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._updates = 0

    @torch.no_grad()
    def value(self, hidden: torch.Tensor) -> torch.Tensor:
        """V [decisions]."""
        return self.head(hidden.float())[:, 0]

    def see(self, hidden: torch.Tensor, q: torch.Tensor) -> None:
        """Keep the decisions of a policy update (this process's share) until the critic's next update."""
        self._seen.append((hidden.float(), q))

    def end_update(self, group: Group) -> float | None:
        """Count a policy update, and train every few. Returns the mean loss over all processes and passes.

        Returns None if the critic was not trained, i.e. not yet due or without new decisions.
        """
        self._updates += 1
        if self._updates % self._params.every:
            return None
        count = group.total(sum(len(q) for _, q in self._seen))
        if not count:
            return None
        losses = []
        for _ in range(self._params.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.zeros(())
            for hidden, q in self._seen:
                error = (q - self.head(hidden)[:, 0]) / SCALE
                share = error.square().sum() / count
                share.backward()  # type: ignore[no-untyped-call]
                loss += share.detach().cpu()
            group.sum_gradients(self.head.parameters())
            torch.nn.utils.clip_grad_norm_(self.head.parameters(), self._grad_clip)
            self.optimizer.step()
            losses.append(group.total(float(loss)))
        self._seen = []
        return float_sum(losses) / len(losses)

    def state(self, group: Group) -> dict[str, Any]:
        """The state for exact resumption, including every process's share of the kept decisions."""
        return {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "seen": group.gather(self._seen),
            "updates": self._updates,
        }

    def restore(self, state: dict[str, Any], group: Group) -> None:
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._seen, self._updates = list(state["seen"][group.rank]), state["updates"]
