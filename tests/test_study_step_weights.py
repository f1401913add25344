"""One gradient step with step weights: what is measured is the answer's loss, and the model is put back."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from grace_store.base.errors import ResumeMismatch
from grace_store.pool.samples import iter_samples
from jobs.study.step_weights import EQUAL, main, measure, table_of


@pytest.fixture
def given(tmp_path, text_model):
    """What the command line would say, for a tiny model and few traces."""
    lines = []
    for number in range(4):
        steps = [f"Tom has {number} apples.", f"He gets {number + 2} more.", "Then he counts them."]
        answer = "\n".join([*steps, f"#### {2 * number + 2}"])
        lines.append(json.dumps({"question": f"How many apples has Tom, who has {number}?", "answer": answer}))
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    places = {"data": tmp_path / "train.jsonl", "out": tmp_path / "out", "model": text_model}
    return argparse.Namespace(**places, num=3, layers=1, share=0.0, methods=["fit", "drop"], threads=1)


def test_a_step_of_no_length_changes_nothing_and_a_step_back_does(given):
    still = list(measure(given))
    stored = {each.row: float(each.loss[-1]) for each in iter_samples(given.out / "traces.zarr")}
    assert [each["row"] for each in still] == [0, 1, 2]
    for each in still:
        assert each["before"] == pytest.approx(stored[each["row"]], abs=1e-4)
        # What comes before the layers that learn ran once, and the loss is the same.
        assert all(after == pytest.approx(each["before"], abs=1e-4) for after in each["after"].values())
    given.share = 1e-2
    with pytest.raises(ResumeMismatch, match="other settings"):
        next(measure(given))
    for name in ("traces-measured.jsonl", "settings.json"):
        (given.out / name).unlink()
    moved = list(measure(given))
    assert [each["before"] for each in moved] == pytest.approx([each["before"] for each in still], abs=1e-4)
    assert all(each["after"][EQUAL] != pytest.approx(each["before"], abs=1e-5) for each in moved)
    assert list(measure(given)) == moved, "what was measured is not measured again"
    done = given.out / "traces-measured.jsonl"
    done.write_bytes(done.read_bytes()[:-9])
    assert [each["row"] for each in measure(given)] == [0, 1, 2], "a line that was cut off is measured again"


def test_the_table_compares_on_the_same_traces():
    rng = np.random.default_rng(0)
    found = []
    for row in range(20):
        gain = 0.05 + 0.001 * rng.standard_normal()
        found.append({"row": row, "before": 1.0, "after": {EQUAL: 0.9} | ({"fit": 0.9 - gain} if row else {})})
    table = table_of(found)
    equal, fit = table.rows
    assert equal == (EQUAL, "20", "0.1000", "", "")
    assert fit[:2] == ("fit", "19")
    assert fit[3] == "+0.0498 (+0.0494 to +0.0502)"
    assert fit[4] == "100%"


def test_the_help_says_what_is_measured(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "lower the answer's loss more" in capsys.readouterr().out
