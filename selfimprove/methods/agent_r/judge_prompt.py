"""The judge's prompt for one action of a log, and the parser of its answer (docs/agent-r.md, A18 and A19).

The answer gives reasons first ::

    … Action: craft 1 stick using 1 stone   Observation: Could not find a valid recipe …
    Sticks are made of planks, and the stone is now missing for the furnace.
    Judgement: Bad
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from selfimprove.core.records import Message, Record
from selfimprove.envs.params import EnvParams, Judged, TextParams
from selfimprove.envs.registry import adapter, named
from selfimprove.methods.agent_r.params import JudgeStyle

Verdict = Literal["good", "bad", "uncertain"]
VERDICTS: tuple[Verdict, ...] = ("good", "bad", "uncertain")

SHORT_HISTORY = 2
"""Number of earlier steps in the short prompt."""
HEADING = "# Task"
"""The goal is on the line after this heading."""

_INSTRUCTION = re.compile(r"\A.*^Action: [^\n]*\n\n", re.DOTALL | re.MULTILINE)


class Judgement(Record):
    """A judge's answer about one action. If ``parsed`` is false, no verdict was found, and it counts as uncertain.

    ``omitted``: number of the log's oldest steps that did not fit the judge's context.
    """

    verdict: Verdict
    text: str
    parsed: bool = True
    omitted: int = 0


class Did(NamedTuple):
    """An action and its observation."""

    action: str
    observation: str


_FULL = """\
You check the log of an agent that acts in {kind}. The log lists, in order, what the agent did and what it saw after it:

Action: <what the agent did>
Observation: <what it saw then>

Decide about the current action, the last one, and about no other. Call it
- Good, if it clearly brings the agent closer to finishing the task;
- Bad, if it clearly does harm: it leads away from the task, wastes what is needed, or repeats what has failed;
- Uncertain, if it does neither, or if the log does not let you decide.

Task: {task}

Log so far:
{history}

Current action: {action}
Observation after it: {observation}

First give your reasons in a few sentences. Then end with one line of exactly this form:
Judgement: <Good|Bad|Uncertain>"""

_SHORT = """\
Judge the last {kind} step.
{task}
{history}Action: {action}
Observation: {observation}
Reason, then Judgement: Good, Bad or Uncertain?"""


def judge_prompt(
    env_name: str, task: str, history: Sequence[Did], current: Did, style: JudgeStyle = "full", *, dropped: int = 0
) -> list[Message]:
    """The judge's prompt: one user message.

    Args:
        env_name: selects the wording; an environment without its own is called a text world.
        task: the task description, i.e. the first observation.
        history: the earlier steps, oldest first.
        current: the step to judge.
        style: ``short``: the task in one line and the last ``SHORT_HISTORY`` steps, for a small model.
        dropped: number of the oldest steps to leave out because they do not fit.
    """
    judged = _judged(env_name)
    if judged.goal:  # after the task: in a mixture, text before it would be treated as the instruction
        task = f"{task}\n{judged.goal}"
    if style == "short":
        shown = history[dropped:][-SHORT_HISTORY:]
        lines = "".join(f"Action: {did.action}\nObservation: {did.observation}\n" for did in shown)
        text = _SHORT.format(kind=judged.short, task=task_line(task), history=lines, **current._asdict())
    else:
        steps = [f"Action: {did.action}\nObservation: {did.observation}" for did in history[dropped:]]
        if dropped:
            steps.insert(0, f"({dropped} earlier steps are left out)")
        text = _FULL.format(
            kind=judged.kind, task=task, history="\n".join(steps) or "(nothing yet)", **current._asdict()
        )
    return [Message(role="user", content=text)]


def _judged(env_name: str) -> Judged:
    """The environment's own wording, or that of the adapter it is used through, or the default."""
    section = named(EnvParams).get(env_name, TextParams)
    made = adapter(TextParams, section) or TextParams
    return section.judged or made.judged or TextParams.judged


