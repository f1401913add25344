"""The benchmark runs, both sides of a ratio do the same work, and its pages say what its code and its results say."""

from __future__ import annotations

import json
import math
from importlib import import_module

import numpy as np
import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from grace_store.model.closed_form import ClosedFormHead, ResponseTokens
from grace_store.pages.page_files import html_parts, write_page
from jobs.bench import roofline
from jobs.bench.__main__ import FAMILIES, main
from jobs.bench.extraction import Extraction
from jobs.bench.findings import Curve, Findings, Goal, Ratio, report, sections
from jobs.bench.gradients import true_step_gradients
from jobs.bench.measuring import apart, exponent, in_turns, measured_apart, take
from jobs.bench.tokenwise import segment_means_by_tokens
from jobs.bench.workload import RandomModel, Traces
from tests.reports import PageReader, read_page

NEEDS_WORK = ("scoring", "commands", "questions")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extraction")
    model = RandomModel(64, 2, 2_000).write(folder / "model")
    with Extraction(folder / "bench", model, Traces(num_samples=3, num_steps=2), threads=1) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_measures_something(family, work):
    more = {"work": str(work)} if family in NEEDS_WORK else {}
    module = import_module(f"jobs.bench.{'gradients' if family == 'peers' else family}")
    measure = module.measure_peers if family == "peers" else module.measure
    document = json.loads(json.dumps(measure(quick=True, threads=1, **more)))
    found = Findings.from_json(document)
    assert found.ratios or found.curves or found.notes
    assert all(math.isfinite(ratio.value) for ratio in found.ratios)
    assert all(min(costs) > 0 for curve in found.curves for costs in curve.lines.values())
    assert found.to_json() == document


def test_the_command_prints_saves_and_draws(tmp_path, capsys):
    out, drawn = tmp_path / "bench.json", tmp_path / "bench.html"
    assert main(["--quick", "--only", "storage", "search", "--out", str(out), "--page", str(drawn)]) == 0
    printed, saved = capsys.readouterr().out, json.loads(out.read_text())
    assert saved["settings"] == {"quick": True, "threads": 1, "families": ["storage", "search"]}
    assert {"date", "processor", "commit", "numpy"} <= saved["environment"].keys()
    for ratio in saved["families"]["storage"]["ratios"]:
        assert ratio["what"] in printed
        assert ratio["what"] in drawn.read_text()
    curves, page = saved["families"]["search"]["curves"], read_page(drawn)
    assert curves
    for number, curve in enumerate(curves):
        figure = page.document(f"figure-curve-{number}")
        assert {line["name"] for line in figure["data"]} == set(curve["lines"])
        assert figure["data"][0]["x"] == curve["sizes"]


def test_a_bare_forward_sees_the_tokens_that_extraction_sees(bench):
    bench.make_room(1)
    view = bench.extract()
    losses = torch.cat(bench.bare_forward()).numpy()
    (batch,) = bench.batches()
    segment = batch.segment.numpy()
    means = np.bincount(segment, weights=losses) / np.bincount(segment)
    in_order = np.concatenate([view.segments("segment_loss", member) for member in batch.members])
    np.testing.assert_allclose(in_order, means, rtol=1e-4)


def test_true_gradients_take_one_backward_pass_for_every_segment(bench, monkeypatch):
    calls = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **named: calls.append(args) or real(*args, **named))
    batches = bench.single_batches()
    assert [batch.num_segments for batch in batches] == [(3,)] * bench.num_samples
    true_step_gradients(bench, batches)
    assert len(calls) == 3 * bench.num_samples
    assert all(len(parameters) == len(list(bench.extractor.model.parameters())) for _, parameters in calls)
    assert not any(parameter.requires_grad for parameter in bench.extractor.model.parameters())


def test_the_head_token_by_token_makes_the_same_vectors():
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn((50, 8), generator=generator), torch.randn((12, 8), generator=generator)
    segment = np.repeat([0, 1, 2], [5, 3, 4])
    share = torch.from_numpy((1 / np.bincount(segment)[segment]).astype(np.float32))
    tokens = ResponseTokens(torch.arange(12), torch.from_numpy(segment), share, segment)
    expected = ClosedFormHead(weight).segment_means(hidden, tokens, 4).vector
    for block in (5, 12):
        torch.testing.assert_close(segment_means_by_tokens(weight, hidden, tokens, block), expected)


def test_calls_take_turns():
    order = []
    costs = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert costs.keys() == {"a", "b"}


