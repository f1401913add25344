"""The kinds of demo problem: each draws its numbers and works the solution out. Knows no flaws and no files."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd, isqrt, lcm
from random import Random

from jobs.demo_traces import figure_wordings, word_wordings
from jobs.demo_traces.problem import Drawing, Problem, Values, compose, money, plain

NAMES = ("Ana", "Ben", "Chloe", "David", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Keiko", "Liam")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def discount(rng: Random) -> Problem:
    """A percentage off a price, then a tax."""
    price, off, tax = rng.randrange(40, 260, 20), rng.choice((10, 15, 20, 25, 30, 35, 40)), rng.choice((5, 10))
    cut = price * off // 100
    sale = price - cut
    extra = Fraction(sale * tax, 100)
    item = rng.choice(("jacket", "backpack", "desk lamp", "bicycle helmet", "coffee machine", "raincoat", "keyboard"))
    rates: Values = {"off_rate": plain(Fraction(off, 100)), "tax_rate": plain(Fraction(tax, 100))}
    kept: Values = {"kept": 100 - off, "kept_rate": plain(Fraction(100 - off, 100))}
    amounts: Values = {"cut": cut, "sale": sale, "extra": money(extra), "total": money(sale + extra)}
    given: Values = {"name": rng.choice(NAMES), "item": item, "price": price, "off": off, "tax": tax}
    return compose(word_wordings.DISCOUNT, {**given, **rates, **kept, **amounts}, rng)


def equation(rng: Random) -> Problem:
    """One unknown on both sides of an equation."""
    x, c, e, b = rng.randint(3, 12), rng.randint(2, 5), rng.randint(3, 6), rng.randint(4, 20)
    a, f = c + e, e * x
    values: Values = {"a": a, "b": b, "c": c, "d": f + b, "e": e, "f": f, "x": x, "both": a * x + b}
    return compose(word_wordings.EQUATION, {**values}, rng)


def average(rng: Random) -> Problem:
    """The sixth value that makes a given mean."""
    scores = [rng.randint(62, 94) for _ in range(5)]
    sums = [sum(scores[:n]) for n in range(6)]
    mean = sums[5] // 5 + rng.randint(0, 2)
    need = 6 * mean
    given: Values = {"name": rng.choice(NAMES), "mean": mean}
    given |= {f"s{n}": score for n, score in enumerate(scores, 1)}
    found: Values = {"p2": sums[2], "p3": sums[3], "p5": sums[5], "need": need, "last": need - sums[5]}
    return compose(word_wordings.AVERAGE, {**given, **found, "now": plain(Fraction(sums[5], 5))}, rng)


def work_rate(rng: Random) -> Problem:
    """Two who do one job together."""
    a, b = rng.choice(((3, 6), (4, 12), (6, 12), (10, 15), (20, 30), (12, 24), (20, 5), (24, 8), (15, 30), (18, 9)))
    one, two = rng.sample(NAMES, 2)
    job = rng.choice(("paint a fence", "clean the school hall", "sort a library", "plant a field", "pack an order"))
    whole = 2 * lcm(a, b)  # twice, so that nobody does 1 part an hour, which would read badly
    rate_a, rate_b = whole // a, whole // b
    rate = rate_a + rate_b
    hours = whole // rate
    given: Values = {"one": one, "two": two, "job": job, "a": a, "b": b, "quick": min(a, b)}
    rates: Values = {"whole": whole, "rate_a": rate_a, "rate_b": rate_b, "rate": rate}
    done: Values = {"hours": hours, "done_a": rate_a * hours, "done_b": rate_b * hours}
    return compose(word_wordings.WORK_RATE, {**given, **rates, **done}, rng)


def speed(rng: Random) -> Problem:
    """The average speed of a trip in two parts."""
    v2 = rng.randrange(40, 80, 5)
    v1 = v2 + rng.randrange(10, 50, 10)
    t1, t2 = rng.choice(((3, 2), (2, 3), (5, 3), (3, 5), (6, 4), (4, 6), (2, 6), (6, 2)))
    d1, d2, t = v1 * t1, v2 * t2, t1 + t2
    given: Values = {"vehicle": rng.choice(("car", "van", "bus", "lorry", "minibus")), "name": rng.choice(NAMES)}
    given |= {"v1": v1, "t1": t1, "v2": v2, "t2": t2}
    found: Values = {"d1": d1, "d2": d2, "d": d1 + d2, "t": t, "near": v1 if t1 > t2 else v2}
    means: Values = {"v": plain(Fraction(d1 + d2, t)), "naive": plain(Fraction(v1 + v2, 2))}
    return compose(word_wordings.SPEED, {**given, **found, **means}, rng)


def ratio(rng: Random) -> Problem:
    """Money shared between three in a ratio."""
    one, two, three = rng.sample(NAMES, 3)
    a, b, c = rng.choice(((2, 4, 5), (2, 3, 5), (2, 3, 4), (3, 4, 5), (3, 5, 8), (2, 5, 7), (3, 2, 7), (4, 3, 6)))
    part = rng.randint(8, 30)
    given: Values = {"one": one, "two": two, "three": three, "a": a, "b": b, "c": c, "total": (a + b + c) * part}
    shares: Values = {"m1": a * part, "m2": b * part, "m3": c * part}
    found: Values = {"parts": a + b + c, "part": part, "gap": c - a, "more": (c - a) * part}
    return compose(word_wordings.RATIO, {**given, **shares, **found}, rng)


def probability(rng: Random) -> Problem:
    """Two red ones drawn without replacement, with a fraction that can be reduced."""
    common = 1
    while common == 1:
        r, b, g = rng.randint(3, 7), rng.randint(2, 6), rng.randint(2, 5)
        n = r + b + g
        top, bottom = r * (r - 1), n * (n - 1)
        common = gcd(top, bottom)
    given: Values = {"name": rng.choice(NAMES), "r": r, "b": b, "g": g}
    found: Values = {"n": n, "r1": r - 1, "n1": n - 1, "top": top, "bottom": bottom}
    found |= {"p": top // common, "q": bottom // common}
    return compose(word_wordings.PROBABILITY, {**given, **found}, rng)


def sequence(rng: Random) -> Problem:
    """The sum of an arithmetic sequence."""
    a, d, n = rng.randint(8, 30), rng.randint(2, 7), rng.randint(8, 20)
    growth = (n - 1) * d
    pair = 2 * a + growth
    given: Values = {"name": rng.choice(NAMES), "a": a, "d": d, "n": n}
    found: Values = {"gaps": n - 1, "growth": growth, "last": a + growth, "pair": pair, "double": n * pair}
    found |= {"total": n * pair // 2, "middle": plain(Fraction(pair, 2))}
    return compose(word_wordings.SEQUENCE, {**given, **found}, rng)


def rectangle(rng: Random) -> Problem:
    """A rectangle with a square missing at a corner."""
    b, s = rng.randint(8, 14), rng.randint(3, 5)
    a = b + rng.randint(2, 9)
    whole, hole = a * b, s * s
    sheet = rng.choice(("sheet of card", "piece of felt", "metal plate", "wooden board"))
    given: Values = {"name": rng.choice(NAMES), "sheet": sheet, "a": a, "b": b, "s": s}
    found: Values = {"whole": whole, "hole": hole, "left": whole - hole}
    other: Values = {"rest": a - s, "strip": (a - s) * s, "low": b - s, "lower": a * (b - s)}
    return compose(figure_wordings.RECTANGLE, {**given, **found, **other}, rng, Drawing("rectangle", (a, b, s)))


def triangle(rng: Random) -> Problem:
    """The perimeter of a right triangle with whole sides."""
    a, b = rng.choice(((6, 8), (9, 12), (12, 16), (5, 12), (10, 24), (8, 15), (7, 24), (20, 21), (15, 20), (12, 35)))
    if rng.random() < 0.5:
        a, b = b, a
    cc = a * a + b * b
    c = isqrt(cc)
    values: Values = {"a": a, "b": b, "aa": a * a, "bb": b * b, "cc": cc, "c": c, "legs": a + b, "total": a + b + c}
    drawing = Drawing("triangle", (a, b), ("A", "B", "C"))
    return compose(figure_wordings.TRIANGLE, {"name": rng.choice(NAMES), **values}, rng, drawing)


def sector(rng: Random) -> Problem:
    """The area of a sector, with 3.14 for π."""
    r, angle = rng.choice(((8, 90), (12, 45), (10, 72), (20, 36), (10, 144), (8, 135), (12, 270), (6, 90), (20, 108)))
    pi = Fraction(314, 100)
    share, disc = Fraction(angle, 360), pi * r * r
    given: Values = {"cake": rng.choice(("pizza", "cake", "tart")), "r": r, "angle": angle, "pi": plain(pi)}
    found: Values = {"share": plain(share), "rr": r * r, "disc": plain(disc), "other": 360 - angle}
    found |= {"area": plain(share * disc)}
    return compose(figure_wordings.SECTOR, {**given, **found}, rng, Drawing("sector", (r, angle)))


def chart(rng: Random) -> Problem:
    """How far the tallest of five bars is above the mean."""
    bars: list[int] = []
    while not bars or sum(bars) % 5 or len(set(bars)) < 5:
        bars = [rng.randint(8, 45) for _ in DAYS]
    top, mean = max(bars), sum(bars) // 5
    things, done = rng.choice((("books", "borrowed"), ("tickets", "sold"), ("parcels", "posted"), ("cakes", "baked")))
    given: Values = {"name": rng.choice(NAMES), "things": things, "done": done}
    given |= {f"l{n}": day for n, day in enumerate(DAYS, 1)}
    given |= {f"v{n}": bar for n, bar in enumerate(bars, 1)}
    found: Values = {"p3": sum(bars[:3]), "total": sum(bars), "mean": mean}
    answer: Values = {"best": DAYS[bars.index(top)], "top": top, "low": min(bars), "above": top - mean}
    return compose(figure_wordings.CHART, {**given, **found, **answer}, rng, Drawing("chart", tuple(bars), DAYS))


KINDS: dict[str, Callable[[Random], Problem]] = {
    "discount": discount,
    "equation": equation,
    "average": average,
    "work-rate": work_rate,
    "speed": speed,
    "ratio": ratio,
    "probability": probability,
    "sequence": sequence,
    "rectangle": rectangle,
    "triangle": triangle,
    "sector": sector,
    "chart": chart,
}
