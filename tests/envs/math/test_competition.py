"""The math environment and its equivalence (docs/rise.md, R6, R9 and R10)."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Problem
from selfimprove.envs.math import hendrycks
from selfimprove.envs.math.competition import Math, extract, parse_gold
from selfimprove.envs.math.world import make_env


def problem(solution: Any) -> Problem:
    return Problem("p", "q", solution, parse_gold(solution) or "")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("a\nb", "ab"),
        (r"10\!000", "10000"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\2\end{pmatrix}"),
        (r"\tfrac{1}{2}", r"\frac{1}{2}"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\left(1, 2\right)", "(1,2)"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        (r"\$5", "5"),
        (r"5\%", "5"),
        (r"5\\\%%", "5"),  # deleting one percent sign leaves another, which the original deletes too
        (r"5 \text{ cm}", "5"),
        (r"\text{yes}", r"\text{yes}"),
        (".5", r"\frac{1}{2}"),
        ("0.5", r"\frac{1}{2}"),
        (".25", "0.25"),
        ("{.5}", "{0.5}"),
        ("3, .5", "3,0.5"),
        ("x=5", "5"),
        ("x = 5", "5"),
        ("xy=5", "5"),
        ("abc=5", "abc=5"),
        ("a=b=5", "a=b=5"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"\sqrt{3}", r"\sqrt{3}"),
        (r"2\sqrt3+\sqrt5", r"2\sqrt{3}+\sqrt{5}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"\frac12+\frac34", r"\frac{1}{2}+\frac{3}{4}"),
        (r"\frac1", r"\frac1"),
        ("1/2", r"\frac{1}{2}"),
        ("-1/2", r"\frac{-1}{2}"),
        ("01/2", "01/2"),
        ("1/2/3", "1/2/3"),
        ("a/b", "a/b"),
        ("1.0/2", "1.0/2"),
        ("", ""),
    ],
)
def test_hendrycks_normal_forms(text: str, normal: str) -> None:
    assert hendrycks.normalise(text) == normal


def test_text_without_a_normal_form_is_compared_verbatim() -> None:
    for text in (r"5 \text{ m} 3 \text{ cm}", r"\sqrt", r"\frac"):
        with pytest.raises(ValueError):
            hendrycks.normalise(text)
        assert hendrycks.equivalent(text, text)
        assert not hendrycks.equivalent(text, "5")


def test_missing_answers_equal_nothing() -> None:
    assert not hendrycks.equivalent(None, None)
    assert not hendrycks.equivalent(None, "5")
    assert not hendrycks.equivalent("5", None)
    assert not Math().equivalent(None, None)


def test_rewards_are_zero_and_one() -> None:
    env, half = Math(), problem(r"It is $\boxed{\frac{1}{2}}$.")
    assert half.gold == r"\frac{1}{2}"
    for attempt, reward in [
        (r"\boxed{0.5}", 1.0),
        (r"\fbox{\dfrac12}", 1.0),
        (r"$\boxed 1/2$", 1.0),
        (r"\boxed{0.25}", 0.0),
        (r"\boxed{\frac{2}{4}}", 0.0),  # only under equiv: extended
        ("0.5", 0.0),
        (r"\boxed{", 0.0),
    ]:
        assert env.grade(attempt, half).reward == reward, attempt
    assert env.grade("no box", half).answer is None


def test_nested_braces_are_not_cut() -> None:
    root = problem(r"\boxed{\frac{\sqrt{3}}{2}}")
    assert root.gold == r"\frac{\sqrt{3}}{2}"
    assert Math().grade(r"\boxed{\frac{\sqrt{3}}{9}}", root).reward == 0
    assert Math().grade(r"\boxed{\frac{\sqrt{3}}{2}}", root).reward == 1
    assert extract(r"\boxed{\text{(A)}\ \frac{1}{\frac{1}{x^{2^{3}}}}}") == r"\text{(A)}\ \frac{1}{\frac{1}{x^{2^{3}}}}"


def test_a_box_is_read_verbatim_and_with_or_without_its_backslash_as_in_the_original() -> None:
    assert extract(r"\boxed{ \frac{1}{20}}") == r" \frac{1}{20}"
    assert Math().grade(r"\boxed{0.5}", problem(r"\boxed{ \frac{1}{2} }")).reward == 1
    five = problem(r"\boxed{5}")
    for attempt, reward in [
        (r"\boxed{x = 5}", 1),
        (r"\boxed{ x=5 }", 1),
        (r"\boxed{ x = 5 }", 0),  # " x " has three characters; only up to two before "=" are removed
        ("boxed{5}", 1),
        (r"\boxed{4}, rather boxed{5}", 1),
        (r"\boxed{5}, rather \boxed{ }", 0),
    ]:
        assert Math().grade(attempt, five).reward == reward, attempt


def test_load_names_file_and_line_of_a_solution_without_box() -> None:
    good = {"problem": "q", "solution": r"\boxed{1}", "level": "Level 1", "type": "Algebra"}
    assert [p.gold for p in Math().load([(1, good)], Path("m.jsonl"))] == ["1"]
    with pytest.raises(UserError, match=r"m\.jsonl, line 3: no \\boxed answer"):
        Math().load([(1, good), (3, {"problem": "q", "solution": "it is 1"})], Path("m.jsonl"))


@pytest.mark.parametrize(
    ("solution", "end"),
    [
        (r"So it is $\boxed{7}$.", r"$\boxed{7}$."),
        (r"So \[x = \boxed{7}.\]", r"\boxed{7}.\]"),
        (r"So $\boxed{7}$ is what we want.", r"The answer is $\boxed{7}$."),
        (r"So $x = \fbox{7}$, done.", r"The answer is $\boxed{7}$."),
    ],
)
def test_a_demonstration_ends_with_the_box(solution: str, end: str) -> None:
    text = Math().demonstration(problem(solution))
    assert text.endswith(end)
    assert Math().grade(text, problem(solution)).reward == 1


def test_a_long_text_after_the_box_is_read_in_reasonable_time() -> None:
    assert Math().demonstration(problem("\\boxed{7}" + " $" * 200_000 + "x")).endswith(r"The answer is $\boxed{7}$.")


@pytest.mark.parametrize("gold", ["7", r"\frac{1}{2}", "x+y", r"\text{Evelyn}", "-3", "0", r"\text{(A)}", r"2\pi"])
def test_a_slip_is_wrong_and_determined_by_its_key(gold: str) -> None:
    env, one = Math(), problem(rf"Thus $\boxed{{{gold}}}$.")
    slips = [env.slip(one, "run", sample) for sample in range(12)]
    assert slips == [env.slip(one, "run", sample) for sample in range(12)]
    assert all(env.grade(slip, one).reward == 0 for slip in slips)
    assert all(env.extract(slip) for slip in slips)


latex = st.text(alphabet=r"\fracsqt{}/=. 0123456789xtext$%!^circ", max_size=40)


@given(latex, latex)
def test_equivalence_never_raises_and_is_reflexive_and_symmetric(a: Any, b: Any) -> None:
    assert hendrycks.equivalent(a, a)
    assert hendrycks.equivalent(a, b) == hendrycks.equivalent(b, a)


@given(st.integers(-999, 999), st.integers(1, 999))
def test_all_spellings_of_a_fraction_are_equal(a: int, b: int) -> None:
    spellings = [f"{a}/{b}", rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a}}}{{{b}}}", rf"x = \tfrac{{{a}}}{{{b}}}"]
    assert all(hendrycks.equivalent(one, other) for one in spellings for other in spellings)


@given(st.text(max_size=60) | st.text(alphabet=r"\boxedf{} $1x", max_size=60))
def test_any_text_is_graded_without_error(text: str) -> None:
    assert Math().grade(text, problem(r"\boxed{7}")).reward in (0.0, 1.0)


def test_extended_equivalence_proves_what_the_normaliser_cannot() -> None:
    env = make_env("math", equiv="extended", grade_timeout=30.0)
    for gold, answer in ((r"\frac{2}{4}", "0.5"), ("x^2+2x+1", "(x+1)^2"), (r"\sqrt{8}", r"2\sqrt{2}")):
        assert not hendrycks.equivalent(gold, answer)
        assert env.equivalent(gold, answer)
    assert not env.equivalent("x^2", "x^3")
    assert env.equivalent("3032_5", "3032_{5}")
    assert not env.equivalent("3032_5", "3032_{6}"), "numbers in different bases"
    assert not env.equivalent("-221_3", "-221_4")
    assert env.equivalent("x_1", "x_{1}")
    assert not env.equivalent(None, None)
    assert not env.equivalent(r"\text{__import__('os')}", "0")
    env.close()  # type: ignore[attr-defined]
    assert env.timeouts == 0  # type: ignore[attr-defined]


def test_extended_equivalence_times_out_by_killing_its_process() -> None:
    env: Any = Math(extended=True, timeout=0.5)
    assert env.equivalent("x+1", "1+x")
    worker = env._symbolic._worker
    assert not env.equivalent("9^{9^{9^{9}}}", "3")  # hangs in C code, where no signal handler runs
    assert worker.poll() == -signal.SIGPROF  # from the kernel's CPU-time timer, so machine load does not matter
    assert env.timeouts == 1
    assert not env.equivalent("9^{9^{9^{9}}}", "3")
    assert env.timeouts == 1  # cached, not retried
    assert env.equivalent("2y+1", "1+2y")  # a fresh worker
    second = env._symbolic._worker
    second.kill()
    second.wait()
    assert env.equivalent("3y+1", "1+3y")  # a worker killed from outside is replaced too
    third = env._symbolic._worker
    env.close()
    assert third.poll() is not None


def test_extended_equivalence_can_be_called_from_many_threads() -> None:
    env = Math(extended=True, timeout=30.0)
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda i: env.equivalent(f"x+{i}", f"{i if i % 2 else i + 1}+x"), range(8)))
    env.close()
    assert verdicts == [i % 2 == 1 for i in range(8)]
