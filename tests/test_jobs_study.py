"""The training study: its data are what they say, its budgets equal, its results resumable, and all of it runs."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from grace_store.base.errors import Corrupt, ResumeMismatch, SettingError
from grace_store.base.events import ignore
from grace_store.study.benchmark_results import Entry, Results
from grace_store.study.evaluate import relative_average
from jobs.demo_traces.flaws import FILLERS as REAL_FILLERS
from jobs.study import corruptions
from jobs.study.answering import ask, generate, is_right
from jobs.study.curation import Curation
from jobs.study.drawings import curve_plot, interval_plot, stacked_plot
from jobs.study.estimates import Comparison, Estimate, separation, share_above
from jobs.study.findings import ablation_table, main_table, ratio_table
from jobs.study.folders import Folders
from jobs.study.learner import (
    Encoded,
    batches,
    collate,
    encode,
    learning_rate,
    new_model,
    read_model,
    save_model,
    train,
)
from jobs.study.methods import METHODS, label
from jobs.study.problems import KINDS
from jobs.study.runs import NONE, WHOLE, Run, append_run, read_runs
from jobs.study.settings import Settings, TrainSettings, read_settings
from jobs.study.study import run_study
from jobs.study.tables import Table
from jobs.study.traces import ANSWER_FLAWED, FILLERS, StudyData, all_prompts, make_data
from jobs.study.tuning import read_records, tune
from jobs.study.vocabulary import make_tokenizer
from jobs.study.writing import write_findings
from tests.reports import read_page

SMALL = {
    "seeds": [0, 1],
    "threads": 1,
    "data": {
        "seed": 5,
        "num_lessons": 60,
        "most_lesson_steps": 2,
        "num_pool": 100,
        "num_targets": 2,
        "num_heldout": 4,
        "fewest_steps": 3,
        "most_steps": 4,
        "copies": 2,
        "shares": {
            "clean": 0.4,
            "wrong_step": 0.15,
            "wrong_answer": 0.15,
            "filler": 0.1,
            "long": 0.1,
            "duplicated": 0.1,
        },
    },
    "model": {"hidden_size": 16, "intermediate_size": 32, "num_layers": 2, "num_heads": 2, "max_length": 128},
    "base": {"num_updates": 10, "batch_size": 8, "learning_rate": 3e-3, "warmup_share": 0.1, "weight_decay": 0.1},
    "tune": {"num_updates": 3, "batch_size": 4, "learning_rate": 1e-3, "warmup_share": 0.1, "weight_decay": 0.1},
    "warmup": {
        "ratio": "0.2",
        "checkpoints": ["0.5", "1"],
        "num_epochs": 1,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "rank": 2,
        "alpha": 8,
        "seeds": [0],
    },
    "score": {
        "projection_dimension": 32,
        "ratios": ["0.1", "0.2"],
        "main_ratio": "0.2",
        "methods": ["random", "less", "icons", "cadc", "grace"],
        "ablations": ["grace-without-answer", "grace-projected"],
        "unit_samples": 64,
    },
    "evaluation": {"max_new_tokens": 8, "batch_size": 20, "draws": 100, "fidelity_samples": 8},
}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return read_settings()


@pytest.fixture(scope="module")
def data(settings: Settings) -> StudyData:
    return make_data(settings.data)


# ---------------------------------------------------------------- the data are what they say


def independent_answer(prompt: str) -> int:
    """Solve a problem from its prompt alone, another way than the generator does."""
    words = prompt.split()
    if words[0] == "sum":
        return sum(map(int, words[1:]))
    if words[0] == "max":
        return sorted(map(int, words[1:]))[-1]
    if words[0] == "count":
        return sum(int(word) > int(words[2]) for word in words[4:])
    if words[0] == "let":
        said, wanted = prompt.removeprefix("let ").split(" find ")
        names: dict[str, int] = {}
        for part in said.split(" , "):
            name, _, expression = part.partition(" = ")
            names[name] = eval(expression, {}, names)
        return names[wanted]
    modulus, value = int(words[1]), int(words[3])
    for sign, term in zip(words[4::2], words[5::2], strict=True):
        value = value * int(term) if sign == "*" else value + int(term)
    return value % modulus


def is_true_step(step: str, prompt: str) -> bool:
    """Tell whether the arithmetic of a step holds; for counts, whether it agrees with the list so far."""
    step = step.removeprefix("again ")
    work, _, result = step.rpartition(" = ")
    words = work.split()
    if words[0] == "max":
        return int(result) == max(map(int, words[1:]))
    if ">" in words:
        return words[3] == ("yes" if int(words[0]) > int(words[2]) else "no")
    if "mod" in words:
        return int(result) == eval(" ".join(words[:3])) % int(words[4])
    return int(result) == eval(work.rpartition("= ")[2])


def true_steps(record: dict) -> list[bool]:
    """Tell of every step that is no filler whether it is true, running counts included."""
    steps = [step for step in record["steps"] if step not in FILLERS]
    found = [is_true_step(step, record["prompt"]) for step in steps]
    if record["kind"] == "count":
        words = record["prompt"].split()
        bound, numbers = int(words[2]), [int(word) for word in words[4:]]
        running = list(itertools.accumulate(int(number > bound) for number in numbers))
        expected = [each for each in running for _ in range(2 if record["quality"] == "long" else 1)]
        stated = [int(step.rpartition(" = ")[2]) for step in steps]
        found = [ok and mine == theirs for ok, mine, theirs in zip(found, stated, expected, strict=True)]
    return found


def stated_answer(record: dict) -> int:
    return int(record["answer"].removeprefix("answer "))


def test_every_record_is_right_or_wrong_exactly_where_it_says(data):
    for record in [*data.pool, *data.lessons, *itertools.chain(*data.heldout.values(), *data.targets.values())]:
        truth = true_steps(record)
        answer_is_right = stated_answer(record) == independent_answer(record["prompt"])
        flawed = record["flawed_step"]
        if record["quality"] == "wrong_step":
            assert [place for place, ok in enumerate(truth) if not ok] == [flawed]
            assert answer_is_right
        elif record["quality"] == "wrong_answer":
            assert all(truth)
            assert flawed == ANSWER_FLAWED
            assert not answer_is_right
        else:
            assert all(truth)
            assert flawed is None
            assert answer_is_right


def test_every_quality_is_what_it_is_called_and_has_its_share(data, settings):
    by_id = {record["id"]: record for record in data.pool}
    assert len(by_id) == len(data.pool) == settings.data.num_pool
    for kind in KINDS:
        mine = [record for record in data.pool if record["kind"] == kind]
        for quality, share in settings.data.shares.items():
            count = sum(record["quality"] == quality for record in mine)
            assert abs(count - share * len(mine)) <= len(settings.data.shares)
    for record in data.pool:
        num_filler = sum(step in FILLERS for step in record["steps"])
        assert (num_filler >= 2) == (record["quality"] == "filler")
        again = [step for step in record["steps"] if step.startswith("again ")]
        if record["quality"] == "long":
            assert [f"again {step}" for step in record["steps"][::2]] == record["steps"][1::2] == again
        else:
            assert not again
        if record["quality"] == "duplicated":
            original = by_id[record["copy_of"]]
            assert original["quality"] == "clean"
            assert all(original[name] == record[name] for name in ("prompt", "steps", "answer"))
        else:
            assert record["copy_of"] is None


def test_no_problem_is_in_two_parts(data):
    parts: dict[str, set[str]] = {}
    for part, prompt in all_prompts(data):
        parts.setdefault(part, set()).add(prompt)
    assert set(parts) == {"lessons", "pool", "targets", "heldout"}
    for one, other in itertools.combinations(parts.values(), 2):
        assert not one & other
    originals = [record["prompt"] for record in data.pool if record["quality"] != "duplicated"]
    assert len(set(originals)) == len(originals)


def test_data_come_from_the_seed_alone(settings):
    again = settings.data.model_copy(update={"num_pool": 50, "num_lessons": 10})
    assert make_data(again) == make_data(again)
    assert make_data(again).heldout == make_data(again.model_copy(update={"num_pool": 100})).heldout
    assert make_data(again).heldout != make_data(again.model_copy(update={"seed": 1})).heldout


def test_every_word_is_a_token_and_fits(data, settings):
    tokenizer = make_tokenizer()
    every = [*data.pool, *data.lessons[:500], *itertools.chain(*data.heldout.values(), *data.targets.values())]
    for record, trace in zip(every, encode(tokenizer, every), strict=True):
        assert tokenizer.unk_token_id not in (*trace.prompt, *trace.response)
        assert len(trace.prompt) == len(record["prompt"].split()) + 2
        newlines = len(record["steps"])
        words = len(" ".join([*record["steps"], record["answer"]]).split())
        assert len(trace.response) == words + newlines + 1
        assert trace.response[-1] == tokenizer.eos_token_id
        assert len(trace.prompt) + len(trace.response) <= settings.model.max_length
        if record["quality"] == "clean":
            assert len(trace.response) <= settings.evaluation.max_new_tokens


# ---------------------------------------------------------------- training and asking


def small_model(seed: int = 0) -> tuple:
    tokenizer = make_tokenizer()
    model = new_model(Settings.model_validate(SMALL).model, tokenizer, seed).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # so that greedy choices are no near ties
    return model, tokenizer


@pytest.mark.parametrize("num_traces", [1, 3, 10, 64])
def test_every_subset_has_the_same_budget(num_traces):
    schedule = TrainSettings(num_updates=7, batch_size=4, learning_rate=1e-3, warmup_share=0.2, weight_decay=0.0)
    drawn = list(batches(num_traces, schedule, seed=3))
    assert [len(batch) for batch in drawn] == [4] * 7
    flat = list(itertools.chain(*drawn))
    counts = np.bincount(flat, minlength=num_traces)
    assert counts.max() - counts.min() <= 1
    assert drawn == list(batches(num_traces, schedule, seed=3))
    if num_traces > 3:
        assert drawn != list(batches(num_traces, schedule, seed=4))


def test_the_rate_rises_and_falls_to_nothing():
    schedule = TrainSettings(num_updates=100, batch_size=1, learning_rate=2.0, warmup_share=0.1, weight_decay=0.0)
    rates = [learning_rate(schedule, update) for update in range(101)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(rates) == 2.0
    assert rates[100] == pytest.approx(0.0)


def test_only_the_response_is_learnt():
    traces = [Encoded((1, 7, 2), (8, 9, 3)), Encoded((1, 2), (8, 3))]
    tokens, labels = collate(traces, pad=0)
    assert tokens.tolist() == [[1, 7, 2, 8, 9, 3], [1, 2, 8, 3, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 8, 9, 3], [-100, -100, 8, 3, -100, -100]]


def test_training_lowers_the_loss_and_repeats_itself(data):
    schedule = TrainSettings(num_updates=12, batch_size=8, learning_rate=1e-2, warmup_share=0.1, weight_decay=0.0)
    ends = []
    for _ in range(2):
        model, tokenizer = small_model()
        traces = encode(tokenizer, data.pool[:16])
        first = train(model, traces, schedule.model_copy(update={"num_updates": 1}), seed=0).last_loss
        done = train(model, traces, schedule, seed=0)
        assert done.last_loss < first
        assert (done.num_updates, done.num_traces_seen) == (12, 96)
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_batched_generation_is_greedy_and_stops_at_the_end(settings, data):
    model, tokenizer = small_model()
    prompts = [trace.prompt for trace in encode(tokenizer, data.pool[:7])]
    limits = settings.evaluation.model_copy(update={"max_new_tokens": 9, "batch_size": 4})
    end = tokenizer.eos_token_id
    alone = []
    for prompt in prompts:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + 9 and tokens[-1] != end:
            with torch.inference_mode():  # no cache, no padding
                logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
        alone.append(tuple(tokens[len(prompt) :]))
    assert generate(model, prompts, limits) == alone


def test_an_answer_counts_only_whole_and_ended():
    tokenizer = make_tokenizer()
    record = {"prompt": "sum 3 4", "steps": ["3 + 4 = 7"], "answer": "answer 7"}
    (expected,) = encode(tokenizer, [record])

    def answered(text: str) -> bool:
        return is_right(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"], expected)

    assert answered("3 + 4 = 7\nanswer 7<end>")
    assert answered("the sky is blue today\n3 + 4 = 8\nanswer 7<end>")
    assert answered("answer 7<end>")
    assert not answered("3 + 4 = 7\nanswer 7")
    assert not answered("3 + 4 = 7\nanswer 8<end>")
    assert not answered("3 + 4 = 7\nanswer 7 7<end>")
    assert not answered("answer 7\n3 + 4 = 7<end>")
    assert not answered("")


def test_a_taught_model_answers(data, settings):
    """Teach a few problems by heart: asking must then find them right, and others not."""
    model, tokenizer = small_model()
    known = data.heldout["max"][:3]
    schedule = TrainSettings(num_updates=150, batch_size=3, learning_rate=2e-2, warmup_share=0.1, weight_decay=0.0)
    train(model, encode(tokenizer, known), schedule, seed=0)
    limits = settings.evaluation
    assert ask(model, tokenizer, known, limits) == [True] * 3
    assert not all(ask(model, tokenizer, data.heldout["sum"][:3], limits))


def test_a_saved_model_is_the_same(tmp_path):
    model, tokenizer = small_model()
    save_model(model, tokenizer, tmp_path)
    again, words = read_model(tmp_path)
    assert words.get_vocab() == tokenizer.get_vocab()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


# ---------------------------------------------------------------- settings and results


def test_the_settings_are_those_that_were_fixed(settings):
    assert len(settings.seeds) >= 3
    assert settings.score.ratios == ("0.05", "0.1", "0.15", "0.2")
    assert settings.warmup.ratio == "0.05"
    assert {*settings.score.methods, *settings.score.ablations} == set(METHODS)
    grace = METHODS["grace"].spec
    assert (grace.alpha, grace.history, grace.target) == (0.7, "uniform", "answer")


@pytest.mark.parametrize(("name", "place"), [("settings.toml", "results"), ("by_kind.toml", "results/by-kind")])
def test_the_tables_that_are_kept_follow_from_the_results_that_are_kept(repository, name, place):
    results, settings = repository / "jobs/study" / place, read_settings(repository / "jobs/study" / name)
    assert json.loads((results / "settings.json").read_text())["sha256"] == settings.digest()
    runs = read_runs(results / "runs.jsonl", settings.digest())
    subsets = len(settings.score.methods) * len(settings.score.ratios) + len(settings.score.ablations)
    assert len(runs) == len(settings.seeds) * (subsets + 1) + 1
    comparison = Comparison(runs, settings.evaluation.draws)
    tables = (results / "tables.md").read_text()
    for make in (main_table, *([ratio_table] if len(settings.score.ratios) > 1 else []), ablation_table):
        assert make(settings, comparison).markdown() in tables
    told = (repository / "jobs/study/README.md").read_text()
    for method in settings.score.methods:
        found = comparison.result(method, settings.score.main_ratio)
        against = found.against_random.text(1) if found.against_random else ""
        row = f"| {label(method)} | {found.relative.text(1)} | {against} |".replace("|  |", "| |")
        assert row in told, row


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("score.methods", ["random", "astrology"], "unknown methods astrology"),
        ("score.main_ratio", "0.3", "none of the ratios"),
        ("data.num_pool", 101, "a multiple of 5"),
        ("data.shares", {"clean": 1.0}, "add up to 1"),
        ("seeds", [1, 1], "seeds must differ"),
        ("tune.num_epochs", 2, "Extra inputs"),
    ],
)
def test_settings_without_meaning_are_refused(tmp_path, place, value, message):
    document = json.loads(json.dumps(SMALL))
    *path, last = place.split(".")
    inner = document
    for key in path:
        inner = inner[key]
    inner[last] = value
    lines = [f"{key} = {json.dumps(each)}" for key, each in document.items() if not isinstance(each, dict)]
    for key, each in document.items():
        if isinstance(each, dict):
            lines.append(f"[{key}]")
            lines += [f"{name} = {json.dumps(one)}" for name, one in each.items() if not isinstance(one, dict)]
            lines += [
                f"{name}.{part} = {one[part]}" for name, one in each.items() if isinstance(one, dict) for part in one
            ]
    (tmp_path / "s.toml").write_text("\n".join(lines))
    with pytest.raises(SettingError, match=message):
        read_settings(tmp_path / "s.toml")


def made_run(method: str, ratio: str, seed: int, right: dict[str, str]) -> Run:
    return Run(
        settings_sha256="s",
        method=method,
        ratio=ratio,
        seed=seed,
        subset_sha256="x",
        num_traces=1,
        num_updates=1,
        num_traces_seen=1,
        num_tokens_learnt=1,
        last_loss=0.5,
        heldout_loss=0.5,
        right=right,
        seconds=1.0,
    )


def test_a_line_cut_off_is_dropped_and_others_kept(tmp_path):
    path = tmp_path / "runs.jsonl"
    one, two = (made_run("random", "0.2", seed, {"sum": "01"}) for seed in (0, 1))
    append_run(path, one)
    whole = path.read_bytes()
    append_run(path, two)
    path.write_bytes(path.read_bytes()[:-9])
    assert read_runs(path, "s") == {one.key: one}
    assert path.read_bytes() == whole
    append_run(path, two)
    assert list(read_runs(path, "s").values()) == [one, two]
    with pytest.raises(ResumeMismatch, match="never mixed"):
        read_runs(path, "other")
    path.write_bytes(b'{"method": 1}\n' + whole)
    with pytest.raises(Corrupt, match="line 1 is no result"):
        read_runs(path, "s")


def test_relative_averages_and_intervals_against_a_loop():
    rng = np.random.default_rng(0)
    kinds, runs = {"a": 120, "b": 80}, {}
    rates = {("full", WHOLE): 0.7, ("random", "0.2"): 0.5, ("grace", "0.2"): 0.6, ("base", NONE): 0.1}
    for (method, ratio), rate in rates.items():
        for seed in range(3):
            right = {kind: "".join("01"[int(draw < rate)] for draw in rng.random(num)) for kind, num in kinds.items()}
            runs[method, ratio, seed] = made_run(method, ratio, seed, right)
    found = Comparison(runs, 3000).result("grace", "0.2")

    def accuracy(method: str, ratio: str, kind: str) -> float:
        return float(np.mean([[int(c) for c in runs[method, ratio, seed].right[kind]] for seed in range(3)]))

    for kind in kinds:
        assert found.accuracy[kind] == pytest.approx(100 * accuracy("grace", "0.2", kind))
    ours, full, random = (
        Results(name, {kind: Entry(100 * accuracy(name, ratio, kind), num) for kind, num in kinds.items()})
        for name, ratio in (("grace", "0.2"), ("full", WHOLE), ("random", "0.2"))
    )
    assert found.relative.value == pytest.approx(relative_average(ours, full).value)
    assert found.against_random.value == pytest.approx(
        relative_average(ours, full).value - relative_average(random, full).value
    )
    table = {
        (name, kind): np.array([[int(c) for c in runs[name, ratio, seed].right[kind]] for seed in range(3)])
        for name, ratio in (("grace", "0.2"), ("full", WHOLE))
        for kind in kinds
    }
    draws = []
    for _ in range(3000):
        items = {kind: rng.integers(0, num, num) for kind, num in kinds.items()}
        seeds = {name: rng.integers(0, 3, 3) for name in ("grace", "full")}
        ratios = [
            table["grace", kind][seeds["grace"]][:, items[kind]].mean()
            / table["full", kind][seeds["full"]][:, items[kind]].mean()
            for kind in kinds
        ]
        draws.append(100 * np.mean(ratios))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert (found.relative.low, found.relative.high) == pytest.approx((low, high), abs=1.5)
    again = Comparison(dict(reversed(runs.items())), 3000).result("grace", "0.2")
    assert again == found


def test_a_kind_that_the_full_pool_does_not_teach_does_not_count():
    runs = {}
    for method, ratio in (("full", WHOLE), ("grace", "0.2")):
        runs[method, ratio, 0] = made_run(method, ratio, 0, {"a": "11", "b": "00" if method == "full" else "01"})
    comparison = Comparison(runs, 100)
    assert comparison.counted == ["a"]
    assert comparison.result("grace", "0.2").relative.value == 100


def test_separation_is_the_area_under_the_roc():
    above, below = [3.0, 2.0, 2.0], [1.0, 2.0]
    brute = np.mean([[1.0 if a > b else 0.5 if a == b else 0.0 for b in below] for a in above])
    found = separation(above, below)
    assert found.value == pytest.approx(brute)
    assert found.low <= brute <= found.high
    assert separation([1, 2], [3, 4]).value == 0
    apart = np.mean(
        [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in [(3, 2), (3, 2), (2, 1), (2, 2), (2, 1), (2, 2)]]
    )
    assert separation(above, [1.0, 2.0, 2.0], paired=True).value == pytest.approx(apart)
    assert share_above([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 5.0, 1.0]).value == pytest.approx(2.5 / 4)


def test_figures_show_every_number_and_escape_names():
    estimate = separation([1.0, 2.0], [0.5, 1.5])
    every = (
        interval_plot({"<i>": estimate, "unknown": Estimate(value=math.nan, low=estimate.low, high=estimate.high)}),
        curve_plot(
            [0.1, 0.2],
            {
                "<i>": [estimate, estimate],
                "unknown": [Estimate(value=math.nan, low=estimate.low, high=estimate.high)] * 2,
            },
        ),
        stacked_plot({"<i>": {"<u>": 0.4, "rest": 0.6}, "b": {"rest": 1.0}}),
    )
    for figure in every:
        go.Figure(figure)  # raises for a property or value that is none of plotly's
        assert not re.search(r"<[iu]>", json.dumps(figure))
    (rows,), (curve,), (flawed, rest) = (figure["data"] for figure in every)
    assert (rows["x"], rows["y"]) == ([estimate.value], ["&lt;i&gt;"])
    assert curve["y"] == [estimate.value] * 2
    for errors in (rows["error_x"], curve["error_y"]):
        assert errors["array"][0] == pytest.approx(estimate.high - estimate.value, abs=1e-4)
        assert errors["arrayminus"][0] == pytest.approx(estimate.value - estimate.low, abs=1e-4)
    assert (flawed["name"], flawed["x"], rest["x"]) == ("&lt;u&gt;", [0.4, 0.0], [0.6, 1.0])
    assert Table("t", ("a|b",), (("c|d",),)).markdown().count("\\|") == 2


# ---------------------------------------------------------------- the whole of it, in miniature


@pytest.fixture(scope="module")
def miniature(tmp_path_factory) -> tuple[Settings, Path]:
    chosen = Settings.model_validate(SMALL)
    out = tmp_path_factory.mktemp("study") / "results"
    write_findings(run_study(chosen, out, num_workers=1))
    return chosen, out


def test_the_whole_study_runs_and_says_what_it_found(miniature):
    chosen, out = miniature
    runs = read_runs(out / "runs.jsonl", chosen.digest())
    num_subsets = len(chosen.score.methods) * 2 + len(chosen.score.ablations)
    assert len(runs) == 1 + 2 + 2 * num_subsets
    for key, run in runs.items():
        assert run.num_updates == (0 if key[0] == "base" else chosen.tune.num_updates)
        assert run.num_traces_seen == run.num_updates * chosen.tune.batch_size
        assert run.num_traces == {"0": 0, "1": 100, "0.1": 10, "0.2": 20}[key[1]]
        assert {kind: len(text) for kind, text in run.right.items()} == dict.fromkeys(KINDS, 4)
    random = [runs["random", "0.2", seed].subset_sha256 for seed in chosen.seeds]
    grace = [runs["grace", "0.2", seed].subset_sha256 for seed in chosen.seeds]
    assert random[0] != random[1]
    assert grace[0] == grace[1]
    tables = (out / "tables.md").read_text()
    for words in ("Table 1", "Table 2", "Table 3", "Stability", "Fidelity", "CADC (reconstruction)", "Base model"):
        assert words in tables
    assert "Table 4" in (out / "cost.md").read_text()
    page = read_page(out / "page.html")
    named = {
        block["figure"] for each in page.document("page")["sections"] for block in each["blocks"] if "figure" in block
    }
    assert {"relative", "curves", "qualities", "fidelity-value"} <= named
    assert {f"figure-{name}" for name in named} <= page.scripts.keys()
    assert chosen.digest() in page.scripts["page"]
    document = json.loads((out / "settings.json").read_text())
    assert document["sha256"] == chosen.digest()
    assert document["environment"]["torch"] == torch.__version__.partition("+")[0] or "+" in torch.__version__


def test_resuming_gives_the_same_results(miniature, monkeypatch):
    """Lose some results, one of them by half, and run again: only those are trained, and all is as before."""
    chosen, out = miniature
    before = read_runs(out / "runs.jsonl", chosen.digest())
    tables = (out / "tables.md").read_bytes()
    lines = (out / "runs.jsonl").read_bytes().splitlines(keepends=True)
    (out / "runs.jsonl").write_bytes(b"".join(lines[:-3]) + lines[-3][:20])
    trained = []

    def counted(settings, place, task):
        trained.append(task.key)
        return tune(settings, place, task)

    monkeypatch.setattr("jobs.study.tuning.tune", counted)
    write_findings(run_study(chosen, out, num_workers=1))
    after = read_runs(out / "runs.jsonl", chosen.digest())
    assert trained == list(before)[-3:]
    assert list(after) == list(before)
    same = {"seconds": 0.0}
    assert [run.model_copy(update=same) for run in after.values()] == [
        run.model_copy(update=same) for run in before.values()
    ]
    assert (out / "tables.md").read_bytes() == tables


def test_subsets_by_kind_have_the_kinds_of_the_pool(miniature):
    chosen, out = miniature
    score = chosen.score.model_copy(update={"by": "kind"})
    folders = Folders(out)
    kind = {record["id"]: record["kind"] for record in read_records(folders.pool)}
    curation = Curation(chosen.model_copy(update={"score": score}), folders, ignore)
    curation.run()
    for method in ("random", "less", "grace"):
        ids = curation.choose(method, "0.2", 0)
        assert Counter(kind[each] for each in ids) == dict.fromkeys(KINDS, 4)


def test_other_settings_are_refused_where_results_are(miniature):
    chosen, out = miniature
    other = chosen.model_copy(update={"seeds": (0, 2)})
    with pytest.raises(ResumeMismatch, match="never mixed"):
        run_study(other, out, num_workers=1)


# ---------------------------------------------------------------- real traces

SOLUTION = {
    "question": "How many?",
    "answer": "Tom has 4*3 = <<4*3=12>>12 apples.\nHe eats 12-2 = <<12-2=10>>10.\nHe buys <<10+5=15>>15.\n#### 15",
}


def test_corruptions_spoil_one_thing_each():
    steps, final = corruptions.split(SOLUTION["answer"])
    assert corruptions.usable(SOLUTION)
    assert corruptions.joined(steps, final) == SOLUTION["answer"]
    for seed in range(20):
        made = {
            name: corruptions.split(spoil(steps, final, Random(seed)))
            for name, spoil in corruptions.CORRUPTIONS.items()
        }
        wrong, answer = made["wrong_step"]
        (at,) = [place for place, (one, other) in enumerate(zip(steps, wrong, strict=True)) if one != other]
        noted = re.search(r"<<(.*)=(\d+)>>(\d+)", wrong[at])
        assert at < 2
        assert noted[2] == noted[3]
        assert eval(noted[1]) != int(noted[2])
        assert answer == final
        assert made["wrong_answer"][0] == steps
        assert made["wrong_answer"][1] != final
        spoilt, answer = made["filler"]
        assert [step for step in spoilt if step not in REAL_FILLERS] == steps
        assert (len(spoilt), answer) == (len(steps) + 2, final)
        twice, answer = made["duplicated_step"]
        assert [step for step, before in zip(twice, [None, *twice], strict=False) if step != before] == steps
        assert (len(twice), answer) == (len(steps) + 1, final)


def test_every_problem_stands_in_every_version(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    short = {"question": "?", "answer": "One.\n#### 1"}
    lines = [{**SOLUTION, "question": f"{number}?"} for number in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [short, *lines]))
    traces = corruptions.make_traces(path, 3, seed=1)
    assert traces == corruptions.make_traces(path, 3, seed=1)
    questions = [trace["question"] for trace in traces]
    labels = [corruptions.CLEAN, *corruptions.CORRUPTIONS]
    assert [trace["label"] for trace in traces] == labels * 3
    assert len(set(questions)) == 3
    assert len({trace["id"] for trace in traces}) == 15


# ---------------------------------------------------------------- the paper-to-code map

MAP = Path(__file__).parent.parent / "jobs" / "paper" / "README.md"
NAMED = sorted(set(re.findall(r"`([a-z_.]+:[A-Za-z_]{2,})`", MAP.read_text())))
NAMED_TESTS = sorted(set(re.findall(r"`(test_\w+::test_\w+)`", MAP.read_text())))


def defined(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_map_names_many():
    assert len(NAMED) > 40
    assert len(NAMED_TESTS) > 35


@pytest.mark.parametrize("named", NAMED)
def test_what_the_map_names_is_there(named, repository):
    module, name = named.split(":")
    module = module if module.startswith("jobs.") else f"grace_store.{module}"
    assert name in defined(repository / f"{module.replace('.', '/')}.py")


@pytest.mark.parametrize("named", NAMED_TESTS)
def test_tests_that_the_map_names_are_there(named, repository):
    file, name = named.split("::")
    assert name in defined(repository / "tests" / f"{file}.py")


@pytest.mark.parametrize("page", ["jobs/paper/README.md", "jobs/study/README.md"])
def test_links_lead_somewhere(page, repository):
    links = re.findall(r"\]\(([^)#]+)\)", (repository / page).read_text())
    assert links
    for link in links:
        assert (repository / page).parent.joinpath(link).exists(), link
