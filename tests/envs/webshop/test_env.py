"""WebShop's episodes: pages worded as in the original, states that are not shared, an expert that always scores 1."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EmbeddedWorld, World
from selfimprove.envs.webshop import env as env_module
from selfimprove.envs.webshop.env import WebShop
from selfimprove.envs.webshop.session import PAGE_SIZE, ShopState, open_shop, parse_action


@pytest.fixture
def shop() -> WebShop:
    return WebShop()


def play(env: Any, *actions: Any) -> Any:
    return [env.step(action) for action in actions]


def failed_by_expert(env: WebShop, tasks: Iterable[int]) -> list[int]:
    """The tasks on which the expert, followed action by action, does not reach reward 1."""
    failed = []
    for task in tasks:
        env.reset(task)
        steps = [env.step(move.action) for move in env.expert()]
        if not steps or steps[-1].reward != 1.0 or not all(step.info["valid"] for step in steps):
            failed.append(task)
    return failed


def test_the_example_episode_in_the_module_docstring_is_accurate(shop: WebShop) -> None:
    told = re.sub(r"\s+", " ", env_module.__doc__.split("::\n")[1].split("Pages and reward")[0])
    pages = [re.sub(r" \(reward 1.0\)", "", part).strip() for part in re.split(r"> (?:search|click)\[[^]]*\]", told)]
    seen = [shop.reset(0)]
    steps = play(shop, *re.findall(r"> ((?:search|click)\[[^]]*\])", told))
    seen += [step.observation for step in steps]
    for page, observation in zip(pages, seen, strict=True):
        pieces = [re.escape(piece.strip()) for piece in page.split("...")]
        assert re.match(".*".join(pieces), observation), (page, observation)
    assert steps[-1].reward == 1.0
    assert steps[-1].done


def test_the_expert_scores_1_on_a_seeded_sample_of_tasks(shop: WebShop) -> None:
    assert len(shop.task_ids()) > 4000
    assert failed_by_expert(shop, rng("validate").sample(shop.task_ids(), 300)) == []


@pytest.mark.parametrize(("products", "seed"), [(300, 1), (1500, 5)])
def test_the_expert_scores_1_in_other_catalogues(products: int, seed: int) -> None:
    env = WebShop(products, seed)
    assert failed_by_expert(env, list(env.task_ids())[::50]) == []


def test_failed_by_expert_detects_the_tasks_that_an_expert_fails(
    shop: WebShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_module.expert, "fits", lambda shop, task, product: True)  # accepts any product
    assert failed_by_expert(shop, range(40)) != []


@settings(max_examples=60)
@given(st.integers(0, 4000), st.lists(st.integers(0, 10**6), max_size=8), st.sampled_from(["", "tea", "red boots"]))
def test_the_expert_scores_1_from_any_state(task: int, choices: list[int], words: str) -> None:
    env = WebShop()
    env.reset(task)
    for choice in choices:
        valid = [action for action in env.valid_actions() if action != "click[buy now]"]
        env.step(f"search[{words}]" if words and choice % 5 == 0 else valid[choice % len(valid)])
    moves = env.expert()
    steps = []
    for move in moves:
        assert move.action in env.valid_actions()
        steps.append(env.step(move.action))
    assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert env.expert() == []


def test_the_experts_plan_shortens_by_one_action_per_step(shop: WebShop) -> None:
    for task in range(0, 400, 10):
        shop.reset(task)
        moves = shop.expert()
        for left in range(len(moves), 0, -1):
            assert len(shop.expert()) == left
            shop.step(shop.expert()[0].action)


def test_pages_follow_the_original(shop: WebShop) -> None:
    goal = open_shop(1000, 233).goals[0].instruction
    assert shop.reset(0) == f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
    assert shop.available_actions() == {"has_search_bar": True, "clickables": ["search"]}
    head = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] "
    first, second = play(shop, "search[color]", "click[Next >]")
    assert first.observation.startswith(f"{head}Page 1 (Total results: 50) [SEP] Next > [SEP] B")
    assert second.observation.startswith(f"{head}Page 2 (Total results: 50) [SEP] < Prev [SEP] Next > [SEP] B")
    listed = shop.available_actions()["clickables"]
    assert listed[:3] == ["back to search", "< prev", "next >"]
    assert len(listed) == 3 + PAGE_SIZE
    assert len(first.observation.split(" [SEP] ")) == 5 + 3 * PAGE_SIZE
    (item,) = play(shop, f"click[{listed[3]}]")
    product = open_shop(1000, 233).by_id[listed[3].upper()]
    options = [text for name, values in product.options for text in (name, *values)]
    tail = [product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}"]
    assert item.observation == " [SEP] ".join(
        [f"{head}< Prev", *options, *tail, "Description", "Features", "Reviews", "Buy Now"]
    )
    buttons = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    values = [value for _, group in product.options for value in group]
    assert shop.available_actions() == {"has_search_bar": False, "clickables": buttons + values}
    for page, texts in {
        "description": [product.description],
        "features": list(product.bullet_points),
        "reviews": [t for r in product.reviews for t in (f'"{r.title}"', str(r.score), r.body)] or ["No reviews found"],
    }.items():
        (sub,) = play(shop, f"click[{page}]")
        assert sub.observation == " [SEP] ".join([f"{head}< Prev", *texts])
        assert shop.available_actions()["clickables"] == ["back to search", "< prev"]
        assert play(shop, "click[< prev]")[0].observation == item.observation
    assert play(shop, "click[< prev]")[0].observation == second.observation
    assert play(shop, "click[< prev]")[0].observation == first.observation
    assert play(shop, "click[back to search]")[0].observation == f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"


def test_there_are_50_hits_on_5_pages_and_an_empty_sixth(shop: WebShop) -> None:
    shop.reset(0)
    pages = play(shop, "search[color]", *["click[next >]"] * 5)
    ids = [re.findall(r"\bB\d{4}\b", page.observation) for page in pages]
    assert [len(page) for page in ids] == [10] * 5 + [0]
    assert len({product for page in ids for product in page}) == 50
    assert pages[-1].observation.endswith("Page 6 (Total results: 50) [SEP] < Prev [SEP] Next >")


def test_a_search_with_no_match_is_an_empty_page(shop: WebShop) -> None:
    shop.reset(0)
    for words in ("xyzzy", "!!!", " ", "the of", "\x00\x07", "ф" * 10_000):
        step = shop.step(f"search[{words}]")
        assert step.info["valid"]
        assert step.observation.endswith("Page 1 (Total results: 0) [SEP] Next >")
        assert shop.step("click[next >]").observation.endswith("Page 2 (Total results: 0) [SEP] < Prev [SEP] Next >")


def test_search_works_on_every_page_and_returning_to_the_results_clears_the_options(shop: WebShop) -> None:
    shop.reset(0)
    for way in (["click[b0092]"], ["click[b0092]", "click[reviews]"], ["click[next >]"], ["click[back to search]"]):
        play(shop, "search[classic style warm lining shirts]", *way)
        assert "Page 1 (Total results: 50)" in shop.step("search[warm shirts]").observation
    bought = []
    for detour in ([], ["click[< prev]", "click[b0092]"], ["click[features]", "click[< prev]"]):
        shop.reset(0)
        play(shop, "search[classic style warm lining shirts]", "click[b0092]", "click[green]", "click[small]", *detour)
        bought.append(shop.step("click[buy now]").reward)
    assert bought == [1.0, 3 / 5, 1.0]  # going back to the results clears the options; a subpage keeps them


def test_the_last_choice_of_an_option_counts(shop: WebShop) -> None:
    shop.reset(0)
    play(shop, "search[classic style warm lining shirts]", "click[b0092]", "click[green]", "click[small]")
    play(shop, "click[black]", "click[white]")
    assert shop.snapshot().options == (("color", "white"), ("size", "small"))
    assert shop.step("click[buy now]").reward == 4 / 5


@pytest.mark.parametrize(
    "action",
    ["", "search[]", "search", "click[search]", "click[b0092]", "click[buy now]", "buy[now]", "Action: search[tea]",
     "click", "[]", "wait", "click[< prev]", "Search[tea]", "a" * 10_000],
)  # fmt: skip
def test_actions_that_are_not_listed_do_nothing(shop: WebShop, action: str) -> None:
    page = shop.reset(0)
    state = shop.snapshot()
    assert shop.step(action) == (page, 0.0, False, {"raw_score": 0.0, "valid": False, "disaster": False})
    assert shop.snapshot() == state


@settings(max_examples=500)
@given(st.text("[]aB \n\r", max_size=12))
def test_an_action_is_parsed_as_by_the_originals_regular_expression(action: str) -> None:
    found = re.match(r"(.+)\[(.+)\]", action.strip())
    assert parse_action(action) == ((found[1], found[2].lower()) if found else ("", ""))


def test_a_million_opening_brackets_are_parsed_quickly() -> None:
    assert parse_action("search" + "[" * 1_000_000) == ("", "")


@settings(max_examples=150)
@given(
    st.lists(
        st.text(max_size=40)
        | st.builds("{}[{}]".format, st.sampled_from(["search", "click"]), st.text(max_size=30))
        | st.sampled_from(["search[tea]", "click[next >]", "click[< prev]", "click[buy now]", "click[features]"]),
        max_size=12,
    )
)
def test_any_text_gets_an_answer_with_a_reward_between_0_and_1(actions: Any) -> None:
    env = WebShop()
    env.reset(7)
    for action in actions:
        step = env.step(action)
        assert step.observation
        assert 0.0 <= step.reward <= 1.0
        assert step.info["raw_score"] == step.reward
        assert step.done == ("Thank you for shopping" in step.observation)


def test_the_score_is_not_shown_in_the_observation(shop: WebShop) -> None:
    shop.reset(0)
    seen = play(shop, "search[classic style warm lining shirts]", "click[b0092]", "click[green]", "click[buy now]")[-1]
    assert seen.reward == 0.8
    assert seen.observation.startswith("Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it")
    assert 'asin [SEP] B0092 [SEP] options [SEP] {"color": "green"} [SEP] attrs' in seen.observation
    assert "0.8" not in seen.observation
    assert "score" not in seen.observation
    assert seen.info["final_page"] == (
        seen.observation + " [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 0.8 [SEP] Reward Details [SEP] None"
    )
    parts = seen.info["parts"]
    assert (parts["attributes"], parts["options"], parts["price"], parts["r_type"]) == (2, 1, True, 1.0)


def test_the_reward_persists_after_the_purchase(shop: WebShop) -> None:
    shop.reset(0)
    last = play(shop, *[move.action for move in shop.expert()])[-1]
    for action in ("search[tea]", "click[back to search]", "click[buy now]", "nonsense"):
        step = shop.step(action)
        assert (step.observation, step.reward, step.done) == (last.observation, 1.0, True)
        assert not step.info["valid"]
    assert shop.valid_actions() == []
    assert shop.available_actions() == {"has_search_bar": False, "clickables": []}


def test_valid_actions_are_sorted_and_all_accepted(shop: WebShop) -> None:
    shop.reset(3)
    for action in ("", "search[tea]", "click[next >]", *[m.action for m in shop.expert()[:2]], "click[features]"):
        if action:
            shop.step(action)
        actions = shop.valid_actions()
        assert actions == sorted(set(actions))
        assert sum(a.startswith("search[") for a in actions) == 1
        state = shop.snapshot()
        for valid in actions:
            shop.restore(state)
            assert shop.step(valid).info["valid"], valid
        shop.restore(state)


def test_a_snapshot_restores_its_state_in_any_copy(shop: WebShop) -> None:
    shop.reset(0)
    moves = [move.action for move in shop.expert()]
    page = play(shop, *moves[:3])[-1].observation
    moment = shop.snapshot()
    assert hash(moment) == hash(ShopState(*moment))
    after = play(shop, *moves[3:])
    other = WebShop()
    other.reset(99)
    other.restore(moment)
    assert other.step("wait").observation == page
    assert play(other, *moves[3:]) == after


def test_hundreds_of_copies_share_the_catalogue_and_no_state() -> None:
    copies = [WebShop() for _ in range(400)]
    assert len({id(copy._shop) for copy in copies}) == 1
    plans = []
    for task, copy in enumerate(copies):
        copy.reset(task)
        plans.append(copy.expert())
    rewards = [0.0] * len(copies)
    for turn in range(max(map(len, plans))):  # all episodes interleaved, one turn at a time
        for task, copy in enumerate(copies):
            if turn < len(plans[task]):
                rewards[task] = copy.step(plans[task][turn].action).reward
    assert rewards == [1.0] * len(copies)


async def _through_a_world(env: Any, task: Any) -> Any:
    world: World = EmbeddedWorld(env)
    root, _ = await world.reset(task)
    env.restore(root)
    state, left = root, None
    for move in env.expert():
        state, left = await world.step(state, move.action)
    again = await world.step(root, "click[search]")
    await world.close()
    return left, again, root


def test_a_world_can_step_again_from_an_earlier_state(shop: WebShop) -> None:
    import asyncio

    last, again, root = asyncio.run(_through_a_world(shop, 5))
    assert last.reward == 1.0
    assert again[0] == root
    assert again[1].observation.startswith("WebShop [SEP]")


@pytest.mark.parametrize("task", [-1, 10**9])
def test_an_unknown_task_is_refused(shop: WebShop, task: Any) -> None:
    with pytest.raises(UserError, match=rf"no task {task}; choose an id from 0 to \d+"):
        shop.reset(task)


def test_too_small_a_catalogue_is_refused() -> None:
    with pytest.raises(UserError, match=r"env\.products: 299 is too small"):
        WebShop(299)


def test_the_instruction_explains_how_to_act(shop: WebShop) -> None:
    for needed in ("search[keywords]", "click[value]", "Thought:", "Action:", "lists"):
        assert needed in shop.instruction
    assert (shop.name, shop.task_ids()[0]) == ("webshop", 0)
