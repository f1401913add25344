"""The report as a reader has it: opened in Chromium, read, searched, sorted, turned dark; hostile traces stay text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from grace_store.base.documents import read_document, write_document
from grace_store.base.files import write_text
from grace_store.base.finding import Column, Estimate, Finding, PoolNote, Table
from grace_store.base.states import ABOUT
from grace_store.choose.export import export
from grace_store.choose.select import select
from grace_store.pages.figures import line_chart
from grace_store.pages.page_files import write_page
from grace_store.pages.report import report
from grace_store.pages.report_inputs import ReportRequest
from grace_store.pages.sections import Section
from grace_store.pool.samples import read_sample
from grace_store.scoring.score import score
from grace_store.store.digested_json import seal, to_bytes
from grace_store.store.opened import Store
from grace_store.study.diversity import DiversitySettings, diversity
from grace_store.study.diversity_tables import curve_choices
from grace_store.study.judge import JudgeSettings, judge
from grace_store.study.stability import STEPS, StabilitySettings, stability
from grace_store.values.length_bias import rank_correlation
from grace_store.values.methods.method import ScoreSpec
from tests.example_notes import EXAMPLES
from tests.reports import HOSTILE_ID, IMAGE, NUM_TRACES, SCRIPT, chromium, make_store
from tests.reports import trace as make_trace

NUM_SHOWN = NUM_TRACES + 4
SECTIONS = (
    "overview", "values", "length", "groups", "settings", "methods", "similarity",
    "judge", "stability", "fidelity", "trial", "warmup", "traces",
)  # fmt: skip
SAID = "Half of the subset survives <b>other</b> steps."
SUBSET = "subset <b>bold<script>window.__pwned=5.txt"


@dataclass
class Made:
    """A written report and what it was made from."""

    path: Path
    store: Store

    def url(self, fragment: str = "") -> str:
        return f"file://{self.path}#{fragment}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    store = make_store(folder)
    scores, random = folder / "scores.parquet", folder / "random.parquet"
    score(store, out=scores)
    score(store, ScoreSpec(measure=("random",)), out=random)
    subset = folder / SUBSET
    export(select(scores, ratio="0.2"), subset, as_format="ids")
    out = folder / "report.html"
    request = ReportRequest(
        scores=(scores, random),
        subsets=(subset,),
        by=("kind", "about.number"),
        fields="kind,about.number,prompt",
        **measure(store, folder, scores),
    )
    report(store, out, request)
    return Made(out, store)


def measure(store: Store, folder: Path, scores: Path) -> dict[str, Any]:
    """Write what other commands measure, and return where."""
    labels = JudgeSettings(right='"about.number" >= 60', kind="kind")
    traded = curve_choices(weights=(0.0, 0.5, 1.0))
    said = {
        "judge": judge(store, labels),
        "stability": stability(store, StabilitySettings(draws=5)).model_copy(update={"conclusion": SAID}),
        "fidelity": fidelity_of_two(),
        "trial": tried(store),
        "diversity": diversity(store, scores=scores, curve=traded, settings=DiversitySettings(random=20)),
    }
    for name, document in said.items():
        write_document(folder / f"{name}.json", document)
    write_text(folder / "warmup" / "recipe.json", to_bytes(seal(EXAMPLES["recipe of a warm-up"])).decode())
    write_text(folder / "warmup" / "loss.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n')
    paths = {name: folder / f"{name}.json" for name in said} | {"warmup": folder / "warmup"}
    findings = tuple(paths.pop(name) for name in ("judge", "stability", "fidelity", "trial", "diversity"))
    return {**paths, "findings": findings}


def fidelity_of_two() -> Finding:
    """Return what `fidelity` writes, of two samples with two steps each."""
    values = tuple({"sample_id": each, "proxy": 0.25, "representation": 0.5} for each in (IMAGE, HOSTILE_ID))
    steps = tuple(
        {"sample_id": each, "step": k, "parameters": space, "answer_alignment": 0.5 * k, "history_alignment": None}
        for space in ("proxy", "representation")
        for each in (IMAGE, HOSTILE_ID)
        for k in (1, 2)
    )
    tables = {
        name: Table(columns={each: Column(heading=each) for each in rows[0]}, rows=rows, is_shown=False)
        for name, rows in {"values": values, "steps": steps}.items()
    }
    return Finding(study="fidelity", conclusion="The proxy keeps the order.", tables=tables)


def tried(store: Store) -> Finding:
    """Return what a trial of one subset could have found."""
    pool = PoolNote(store=store.location, plan_sha256=store.plan.digest(), num_units=store.plan.num_units)
    name, loss = Column(heading="subset"), Column(heading="loss", digits=4)
    difference = Column(heading="difference, 95 %", digits=4, chance=0.0)
    row = {"subset": "a.jsonl", "heldout_loss": 1.512, "difference": Estimate(value=0.012, low=0.006, high=0.018)}
    losses = {"subset-1": 1.512, "random-1-1": 1.5, "random-1-2": 1.5}
    arms = tuple({"subset": "a.jsonl", "arm": arm, "heldout_loss": loss} for arm, loss in losses.items())
    against = Table(
        title="Against random subsets",
        columns={"subset": name, "heldout_loss": loss, "difference": difference},
        rows=(row,),
        is_drawn=True,
    )
    tables = {
        "subsets": against,
        "arms": Table(columns={"subset": name, "heldout_loss": loss}, rows=arms, is_shown=False),
    }
    return Finding(
        study="trial", pool=pool, conclusion="Random subsets train better models than a.jsonl.", tables=tables
    )


@dataclass
class Watched:
    """A page and everything it complained of or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, url: str) -> Page:
        self.page.goto(url)  # loads nothing anew where only the fragment differs
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def check(self) -> None:
        """Nothing was complained of, nothing was run, and nothing asked of a network."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert len({url for url in self.requests if url.startswith("file:")}) == 1  # the page
        assert self.page.evaluate("typeof window.__pwned") == "undefined"


def watch(page: Page) -> Watched:
    watched = Watched(page)
    page.on("console", lambda message: watched.complaints.append(message.text))
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    return watched


@pytest.fixture(scope="module")
def opened(browser: Browser, made: Made) -> Iterator[Watched]:
    """The report, loaded once for all tests that can share it."""
    # Without motion colours change at once, so that tests see the one meant.
    viewport: Any = {"width": 1280, "height": 860}
    context = browser.new_context(viewport=viewport, color_scheme="light", reduced_motion="reduce")
    found = watch(context.new_page())
    found.open(made.url())
    yield found
    context.close()


@pytest.fixture
def watched(opened: Watched) -> Iterator[Watched]:
    """The shared page as a reader first has it; at the end it has behaved."""
    opened.page.emulate_media(media="screen")
    opened.page.evaluate(
        """() => { document.activeElement.blur(); list.current = -1; colourBy = 'score'; sideBySide = false;
        byId('filters').reset(); byId('sort').selectedIndex = byId('filter').selectedIndex = 0;
        findTraces(); goTo('#overview'); }"""
    )
    yield opened
    opened.check()


def listed(page: Page) -> list[str]:
    return page.locator("#trace-list .id").all_inner_texts()


def list_values(page: Page) -> list[float]:
    return [float(text.replace("−", "-")) for text in page.locator("#trace-list .value").all_inner_texts()]


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize("section", SECTIONS)
def test_every_part_opens_and_draws_all_its_figures(watched: Watched, made: Made, section: str) -> None:
    page = watched.open(made.url(section))
    view = page.locator(f"#view-{section}")
    expect(view).to_be_visible()
    assert page.locator("main .view:visible").count() == 1
    for plot in view.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        expect(plot).to_have_attribute("data-drawn", "true", timeout=15_000)
        assert plot.locator("svg.main-svg, table.matrix").count() >= 1


def test_the_overview_counts_add_up(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("overview"))
    verdict = page.locator("#view-overview .blocks > *").first
    assert verdict.locator("li .badge").first.inner_text() == "bad"
    tried = "Tried: Random subsets train better models than a.jsonl."
    assert verdict.locator("li", has_text=tried).locator(".badge").inner_text() == "bad"
    opening = page.locator("#view-overview .prose").first.inner_text()
    assert opening.startswith(f"{made.store.plan.num_samples} samples have a value; ")
    assert "length explains " in opening
    numbers = [int(text) for text in page.locator(".counts dd").all_inner_texts()]
    assert sum(numbers) == made.store.plan.num_records
    assert page.locator(".counts .total").inner_text() == f"{made.store.plan.num_records} records"
    assert page.locator("#view-overview").get_by_text("too_few_steps").count() == 2  # counted, and listed


def test_methods_are_held_against_each_other(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("methods"))
    figure = json.loads(page.locator("#figure-method-rank-correlation").text_content() or "")
    scores = score(made.store)
    random = score(made.store, ScoreSpec(measure=("random",)))
    assert figure["data"][0]["z"][0][1] == pytest.approx(rank_correlation(scores.value, random.value), abs=1e-3)
    row = page.locator("#view-methods tbody tr", has_text="random")
    assert row.locator("td").all_inner_texts()[5:7] == ["0", "0"]  # forward and backward passes


def test_audits_open_with_what_they_conclude(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("judge"))
    folder = made.path.parent
    judged = read_document(folder / "judge.json", Finding)
    assert page.locator("#view-judge .blocks > *").first.inner_text() == judged.conclusion
    rows = page.locator("#view-judge table").first.locator("tbody tr")
    assert rows.count() == len(judged.tables["traces"].rows)
    watched.open(made.url("stability"))
    assert page.locator("#view-stability .blocks > *").first.inner_text() == SAID
    found = read_document(folder / "stability.json", Finding).tables["changes"]
    again = page.locator("#view-stability tbody tr", has_text=STEPS)
    assert again.locator("td").nth(2).inner_text() == found.cell_text(found.row(change=STEPS), "jaccard")


def test_lines_and_points_of_the_curve_are_named_where_they_are(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("diversity"))
    plot = page.locator('[data-figure="figure-diversity-2"]')
    plot.scroll_into_view_if_needed()
    expect(plot).to_have_attribute("data-drawn", "true")
    names = {text.strip() for text in plot.locator(".annotation-text").all_text_contents()}
    assert names == {"clusters", "facility", "mmr", "by value alone", "random"}


def test_traces_behind_each_step_are_counted_and_told(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("values"))
    plot = page.locator('[data-figure="figure-step-profile"]')
    plot.scroll_into_view_if_needed()
    expect(plot).to_have_attribute("data-drawn", "true")
    num_steps = score(made.store).num_steps
    counts = [int((num_steps >= k).sum()) for k in range(1, num_steps.max() + 1)]
    assert [int(text) for text in plot.locator(".bartext").all_text_contents()] == counts
    plot.evaluate("place => Plotly.Fx.hover(place, [{curveNumber: 4, pointNumber: 2}])")
    expect(plot.locator(".hoverlayer .hovertext").first).to_contain_text(f"{counts[2]} traces have it")


def test_a_page_without_traces_shows_its_sections_and_no_trace_browser(browser: Browser, tmp_path: Path) -> None:
    costs, more = Section("costs", "Costs"), Section("more", "More")
    costs.figure("growth", "Growth", line_chart({"a<b": ([1, 10], [2, 20])}, {}, {}))
    write_page(tmp_path / "page.html", "Costs", [costs, more])
    context = browser.new_context()
    found = watch(context.new_page())
    page = found.open(f"file://{tmp_path / 'page.html'}")
    assert page.locator("#views a").all_inner_texts() == ["Costs", "More"]
    plot = page.locator(".plot")
    expect(plot).to_have_attribute("data-drawn", "true", timeout=15_000)
    page.keyboard.press("/")
    page.keyboard.press("2")
    expect(page.locator("#view-more")).to_be_visible()
    expect(page.locator("#view-traces")).to_be_hidden()
    found.open(f"file://{tmp_path / 'page.html'}#sample=1")
    expect(page.locator("#view-costs")).to_be_visible()
    found.check()
    context.close()


# ---------------------------------------------------------------- the trace browser


def test_searching_finds_ids_and_words_in_steps(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    expect(page.locator("#count")).to_have_text(f"{NUM_SHOWN} of {NUM_SHOWN} traces")
    page.get_by_role("searchbox", name="Search id and text").fill("PART of NUMBER 77?")
    expect(page.locator("#count")).to_have_text(f"1 of {NUM_SHOWN} traces")
    assert listed(page) == ["trace-0077"]
    page.get_by_role("searchbox").fill("nothing is like this")
    expect(page.locator("#trace-list")).to_contain_text("No trace")


@pytest.mark.parametrize(
    ("sort", "column", "falling"),
    [("value-down", "value", True), ("value-up", "value", False), ("length-down", "num_tokens", True),
     ("steps-up", "num_steps", False), ("position", "row", False)],
)  # fmt: skip
def test_sorting_is_that_of_the_table(watched: Watched, made: Made, sort: str, column: str, falling: bool) -> None:
    page = watched.open(made.url("traces"))
    page.get_by_label("Sort").select_option(sort)
    table = score(made.store)
    keys = table.table[column].to_pylist()
    order = sorted(range(len(keys)), key=lambda i: (-keys[i] if falling else keys[i], table.row[i]))
    ids = table.sample_id
    assert listed(page)[:20] == [ids[i] for i in order[:20]]


def test_pages_show_every_trace_once(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()
    seen = listed(page)
    for number in (2, 3):
        page.get_by_role("button", name="Next").click()
        expect(page.locator("#page-words")).to_have_text(f"Page {number} of 3")
        seen += listed(page)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    assert sorted(seen) == sorted(score(made.store).sample_id)


def test_filters_tell_chosen_and_duplicate_traces_apart(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    show = page.get_by_label("Show")
    num_chosen = -(-NUM_SHOWN // 5)
    show.select_option("in-0")
    expect(page.locator("#count")).to_have_text(f"{num_chosen} of {NUM_SHOWN} traces")
    lowest_chosen = min(list_values(page))
    show.select_option("out-0")
    expect(page.locator("#count")).to_have_text(f"{NUM_SHOWN - num_chosen} of {NUM_SHOWN} traces")
    assert max(list_values(page)) <= lowest_chosen
    show.select_option("flagged")
    num_flagged = int(score(made.store).is_flagged(ABOUT).sum())
    assert 0 < num_flagged < NUM_SHOWN
    expect(page.locator("#count")).to_have_text(f"{num_flagged} of {NUM_SHOWN} traces")
    show.select_option("duplicates")
    assert sorted(listed(page)) == ["copy-of-7", "trace-0007"]


def test_tokens_are_coloured_by_their_numbers(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=trace-0011"))
    sample = read_sample(made.store, "trace-0011")
    tokens = sample.tokens
    assert tokens is not None
    wanted = {"surprisal": -tokens["log_probability"], "entropy": tokens["entropy"], "rank": tokens["rank"]}
    response, stops = "".join(sample.segments), np.cumsum(tokens["num_characters"]).tolist()
    texts = [response[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    for name, numbers in wanted.items():
        page.locator("#colour-by").select_option(f"token-{name}")
        pieces = page.locator(".step .token")
        assert "".join(pieces.all_text_contents()) == response
        titles = [piece.get_attribute("title") or "" for piece in pieces.all()]
        assert pieces.all_text_contents() == [text for text in texts if text]
        assert [float(title.removeprefix(name)) for title in titles] == pytest.approx(
            [float(number) for number, text in zip(numbers, texts, strict=True) if text], abs=0.051
        )
    page.locator("#colour-by").select_option("score")
    assert page.locator(".step .token").count() == 0


def test_steps_are_coloured_by_their_scores_and_say_them(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=trace-0011"))
    table = score(made.store)
    scores = table.table["step_score"][table.sample_id.index("trace-0011")].as_py()
    steps = page.locator(".step:not(.answer)")
    assert [text.replace("−", "-") for text in steps.locator(".gutter b").all_inner_texts()] == [
        f"{each:+.3f}" for each in scores
    ]
    colours = [step.evaluate("each => getComputedStyle(each).backgroundColor") for step in steps.all()]
    parts = [[float(part) for part in colour.split("(")[1].rstrip(")").split(",")] for colour in colours]
    assert {each > 0 for each in scores} == {True, False}  # a trace with both
    for each, (red, _, blue, *_) in zip(scores, parts, strict=True):
        assert (blue > red) == (each > 0)
    strengths = [alpha for *_, alpha in parts]
    strongest = max(range(len(scores)), key=lambda i: abs(scores[i]))
    assert strengths[strongest] == max(strengths)
    page.get_by_label("Colour by").select_option("answer_alignment")
    assert page.locator(".step .gutter b").first.inner_text() == steps.locator(".gutter b").first.inner_text()


def test_the_gram_is_drawn_as_cosines_with_their_numbers(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=trace-0011"))
    view = made.store.signal(None)
    gram = view.gram(made.store.find("trace-0011"))
    cells = page.locator("table.gram td[title]")
    assert cells.count() == gram.size
    cosine = gram[0, -1] / (gram[0, 0] * gram[-1, -1]) ** 0.5
    shown = page.locator('table.gram td[title^="step 1 and answer"]').get_attribute("title") or ""
    assert float(shown.rpartition(" ")[2].replace("−", "-")) == pytest.approx(cosine, abs=6e-4)


def test_neighbours_are_linked_and_a_copy_is_nearest(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=copy-of-7"))
    first = page.locator(".near li").first
    assert first.locator("a").inner_text() == "trace-0007"
    assert first.locator(".value").inner_text() == "+1.000"
    first.locator("a").click()
    expect(page.locator("#trace-name")).to_have_text("trace-0007")
    assert page.url.endswith("#sample=trace-0007")


def test_traces_of_one_question_stand_side_by_side(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=copy-of-7"))
    card = page.locator("#siblings")
    expect(card.locator("h2")).to_have_text("2 traces of this question")
    shown = [row.locator("td").all_inner_texts() for row in card.locator("tbody tr").all()]
    assert [row[0] for row in shown] == ["trace-0007", "copy-of-7"]
    assert shown[0][1:4] == shown[1][1:4], "it is a copy, with the same value, steps and tokens"
    card.locator("a").click()
    expect(page.locator("#trace-name")).to_have_text("trace-0007")
    watched.open(made.url("sample=trace-0008"))
    expect(page.locator("#trace-name")).to_have_text("trace-0008")
    expect(page.locator("#siblings")).to_have_count(0)
    expect(page.locator("#side-by-side")).to_have_count(0)


def test_texts_of_one_question_are_read_in_columns(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=copy-of-7"))
    page.get_by_role("button", name="Side by side (2)").click()
    columns = page.locator(".column")
    assert columns.locator("h3").all_inner_texts() == ["copy-of-7", "trace-0007"]
    table = score(made.store)
    record = make_trace(7)
    for column, name in zip(columns.all(), ("copy-of-7", "trace-0007"), strict=True):
        at = table.sample_id.index(name)
        texts = [text.split("\n")[0] for text in column.locator(".words").all_inner_texts()]
        assert texts == [*record["steps"], record["answer"]]
        scores = [f"{each:+.3f}" for each in table.table["step_score"][at].as_py()]
        assert [text.replace("−", "-") for text in column.locator(".gutter b").all_inner_texts()] == [*scores, "answer"]
        assert column.locator(".badge.flag").all_inner_texts() == table.table["flags"][at].as_py()
        shown = dict(zip(column.locator("dt").all_inner_texts(), column.locator("dd").all_inner_texts(), strict=True))
        assert (shown["value"].replace("−", "-"), shown["about.number"]) == (f"{table.value[at]:+.4f}", "7")
    page.get_by_role("button", name="Only this trace").click()
    expect(columns).to_have_count(0)


def test_traces_are_sorted_by_other_tables_and_steps_coloured_by_loss(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    table, random = score(made.store), score(made.store, ScoreSpec(measure=("random",)))
    for label, sign in (("By value by random, largest first", -1), ("By value by random", 1)):
        page.get_by_label("Sort").select_option(label=label)
        order = sorted(range(len(table)), key=lambda i, sign=sign: (sign * round(random.value[i], 4), table.row[i]))
        assert listed(page)[:20] == [table.sample_id[i] for i in order[:20]]
    watched.open(made.url("sample=trace-0011"))
    options = page.locator("#colour-by option").all_inner_texts()
    assert options[0] == "step score (grace), higher is better"
    assert {"loss, lower is better", "hit_rate, higher is better", "rsr, lower is better"} < set(options)
    losses = made.store.signal(None).segments("segment_loss", made.store.find("trace-0011")).tolist()
    page.get_by_label("Colour by").select_option("loss")
    assert page.locator(".step .gutter b").all_inner_texts() == [f"{each:.4g}" for each in losses]
    assert page.locator(".step.answer .gutter small").inner_text() == "answer"
    colour = page.locator(".step").first.evaluate("each => getComputedStyle(each).backgroundColor")
    red, _, blue, *_ = (float(part) for part in colour.split("(")[1].rstrip(")").split(","))
    assert red > blue, "orange"
    ramp = page.locator(".ramp[role=img]")
    assert "none at 0 to orange at" in str(ramp.get_attribute("aria-label"))
    assert str(ramp.get_attribute("aria-label")).endswith(": lower is better")
    page.get_by_label("Colour by").select_option("tokens")
    colour = page.locator(".step").first.evaluate("each => getComputedStyle(each).backgroundColor")
    red, _, blue, *_ = (float(part) for part in colour.split("(")[1].rstrip(")").split(","))
    assert blue > red, "blue"
    assert str(ramp.get_attribute("aria-label")).endswith(": higher is better")


@pytest.mark.parametrize(("name", "better"), [("rsr", "lowest"), ("hes", "highest"), ("answer_alignment", "highest")])
def test_traces_are_sorted_by_any_measure(watched: Watched, made: Made, name: str, better: str) -> None:
    page = watched.open(made.url("traces"))
    table = score(made.store, ScoreSpec(measure=(f"{name}:{better}",)))
    worse = {"lowest": "highest", "highest": "lowest"}[better]
    rounded = [float(f"{each:.6g}") for each in table.value]
    for label, sign in ((f"By {name}, best ({better}) first", -1), (f"By {name}, worst ({worse}) first", 1)):
        page.get_by_label("Sort").select_option(label=label)
        order = sorted(range(len(table)), key=lambda i, sign=sign: (sign * rounded[i], table.row[i]))
        assert listed(page)[:20] == [table.sample_id[i] for i in order[:20]]
        numbers = [float(text) for text in page.locator("#trace-list .value").all_inner_texts()][:20]
        assert numbers == [abs(rounded[i]) if better == "lowest" else rounded[i] for i in order[:20]]


def test_an_image_is_shown_small_and_a_missing_one_says_so(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=with-figure"))
    picture = page.locator("img.picture")
    expect(picture).to_be_visible()
    assert picture.evaluate("each => [each.naturalWidth, each.naturalHeight]") == [60, 40]
    watched.open(made.url("sample=without-figure"))
    expect(page.locator("#trace .note")).to_contain_text("image_missing")


def test_a_sample_that_is_not_there_is_said_to_be_missing(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=<img src=x onerror=window.__pwned=6>"))
    expect(page.locator("#trace")).to_contain_text("There is no trace <img")
    watched.open(made.url("sample=%E0%A4%A"))
    expect(page.locator("#trace")).to_contain_text("There is no trace %E0%A4%A")


# ---------------------------------------------------------------- hostile traces


def test_a_hostile_trace_is_shown_as_the_text_it_is(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    page.get_by_role("searchbox").fill("__pwned")
    expect(page.locator("#count")).to_have_text(f"2 of {NUM_SHOWN} traces")  # by its words, and by its file's name
    page.locator("#trace-list a", has_text="onerror").first.click()
    expect(page.locator("#trace-name")).to_have_text(HOSTILE_ID)
    text = page.locator("#trace").inner_text()
    assert IMAGE in text
    assert "</script><script>window.__pwned = 1</script>" in text
    assert '<a href="javascript:' in text
    assert "\\u202etxt.exe" in text  # spelled out, and so not obeyed
    assert "\\x1b[2J" in text
    assert page.locator("#trace img, #trace script, #trace-list img").count() == 0
    assert page.locator('a[href^="javascript:"]').count() == 0


def test_hostile_names_are_text_in_every_part(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("overview"))
    assert SUBSET in page.locator("#view-overview").inner_text()
    for section in SECTIONS:
        watched.open(made.url(section))
        page.evaluate("document.querySelectorAll('.view:not([hidden]) .plot').forEach(drawPlot)")
        assert page.locator("main img:not(.picture), main script").count() == 0
        assert page.locator("main b").filter(has_text="bold").count() == 0


# ---------------------------------------------------------------- fields of the records


def cells(page: Page, column: int) -> list[str]:
    """What the traces of the page shown have in a column, without its name."""
    texts: list[str] = page.evaluate(
        """column => [...document.querySelectorAll('#trace-list .cells')].map((each) => each.children[column]
        .lastChild.textContent)""",
        column,
    )
    return texts


def test_fields_stand_in_columns_and_in_the_trace(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    assert page.locator("#field-names span").all_inner_texts() == [
        "kind", "about.number", "prompt", "value by random",
    ]  # fmt: skip
    assert set(cells(page, 0)) <= {"even", SCRIPT, "(none)"}
    page.goto(made.url("sample=trace-0012"))
    numbers = " ".join(page.locator(".trace-head .numbers").inner_text().split())
    assert "kind even about.number 12 prompt What about number 12?" in numbers
    page.goto(made.url("sample=trace-0011"))
    assert SCRIPT in page.locator(".trace-head .numbers").inner_text()


def test_a_field_filters_by_choice_range_or_text(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    count = page.locator("#count")
    page.get_by_label("kind", exact=True).select_option("=even")
    expect(count).to_have_text(f"65 of {NUM_SHOWN} traces")
    assert set(cells(page, 0)) == {"even"}
    page.get_by_label("about.number, from").fill("100")
    expect(count).to_have_text(f"15 of {NUM_SHOWN} traces")
    page.get_by_label("about.number, to").fill("104")
    expect(count).to_have_text(f"3 of {NUM_SHOWN} traces")
    page.get_by_label("prompt", exact=True).fill("NUMBER 102")
    expect(count).to_have_text(f"1 of {NUM_SHOWN} traces")
    assert listed(page) == ["trace-0102"]
    for end in ("from", "to"):
        page.get_by_label(f"about.number, {end}").fill("")
    page.get_by_label("prompt", exact=True).fill("")
    page.get_by_label("kind", exact=True).select_option(f"={SCRIPT}")
    assert set(cells(page, 0)) == {SCRIPT}
    page.get_by_label("kind", exact=True).select_option("=(none)")
    expect(count).to_have_text(f"3 of {NUM_SHOWN} traces")
    page.get_by_label("kind", exact=True).select_option("")
    page.locator("#sort").select_option(label="By about.number")
    assert cells(page, 1)[:3] == ["0", "1", "2"]
    page.locator("#sort").select_option(label="By kind")
    assert cells(page, 0)[0] == SCRIPT  # "<" comes before letters; traces without one are last


def test_hovering_over_a_hostile_point_shows_its_text(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("values"))
    plot = page.locator('[data-figure="figure-answer-against-history"]')
    plot.scroll_into_view_if_needed()
    expect(plot).to_have_attribute("data-drawn", "true")
    curve, point = plot.evaluate(
        """place => { for (const [i, trace] of place.data.entries()) { const at = trace.text.findIndex(
        text => text.includes('onerror')); if (at >= 0) return [i, at]; } }"""
    )
    plot.evaluate("(place, [curve, point]) => Plotly.Fx.hover(place, [{curveNumber: curve, pointNumber: point}])",
                  [curve, point])  # fmt: skip
    label = plot.locator(".hoverlayer .hovertext")
    expect(label.first).to_be_visible()
    assert '<img src=x onerror="window.__pwned = 2">' in (label.first.text_content() or "")
    assert plot.locator("img, a, script").count() == 0


def test_the_policy_would_stop_a_script_that_got_in(browser: Browser, made: Made) -> None:
    """Were the page ever to make markup of a trace, the browser would still run none of it and fetch nothing."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(made.url())
    page.evaluate(
        """() => { const place = document.createElement('div'); document.body.append(place);
        place.innerHTML = '<img src=x onerror="window.__pwned = 1"><img src="https://example.org/x.png">';
        const script = document.createElement('script'); script.textContent = 'window.__pwned = 2';
        document.body.append(script); }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("typeof window.__pwned") == "undefined"
    assert any("Content Security Policy" in text for text in complaints)
    with pytest.raises(Exception, match="fetch"):
        page.evaluate("fetch('https://example.org/')")
    page.close()


# ---------------------------------------------------------------- light, dark, keyboard, print, narrow


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_told_and_are_remembered(browser: Browser, made: Made, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(made.url("values"))
    assert page.locator("html").get_attribute("data-theme") == scheme
    before = background(page)
    plot = page.locator(".plot").first
    expect(plot).to_have_attribute("data-drawn", "true")
    ink = plot.evaluate("place => place.layout.font.color")
    page.get_by_role("button", name=f"Use {other} colours").click()
    assert page.locator("html").get_attribute("data-theme") == other
    assert background(page) != before
    assert plot.evaluate("place => place.layout.font.color") != ink
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == other
    context.close()


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const over = (colours) => { canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = (rgb) => { const [r, g, b] = rgb.map((c) => { c /= 255; return c <= 0.04045 ? c / 12.92 :
    ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const found = [];
  for (const each of document.querySelectorAll('body *')) {
    if (!each.checkVisibility() || each.closest('svg') || each.closest('[aria-hidden=true]') || each.disabled) continue;
    if (![...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const layers = [];
    for (let up = each; up; up = up.parentElement) layers.unshift(getComputedStyle(up).backgroundColor);
    const below = over(layers), ink = over([...layers, getComputedStyle(each).color]);
    const [a, b] = [light(below), light(ink)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), each.className + ' ' + each.textContent.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("fragment", ["overview", "sample=trace-0011", "sample=with-figure"])
def test_all_text_stands_out_from_what_is_behind_it(watched: Watched, made: Made, scheme: str, fragment: str) -> None:
    watched.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page = watched.open(made.url(fragment))
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 30
    assert found[0][0] >= 4.5, found[:3]
    page.emulate_media(color_scheme="light")


def test_the_keyboard_is_enough(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("overview"))
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("number 12")
    expect(page.locator("#count")).not_to_have_text(f"{NUM_SHOWN} of {NUM_SHOWN} traces")
    page.keyboard.press("Enter")
    found = listed(page)
    expect(page.locator("#trace-list a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#trace-name")).to_have_text(found[0])
    page.keyboard.press("j")
    expect(page.locator("#trace-name")).to_have_text(found[1])
    page.keyboard.press("ArrowDown")
    expect(page.locator("#trace-name")).to_have_text(found[2])
    page.keyboard.press("k")
    expect(page.locator("#trace-name")).to_have_text(found[1])
    assert page.locator('#trace-list [aria-current="true"] .id').inner_text() == found[1]
    page.keyboard.press("Escape")
    assert page.url.endswith("#traces")
    page.keyboard.press("2")
    expect(page.locator("#view-values")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_focus_can_be_seen(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("traces"))
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_everything_has_a_role_and_a_name(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("sample=with-figure"))
    assert page.get_by_role("banner").count() == 1
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("navigation", name="Parts of the report").count() == 1
    assert page.get_by_role("search").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, a, img, [role=img], [role=region]')]
        .filter((each) => each.checkVisibility() && !(each.textContent.trim() || each.ariaLabel || each.alt
          || each.labels?.length)).map((each) => each.outerHTML)"""
    )
    assert nameless == []
    for link in page.locator("#views a").all():
        assert link.get_attribute("href", timeout=1000)
    assert page.locator('#views [aria-current="page"]').inner_text() == "Traces"