def test_memory_that_a_call_holds_shows_in_its_peak():
    small, large = take(lambda: None), take(lambda: np.ones(30_000_000))
    assert small.grown_bytes < 100_000_000 < large.grown_bytes


def test_a_process_apart_returns_what_its_function_does_and_says_what_went_wrong():
    assert apart(exponent, sizes=[1, 10], costs=[5, 500]) == pytest.approx(2)
    assert measured_apart(exponent, sizes=[1, 10], costs=[5, 5])["result"] == pytest.approx(0)
    with pytest.raises(RuntimeError, match=r"(?s)measuring\.exponent failed.*math domain"):
        apart(exponent, sizes=[0, 1], costs=[1, 1])


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal(">=", 8.0), 9.0, "met"),
        (Goal(">=", 8.0), 6.0, "missed by 25%"),
        (Goal("<=", 1.1), 1.1, "met"),
        (Goal("<=", 1.0), 1.5, "missed by 50%"),
        (None, 3.0, ""),
    ],
)
def test_a_ratio_says_whether_its_goal_is_met(goal, value, verdict):
    assert Ratio("this", "that", value, goal).verdict == verdict


def test_a_page_shows_text_as_text(tmp_path):
    found = {"x": Findings([Ratio("<b>", "that", 1.0)], [Curve("c<", "n", "s", [1, 2], {"<i>": [1, 2]})], ["<u>"])}
    write_page(tmp_path / "bench.html", "costs", sections(found, {"machine": "<s>"}))
    page = read_page(tmp_path / "bench.html")
    assert not {"b", "i", "u", "s"} & (set(page.tags) - set(PageReader("".join(html_parts("", {}, ""))).tags))
    assert page.document("figure-curve-0")["data"][0]["name"] == "&lt;i&gt;"  # plotly reads markup in its labels
    assert [block["kind"] for block in page.document("page")["sections"][0]["blocks"]] == ["table", "figure", "text"]


# ---------------------------------------------------------------- pages


def test_the_results_page_is_made_from_the_results(repository):
    saved = json.loads((repository / "jobs/bench/results.json").read_text())
    families = {name: Findings.from_json(found) for name, found in saved["families"].items()}
    assert report(families, saved["environment"]) in (repository / "jobs/bench/RESULTS.md").read_text()


@pytest.mark.parametrize("name", roofline.tables())
def test_the_roofline_page_has_the_tables_that_the_code_prints(name, repository):
    assert roofline.tables()[name] in (repository / "jobs/bench/ROOFLINE.md").read_text()


def test_a_question_of_one_trace_shares_nothing():
    model, sample = roofline.MODEL, roofline.SAMPLE
    alone = roofline._language(model, sample.num_tokens(model), 20.0)
    shared = roofline._shared_language(model, sample, 20.0, traces=1)
    assert shared.flops == pytest.approx(alone.flops)
    assert shared.num_bytes > alone.num_bytes, "the prompt's keys are copied, and weights are read twice"
    assert roofline.gpu_seconds(traces=8) < roofline.gpu_seconds(traces=4) < roofline.gpu_seconds()


def test_the_rooflines_cores_are_those_measured(repository):
    saved = json.loads((repository / "jobs/bench/results.json").read_text())
    measured = {ratio["what"]: ratio["value"] for ratio in saved["families"]["host"]["ratios"]}
    assert {name: round(value, 1) for name, value in measured.items()} == roofline.CPU_MILLISECONDS


def test_the_roofline_counts_the_weights_that_the_real_architecture_has():
    model = roofline.MODEL
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": model.hidden,
            "num_hidden_layers": model.layers,
            "intermediate_size": model.intermediate,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "head_dim": model.head_size,
            "vocab_size": model.vocabulary,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
        },
        vision_config={
            "hidden_size": model.vision_hidden,
            "depth": model.vision_layers,
            "out_hidden_size": model.hidden,
            "intermediate_size": model.vision_intermediate,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        built = Qwen3VLForConditionalGeneration(config)

    def matrices(part):
        return sum(parameter.numel() for name, parameter in part.named_parameters() if parameter.dim() == 2)

    assert matrices(built.model.language_model.layers) == model.layers * model.layer_parameters
    vision = built.model.visual
    assert matrices(vision.blocks) == model.vision_layers * model.vision_layer_parameters
    mergers = matrices(vision.merger) + matrices(vision.deepstack_merger_list)
    assert mergers == model.num_mergers * model.merger_parameters
    assert built.lm_head.weight.shape == (model.vocabulary, model.hidden)
