"""WebShop: find and buy the product that an instruction describes (Yao et al. 2022; AgentGym's text environment).

An episode (the default catalogue's task 0)::

    WebShop [SEP] Instruction: [SEP] Find me classic style, warm lining shirts with color: green, and size: small, and
    price lower than 70.00 dollars [SEP] Search
    > search[classic style warm lining shirts]
    Instruction: [SEP] Find me ... dollars [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP]
    B2304 [SEP] Yarrow Warm Lining Classic Style Shirt [SEP] $20.0 [SEP] B4414 [SEP] Iskra Warm Lining ... [SEP] B0092
    [SEP] Corvi Classic Style Warm Lining Shirt [SEP] $32.0 [SEP] ...
    > click[b0092]
    Instruction: [SEP] Find me ... dollars [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] black [SEP] white [SEP]
    green [SEP] size [SEP] small [SEP] medium [SEP] large [SEP] Corvi Classic Style Warm Lining Shirt [SEP] Price: $32.0
    [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now
    > click[green]
    > click[small]
    > click[buy now]
    Thank you for shopping with us! [SEP] ... [SEP] Purchased [SEP] asin [SEP] B0092 [SEP] ...      (reward 1.0)

Pages and reward are the original's (docs/agent-r.md, A36 to A38). The catalogue is generated (``catalogue``), because
the original's is not obtainable. A task is an index into the goals. Everything except a shopper's ``ShopState`` is
built once and shared read-only, so copies cost nothing and are independent of each other.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step
from selfimprove.envs.webshop import expert
from selfimprove.envs.webshop.pages import final_page, render
from selfimprove.envs.webshop.reward import score
from selfimprove.envs.webshop.session import Shop, ShopState, click, clickables, open_shop, parse_action, search

INSTRUCTION = """\
You are shopping on a web site. An instruction tells you what to buy. After every action you see the page you are on, \
its parts separated by [SEP].

Two actions are possible:
search[keywords]
click[value]

search works with any keywords of your choice; choose them well. click needs a value that the current page lists: a \
button, a product's number or an option. Any other action does nothing. Choose every option that the instruction names \
before you click on Buy Now, which ends the task.

Answer in this format:
Thought: what you think
Action: search[keywords] or click[value]"""


class WebShop:
    """One shopper. Implements ``AgentEnv``; copies with the same arguments share one catalogue and index."""

    name = "webshop"
    instruction = INSTRUCTION

    def __init__(self, products: int = 1000, catalogue_seed: int = 233) -> None:
        if products < 300:
            raise UserError(f"env.products: {products} is too small for WebShop's catalogue; set 300 or more.")
        self._shop: Shop = open_shop(products, catalogue_seed)
        self._state = ShopState(0)

    def task_ids(self) -> range:
        """Indices into the goals, from 0."""
        return range(len(self._shop.goals))

    def reset(self, task_id: int) -> str:
        """The search page with the task's instruction.

        Raises:
            UserError: no such task.
        """
        if task_id not in self.task_ids():
            raise UserError(f"webshop has no task {task_id}; choose an id from 0 to {len(self._shop.goals) - 1}.")
        self._state = ShopState(task_id)
        return render(self._shop, self._state)

    def step(self, action: str) -> Step:
        """Search, click, or do nothing (then ``valid`` is False). The reward is given at ``buy now``.

        At the purchase, ``info`` also contains ``parts`` (a ``reward.Score`` as a dict) and ``final_page`` (the
        original's last page, with the score). Later actions change nothing and return the same reward (original: 0).
        """
        name, argument = parse_action(action)
        before = self._state
        if before.place == "done":
            return self._look(valid=False)
        if name == "search":
            self._state = search(before, argument)
        elif name == "click" and argument in (targets := clickables(self._shop, before)):
            self._state = click(before, targets[argument])
        else:
            return self._look(valid=False)
        if self._state.place == "done":
            parts = self._score()
            self._state = self._state._replace(reward=parts.reward)
            return self._look(valid=True, parts=asdict(parts), final_page=final_page(self._state))
        return self._look(valid=True)

    def snapshot(self) -> ShopState:
        """The state, which is immutable."""
        return self._state

    def restore(self, snapshot: ShopState) -> None:
        """Restore any copy's state; the catalogue must be the same."""
        self._state = snapshot

    def valid_actions(self) -> list[str]:
        """Every click possible on the page, and one search with the goal's keywords. Empty when done."""
        if self._state.place == "done":
            return []
        clicks = [f"click[{value}]" for value in clickables(self._shop, self._state)]
        return sorted([*clicks, f"search[{expert.keywords(self._shop, self._state.task)}]"])

    def expert(self) -> list[Move]:
        return expert.plan(self._shop, self._state)

    def available_actions(self) -> dict[str, Any]:
        """What the original's server reports: ``has_search_bar`` (True on the index page) and the ``clickables``."""
        index = self._state.place == "index"
        return {"has_search_bar": index, "clickables": ["search"] if index else [*clickables(self._shop, self._state)]}

    def instruction_text(self) -> str:
        """The current task's instruction, in the original server's format."""
        return f"Instruction: {self._shop.goals[self._state.task].instruction}"

    def _score(self) -> Any:
        state = self._state
        return score(self._shop.goals[state.task], self._shop.by_id[state.product], dict(state.options))

    def _look(self, valid: bool, **extra: Any) -> Step:
        state = self._state
        info: Mapping[str, Any] = {"raw_score": state.reward, "valid": valid, "disaster": False, **extra}
        return Step(render(self._shop, state), state.reward, state.place == "done", info)
