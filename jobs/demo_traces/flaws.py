"""The known ways in which a demo trace is bad. Takes a problem and returns a solution that knows its bad steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from jobs.demo_traces.problem import Problem, Step


class Solution(NamedTuple):
    """The texts of a solution, and which of its steps are bad."""

    steps: list[str]
    answer: str
    bad: list[int]
    """Numbers of bad steps, from 1; the answer comes after the last step."""
    opening: str = ""
    """What stands before the first step."""


MAX_STEPS = 12

FILLERS = (
    "The weather has been rather pleasant lately, and a short walk after lunch is good for anyone.",
    "Numbers have been written in many ways through history, for example with knots, beads and clay tablets.",
    "It is worth remembering that tidy handwriting makes a notebook nicer to look at.",
    "Some people prefer pencils to pens because a pencil can be rubbed out.",
    "A question like this could also appear in a newspaper on a Sunday morning, next to the crossword.",
    "Mathematics is taught in almost every country in the world, often from the first year of school.",
    "Many pocket calculators have a solar cell, which saves on batteries.",
    "Some of the best ideas come while waiting for the kettle to boil.",
    "The word algebra comes from Arabic, and the word geometry comes from Greek.",
    "Bees build cells with six sides, which is a lovely fact about nature.",
    "Blue ink is popular in offices, although black ink is often asked for on forms.",
    "Many famous mathematicians enjoyed music and played an instrument in the evening.",
    "A good chair and enough light are important when one sits at a desk for a long time.",
    "Libraries are quiet places, and most of them lend out games as well as novels.",
)

REPEATS = (
    "Let us say this once more.",
    "To repeat what was said before:",
    "Going over the same point again:",
    "As already stated above:",
    "Here is that step another time.",
    "Once again:",
)

RAMBLES_BEFORE = (
    "Well, before going any further, it may be a good idea to stop for a moment and think about where we are.",
    "Now, there are surely many ways in which one might go on from here, and it is hard to say which is the nicest.",
    "So, if we look at it from this side, and then perhaps from the other side too, the following can be said.",
    "It goes without saying, and yet it should perhaps be said all the same, that one thing leads to another here.",
    "Having come this far, and taking our time as one should, we may now turn to what more or less comes next.",
    "Let us try to be careful, because in matters like this one it is always better to be careful than not.",
    "Coming to the next thing, which is in some sense the thing after the last thing, we can put it like this.",
)
RAMBLES_AFTER = (
    "At least that is how it looks when all is said and done, and there is little reason to think otherwise.",
    "One could of course put this in other words, but in the end those words would come to much the same thing.",
    "That seems fine, or in any case fine enough for what we want, which is to get on with it sooner or later.",
    "This may sound obvious, and to some it will be, but it does no harm to spell it out at some length.",
    "And so, in a manner of speaking, we are a little further along than we were a little while ago.",
    "All of this is of course as one would expect, given everything that has or has not been mentioned so far.",
)

NEXT_QUESTIONS = (
    "Question: A baker sells 12 rolls in a bag. How many rolls are in 7 bags?",
    "Question: What is the sum of all even numbers from 2 to 20?",
    "Question: Each of 9 friends sends a card to every other one. How many cards are sent?",
)


def clean(problem: Problem, rng: Random) -> Solution:
    """Leave the solution right, with some of the optional steps."""
    return Solution([step.render() for step in _some(problem, rng)], problem.answer.render(), [])


def wrong_step(problem: Problem, rng: Random) -> Solution:
    """Get one number in the middle wrong; what follows goes on from the right one."""
    steps = _some(problem, rng)
    middle = [n for n in range(1, len(steps) - 2) if steps[n].result]
    at = rng.choice(middle)
    texts = [step.render() for step in steps]
    texts[at] = _misrender(steps[at], rng)
    return Solution(texts, problem.answer.render(), [at + 1])


def wrong_answer(problem: Problem, rng: Random) -> Solution:
    """Reason rightly to the end and then state another answer."""
    texts = clean(problem, rng).steps
    return Solution(texts, _misrender(problem.answer, rng), [len(texts) + 1])


def filler(problem: Problem, rng: Random) -> Solution:
    """Put sentences between the steps that have nothing to do with the question."""
    texts = _core(problem)
    for text in rng.sample(FILLERS, min(rng.randint(3, 4), MAX_STEPS - len(texts))):
        texts.insert(rng.randint(1, len(texts) - 1), text)
    return Solution(texts, problem.answer.render(), _numbers(texts, FILLERS))


def repetitive(problem: Problem, rng: Random) -> Solution:
    """Say some steps again later on, each with an opening of its own."""
    texts = _core(problem)
    times = min(rng.randint(3, 4), MAX_STEPS - len(texts))
    places = sorted(rng.sample(range(len(texts) - 1), times), reverse=True)
    again = []
    for at, opening in zip(places, rng.sample(REPEATS, times), strict=True):
        again.append(f"{opening} {texts[at]}")
        texts.insert(rng.randint(at + 1, min(at + 2, len(texts) - 1)), again[-1])
    return Solution(texts, problem.answer.render(), _numbers(texts, again))


def looping(problem: Problem, rng: Random) -> Solution:
    """Say one step over and over, word for word, before the last one."""
    texts = _core(problem)
    at = rng.randint(2, 3)
    texts = [*texts[: at + 1], *[texts[at]] * rng.randint(5, 6), texts[-1]]
    return Solution(texts, problem.answer.render(), list(range(at + 2, len(texts))))


def rambling(problem: Problem, rng: Random) -> Solution:
    """Wrap most steps in words that say nothing."""
    texts = _core(problem)
    places = rng.sample(range(len(texts)), 6)
    for at, opening in zip(places[:4], rng.sample(RAMBLES_BEFORE, 4), strict=True):
        texts[at] = f"{opening} {texts[at]}"
    for at, ending in zip(places[3:], rng.sample(RAMBLES_AFTER, 3), strict=True):
        texts[at] = f"{texts[at]} {ending}"
    return Solution(texts, problem.answer.render(), sorted(at + 1 for at in places))


def cut_off(problem: Problem, rng: Random) -> Solution:
    """Stop the last step in the middle of its sentence."""
    texts, answer = clean(problem, rng)[:2]
    words = texts[-1].split()
    texts[-1] = " ".join(words[: len(words) // 2])
    return Solution(texts, answer, [len(texts)])


def restating(problem: Problem, rng: Random) -> Solution:
    """Say the question again as the first step."""
    texts, answer = clean(problem, rng)[:2]
    return Solution([problem.instruction, *texts], answer, [1])


def running_on(problem: Problem, rng: Random) -> Solution:
    """Go on after the answer, with a question that nobody asked."""
    texts, answer = clean(problem, rng)[:2]
    return Solution(texts, f"{answer}\n\n{rng.choice(NEXT_QUESTIONS)}", [len(texts) + 1])


def open_think(problem: Problem, rng: Random) -> Solution:
    """Open a think block and never close it."""
    return clean(problem, rng)._replace(opening="<think>", bad=[1])


QUALITIES: dict[str, Callable[[Problem, Random], Solution]] = {
    "clean": clean,
    "wrong_step": wrong_step,
    "filler": filler,
    "wrong_answer": wrong_answer,
    "repetitive": repetitive,
    "looping": looping,
    "rambling": rambling,
    "cut_off": cut_off,
    "restating": restating,
    "running_on": running_on,
    "open_think": open_think,
}


def slip(number: str, rng: Random) -> str:
    """Return another positive number of about the same size, with as many decimals.

    >>> slip("12.50", Random(1)) != "12.50"
    True
    """
    whole, _, decimals = number.partition(".")
    digits = int(whole + decimals)
    off = max(1, rng.randint(digits // 12, digits // 3))
    other = digits + (off if rng.random() < 0.6 or off >= digits else -off)
    text = str(other).rjust(len(decimals) + 1, "0")
    return f"{text[: -len(decimals)]}.{text[-len(decimals) :]}" if decimals else text


def _misrender(step: Step, rng: Random) -> str:
    return step.render(slip(step.result, rng))


def _some(problem: Problem, rng: Random) -> list[Step]:
    """Return the steps that a solution needs, and some of the others."""
    return [step for step in problem.steps if not step.optional or rng.random() < 0.6]


def _numbers(texts: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return which of the texts are wanted ones, counted from 1."""
    return [n for n, text in enumerate(texts, 1) if text in wanted]


def _core(problem: Problem) -> list[str]:
    return [step.render() for step in problem.steps if not step.optional]