def test_it_prints_every_part_without_its_controls(watched: Watched, made: Made) -> None:
    page = watched.open(made.url("overview"))
    page.emulate_media(media="print")
    for section in SECTIONS[:-1]:
        expect(page.locator(f"#view-{section}")).to_be_visible()
    expect(page.locator("#views")).to_be_hidden()
    expect(page.locator("#theme-button")).to_be_hidden()


ON_PAPER = """() => { window.addEventListener('beforeprint', () => { window.onPaper = {
  ink: getComputedStyle(document.body).color,
  plots: [...document.querySelectorAll('.plot')].map((place) => {
    const drawn = place.querySelector('svg.main-svg, table.matrix')?.getBoundingClientRect();
    return [place.dataset.figure, drawn?.width ?? 0, drawn?.height ?? 0, place.layout?.font.color ?? null]; }) }; });
}"""


def test_a_pdf_has_every_plot_in_light_colours_as_wide_as_the_paper(browser: Browser, made: Made) -> None:
    """Also those of parts that were never on the screen; afterwards the screen is as it was."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="dark")
    page = context.new_page()
    page.goto(made.url("values"))
    plot = page.locator(".plot").first
    expect(plot).to_have_attribute("data-drawn", "true")
    before = plot.evaluate("place => [place._fullLayout.width, place.layout.font.color]")
    page.evaluate(ON_PAPER)
    assert page.pdf(format="A4", print_background=True).startswith(b"%PDF")
    paper = page.evaluate("window.onPaper")
    assert len(paper["plots"]) == page.locator(".plot").count() > 20
    for name, width, height, ink in paper["plots"]:
        assert 0 < width <= 688, name
        assert height > 40, name
        assert ink in (None, "#5a616b"), name
    assert paper["ink"] == "rgb(29, 33, 38)"
    assert plot.evaluate("place => [place._fullLayout.width, place.layout.font.color]") == before
    context.close()


WORDS = """() => [...document.querySelectorAll('.view:not([hidden]) .plot[data-drawn]')].flatMap((place) => {
  const frame = place.querySelector('svg.main-svg')?.getBoundingClientRect();
  if (!frame) return [];
  const kinds = ['.xtitle', '.ytitle', '.y2title', '.xtick text', '.ytick text', '.y2tick text', '.legendtext',
    '.annotation-text', '.bartext'];
  const boxes = [...place.querySelectorAll(kinds.join())].filter((each) => each.textContent.trim())
    .map((each) => [each.textContent, each.getBoundingClientRect()]);
  const wrong = [];
  for (const [i, [words, box]] of boxes.entries()) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
      || box.bottom > frame.bottom + 1) wrong.push([place.dataset.figure, words, 'is cut off']);
    for (const [others, other] of boxes.slice(i + 1))
      if (Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1.5
        && Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 1.5)
        wrong.push([place.dataset.figure, words, others]);
  }
  return wrong;
})"""


def check_words(page: Page, made: Made, width: int) -> None:
    """In every part all words of plots are whole and apart, and the part is as wide as the screen."""
    for section in SECTIONS:
        page.goto(made.url(section))
        page.evaluate("document.querySelectorAll('.view:not([hidden]) .plot').forEach(drawPlot)")
        assert page.locator(".view:not([hidden]) .plot").count() == page.locator("[data-drawn]:visible").count()
        assert page.evaluate(WORDS) == [], section
        assert page.evaluate("document.documentElement.scrollWidth") <= width, section


def test_words_in_plots_are_whole_and_apart(watched: Watched, made: Made) -> None:
    check_words(watched.page, made, 1280)


CLIPPED = """place => [...place.querySelectorAll('td')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
  .length"""


def check_map(page: Page, made: Made) -> None:
    """A map's numbers can be read, and its names stay while the numbers are scrolled."""
    page.goto(made.url("settings"))
    place = page.locator('[data-figure="figure-setting-rank-correlation"]')
    expect(place).to_have_attribute("data-drawn", "true")
    cell = place.locator("tbody td").nth(1)
    number = json.loads(page.locator("#figure-setting-rank-correlation").text_content() or "")["data"][0]["z"][0][1]
    assert float(cell.inner_text()) == pytest.approx(number, abs=0.006)
    assert cell.evaluate("each => parseFloat(getComputedStyle(each).fontSize)") >= 11
    assert place.evaluate(CLIPPED) == 0
    place.evaluate("each => each.scrollTo(each.scrollWidth, 0)")
    name, frame = place.locator("tbody th").first.bounding_box(), place.bounding_box()
    assert name is not None
    assert frame is not None
    assert name["x"] >= frame["x"] - 1


def test_a_narrow_screen_shows_the_list_or_the_trace(browser: Browser, made: Made) -> None:
    context = browser.new_context(viewport={"width": 375, "height": 700}, color_scheme="dark")
    page = context.new_page()
    check_words(page, made, 375)
    check_map(page, made)
    page.goto(made.url("traces"))
    expect(page.locator("#trace")).to_be_hidden()
    page.locator("#trace-list a").first.click()
    expect(page.locator("#trace")).to_be_visible()
    expect(page.locator("#trace-list")).to_be_hidden()
    page.get_by_role("button", name="All traces").click()
    expect(page.locator("#trace-list")).to_be_visible()
    page.goto(made.url("sample=copy-of-7"))
    page.get_by_role("button", name="Side by side").click()
    widths = [column.evaluate("each => each.getBoundingClientRect().width") for column in page.locator(".column").all()]
    assert all(200 < width < 375 for width in widths), "one column fits on the screen; the others are scrolled to"
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    context.close()


# ---------------------------------------------------------------- many


def test_five_thousand_traces_are_parsed_only_as_they_are_read(tmp_path: Path, browser: Browser) -> None:
    store = make_store(tmp_path, 5200, max_steps=2, hostile=False)
    out = tmp_path / "report.html"
    written = report(store, out, ReportRequest())
    assert (written.num_traces, written.num_samples) == (5000, 5201)
    page = browser.new_page()
    watched = watch(page)
    watched.open(f"file://{out}")
    parsed = "[...documents.keys()].filter(name => /^(traces|figure)-/.test(name)).length"
    assert page.evaluate(parsed) == 0
    assert page.evaluate("typeof Plotly") == "undefined"  # not before there is something to draw
    page.goto(f"file://{out}#traces")
    expect(page.locator("#count")).to_have_text("5,000 of 5,000 traces")
    expect(page.locator("#shown-words")).to_contain_text("5,000 of 5,201 samples")
    assert page.evaluate(parsed) == 1
    assert page.locator("#trace-list a").count() == 50
    page.locator("#search").fill("number 1234.")
    expect(page.locator("#trace-list .id").first).to_have_text("trace-1234", timeout=10_000)
    watched.check()
    page.close()
