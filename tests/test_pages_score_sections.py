"""The first part of a report: what the store holds and what it was made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_store.pages.score_sections import overview_section
from grace_store.run.status import status
from grace_store.scoring.score import ScoreRequest, score
from grace_store.scoring.score_conclusion import conclude_scores
from grace_store.store.opened import Store
from tests.gradient_stores import DIMENSION, add_gradients, gradient_spec
from tests.grouped_stores import grouped_store
from tests.scored_stores import known_store


def test_signals_that_differ_in_how_gradients_are_made_do_not_look_alike(tmp_path: Path) -> None:
    known = known_store(tmp_path, ("first", "second")).store
    gradients = np.random.default_rng(0).standard_normal((known.plan.num_samples, DIMENSION))
    add_gradients(known, "plain", gradients, gradient_spec())
    add_gradients(known, "adam", gradients, gradient_spec(preconditioner="adam", moments="m", projection="sparse"))
    known = Store.open(known.location)
    table = score(known, ScoreRequest(signals="first"))
    said = [conclude_scores(table), "Three are chosen."]
    verdict = [{"topic": "flagged", "level": "bad", "sentence": "Two are flagged."}]
    section = overview_section(known, status(known), table, verdict, said)
    assert section.blocks[0]["rows"] == [["bad", "Two are flagged."]]
    assert [block["text"] for block in section.blocks[1:3]] == said
    signals = next(block for block in section.blocks if block.get("title") == "Signals")
    assert signals["columns"][:5] == ["signal", "kind", "per", "preconditioner", "projection"]
    assert len(signals["columns"]) == len(signals["rows"][0])
    shown = {row[0]: row[1:5] for row in signals["rows"]}
    assert shown["first"] == ["proxy", "segment", None, None]
    assert shown["plain"] == ["gradient", "sample", "none", "rademacher"]
    assert shown["adam"] == ["gradient", "sample", "adam", "sparse"]


def test_values_within_questions_are_said_to_be_such(tmp_path: Path) -> None:
    store = grouped_store(tmp_path)
    for by, question in ((None, "same prompt and images"), ("problem.name", "same problem.name")):
        table = score(store, ScoreRequest(within="centred", group_by=by))
        section = overview_section(store, status(store), table)
        scores = next(block for block in section.blocks if block.get("title") == "The scores")
        assert ["values", f"centred within their question ({question}): 0 is its mean"] in scores["rows"]