def task_line(task: str) -> str:
    """The line of a task description that states the goal.

    This is the line after a heading ``# Task``, or the last line that starts with Goal or Task, or the first line. In a
    mixture, the environment's instruction precedes the task; it ends with ``Action: …`` and is skipped.
    """
    alone = _INSTRUCTION.sub("", task, count=1)
    lines = [line.strip() for line in alone.splitlines() if line.strip()]
    if HEADING in lines[:-1]:
        return lines[lines.index(HEADING) + 1]
    goals = [line for line in lines if re.match(r"(?:goal|task|your task)\b", line, re.IGNORECASE)]
    return (goals or lines or [""])[-1 if goals else 0]


_MARKER = re.compile(r"judge?ment\b[\s*_`\"']*[:：]", re.IGNORECASE)
_LABEL = re.compile(r"(?<![^\W_])(?:good|bad|uncertain)(?![^\W_])", re.IGNORECASE)
_NOT = re.compile(
    r"(?<![^\W_])(?:not(?!\s+only\b)|no(?!\s+(?:doubt|question)\b)|nor|neither|never|nothing|hardly|cannot)(?![^\W_])"
    r"|n['’]t(?![^\W_])",
    re.IGNORECASE,
)
# "and" ends a clause if a new clause with its own verb follows ("does not hurt and is good"). An arrow begins where its
# dashes do; tried at each dash, a long rule would take quadratic time.
_CLAUSE_END = re.compile(
    r"[.,;:!?()\[\]–—→⇒=|]|(?<!-)-+>|\s-+\s"
    r"|\b(?:but|because|since|although|though|while|whereas|however|hence|therefore|thus)\b"
    r"|\band\s+(?=(?:it|this|that|is|was|so)\b)"
    r"|(?<!\bnot\s)(?<!n['’]t\s)\bso\s+(?=(?:it|this|that|the|is)\b|(?-i:Good|Bad|Uncertain))"  # not "not so good"
    r"|(?<!good)(?<!bad)(?<!uncertain)(?<!\s)\s*/",  # not "not good/bad"
    re.IGNORECASE,
)
_OR = re.compile(r"\s*(?:/|\bor\b)", re.IGNORECASE)


def parse_verdict(reply: str) -> Verdict | None:
    """The verdict of a reply, or None.

    Only labels on a line after ``Judgement:`` or ``Judgment:`` count (the next nonempty line if nothing follows). The
    last label of all such lines wins. A negation applies to the next label of its clause at any distance, and across an
    "or": "not good" and "I would not say that this is good" are bad, "neither good nor bad" is uncertain, and "not bad"
    is uncertain unless there is another label. Text without the marker is no verdict. The original accepts any reply
    that mentions "good", even "not good", and treats an empty one as bad.
    """
    verdict: Verdict | None = None
    pieces = _MARKER.split(reply)
    for piece in pieces[1:]:
        line = next((line for line in piece.splitlines() if line.strip(" \t*_`\"'")), "")
        found = _line_verdict(line)
        verdict = found or verdict
    return verdict


def _line_verdict(line: str) -> Verdict | None:
    verdict: Verdict | None = None
    before: Verdict | None = None  # the previous label, if it was negated
    for label, negated in _labels(line):
        if not negated:
            verdict = label
        elif {label, before} == {"good", "bad"}:
            verdict = "uncertain"
        elif label == "good":
            verdict = "bad"
        else:
            verdict = verdict or "uncertain"
        before = label if negated else None
    return verdict


def _labels(line: str) -> Iterator[tuple[Verdict, bool]]:
    """Each label of a line with whether it is negated."""
    for clause in _CLAUSE_END.split(line):
        negated, at = False, 0
        for match in _LABEL.finditer(clause):
            between = clause[at : match.start()]
            negated = bool(_NOT.search(between)) or (negated and _OR.match(between) is not None)
            yield next(verdict for verdict in VERDICTS if verdict == match[0].lower()), negated
            at = match.end()


def judgement_of(reply: str) -> Judgement:
    """A reply as a judgement; an unparsable one is marked as such and is uncertain."""
    verdict = parse_verdict(reply)
    return Judgement(verdict=verdict or "uncertain", text=reply, parsed=verdict is not None)


def answer(reason: str, verdict: Verdict) -> str:
    """A judge's reply in the requested form."""
    return f"{reason}\nJudgement: {verdict.capitalize()}"
