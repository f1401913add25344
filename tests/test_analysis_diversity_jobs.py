"""Diverse subsets of a real store: more coverage than the best by value, at a stated loss, for the same budget."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from grace_store.base.errors import DataError, ResumeMismatch, SettingError
from grace_store.cli import main
from grace_store.curate.compare import compare
from grace_store.curate.diversity import DiversityRequest, diversity
from grace_store.curate.duplicates import DuplicatesRequest, duplicates
from grace_store.curate.export import ExportRequest, export
from grace_store.curate.score import ScoreRequest, score
from grace_store.curate.select import RankRequest, rank_samples, select
from grace_store.curate.trade_curve import TradeSpec
from grace_store.likeness.clusters import cluster_vectors
from grace_store.read.descriptors import DescriptorSpec, describe_samples
from grace_store.store.opened import Store
from grace_store.values.diversity_spec import METHODS, DiversitySpec
from tests.planted_stores import planted_store
from tests.scored_stores import known_store

ANSWER = "answer"
NUM_CLUSTERS = 12
NUM_SAMPLES = 240


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Twelve clusters of twenty, the best 0.2 by value all lying in three of them; and a table of scores."""
    folder = tmp_path_factory.mktemp("planted")
    found = planted_store(folder)
    score(found.store, out=folder / "scores.parquet")
    return folder, found


def spec(method: str, **changes: object) -> DiversitySpec:
    usual = {"similarity": 0.9} if method == "dedup" else {}
    return DiversitySpec.parse(method=method, descriptor=ANSWER, **usual | changes)


def num_touched(planted, subset) -> int:
    return len(set(planted[1].cluster[subset.row].tolist()))


# ---------------------------------------------------------------- the planted set


@pytest.mark.parametrize(
    ("settings", "at_least", "value_lost"),
    [
        (spec("dedup"), 12, 0.30),
        (spec("clusters"), 12, 0.30),
        (spec("facility"), 12, 0.10),
        (spec("facility", weight=0.5), 12, 0.20),
        (spec("mmr"), 6, 0.10),
        (spec("mmr", weight=0.8), 12, 0.32),
    ],
    ids=lambda value: value.method if isinstance(value, DiversitySpec) else str(value),
)
def test_diversity_touches_more_clusters_for_the_same_budget_at_a_stated_loss(planted, settings, at_least, value_lost):
    folder, found = planted
    plain = select(folder / "scores.parquet", ratio="0.2")
    assert num_touched(planted, plain) == 3
    diverse = select(folder / "scores.parquet", RankRequest(diversity=settings), ratio="0.2")
    assert len(diverse) == len(plain) == 48
    assert len(set(diverse.row.tolist())) == 48
    assert num_touched(planted, diverse) >= at_least
    loss = found.value[plain.row].mean() - found.value[diverse.row].mean()
    assert 0 < loss <= value_lost
    most, mean = found.value[plain.row].mean(), found.value[diverse.row].mean()
    assert f"mean value {mean:.4f}, {most:.4f} for the best 48 by value alone" in diverse.notes[0]


@pytest.mark.parametrize("method", METHODS)
def test_every_budget_is_exact_and_smaller_subsets_lie_within_larger_ones(planted, method):
    ranking = rank_samples(planted[0] / "scores.parquet", RankRequest(diversity=spec(method)))
    before: set[int] = set()
    for count in (1, 2, 7, 11, 12, 13, 48, 100, 239, 240):
        subset = ranking.take(count=count)
        assert len(subset) == count
        assert before < set(subset.row.tolist())
        before = set(subset.row.tolist())
    assert len(ranking.take(ratio="0.07")) == 17


def test_dedup_keeps_the_best_of_each_group_and_fills_up_by_value(planted):
    folder, found = planted
    ranking = rank_samples(folder / "scores.parquet", RankRequest(diversity=spec("dedup")))
    members = [np.flatnonzero(found.cluster == each) for each in range(NUM_CLUSTERS)]
    best = [int(mine[found.value[mine].argmax()]) for mine in members]
    assert set(ranking.take(count=12).row.tolist()) == set(best)
    assert len(ranking.take(count=12).notes) == 1
    subset = ranking.take(count=15)
    left = [place for place in np.argsort(-found.value).tolist() if place not in best]
    assert set(subset.row.tolist()) == {*best, *left[:3]}
    told = "12 samples are left without near-duplicates, so 3 of those fill the budget, the best first"
    assert subset.notes[1] == told


def test_a_table_of_duplicates_does_as_well_as_a_search(planted, tmp_path):
    folder, found = planted
    table = duplicates(found.store, DuplicatesRequest(descriptor=ANSWER, threshold=0.95, floor=0.9))
    table.write(tmp_path / "duplicates.parquet")
    one = select(folder / "scores.parquet", RankRequest(diversity=spec("dedup", similarity=0.95)))
    other = select(
        folder / "scores.parquet", RankRequest(diversity="dedup", duplicates=tmp_path / "duplicates.parquet")
    )
    assert one.row.tolist() == other.row.tolist()
    assert other.spec["diversity"]["similarity"] == 0.95
    loose = DiversitySpec(method="dedup", similarity=0.9)
    third = select(folder / "scores.parquet", RankRequest(diversity=loose, duplicates=tmp_path / "duplicates.parquet"))
    assert third.row.tolist() == select(folder / "scores.parquet", RankRequest(diversity=spec("dedup"))).row.tolist()
    few = duplicates(found.store, DuplicatesRequest(descriptor=ANSWER, subset=np.arange(100)))
    few.write(tmp_path / "few.parquet")
    with pytest.raises(DataError, match=r"few\.parquet lacks 140 of the samples that have a value"):
        select(folder / "scores.parquet", RankRequest(diversity="dedup", duplicates=tmp_path / "few.parquet"))
    with pytest.raises(SettingError, match="leave --signal and --descriptor out"):
        select(folder / "scores.parquet", RankRequest(diversity=spec("dedup"), duplicates=tmp_path / "few.parquet"))
    with pytest.raises(SettingError, match="for diversity by dedup; mmr would ignore it"):
        select(folder / "scores.parquet", RankRequest(diversity="mmr", duplicates=tmp_path / "few.parquet"))
    elsewhere = known_store(tmp_path).store
    score(elsewhere, out=tmp_path / "other.parquet")
    with pytest.raises(DataError, match="was made from another plan than the scores"):
        select(tmp_path / "other.parquet", RankRequest(diversity="dedup", duplicates=tmp_path / "few.parquet"))


def test_clusters_share_the_budget_and_the_best_come_first(planted):
    folder, found = planted
    subset = select(folder / "scores.parquet", RankRequest(diversity=spec("clusters", num_clusters=10)), ratio="0.2")
    label = cluster_vectors(describe_samples(found.store, descriptor=ANSWER).vector, 10).label
    size, counts = np.bincount(label), np.bincount(label[subset.row], minlength=10)
    assert counts.max() - counts[counts < size].min() <= 1
    for each in range(10):
        mine = np.flatnonzero(label == each)
        best = mine[np.argsort(-found.value[mine])][: counts[each]]
        assert set(best.tolist()) <= set(subset.row.tolist())
    half = select(folder / "scores.parquet", RankRequest(diversity=spec("clusters", weight=0.5)), ratio="0.2")
    assert found.value[subset.row].mean() < found.value[half.row].mean()


@pytest.mark.parametrize("method", ["clusters", "facility", "mmr"])
def test_without_weight_the_subset_is_the_best_by_value(planted, method):
    path = planted[0] / "scores.parquet"
    subset = select(path, RankRequest(diversity=spec(method, weight=0)))
    assert subset.row.tolist() == select(path).row.tolist()


def test_what_made_a_subset_is_kept_and_compared(planted, tmp_path):
    folder, _ = planted
    subset = select(folder / "scores.parquet", RankRequest(diversity=spec("mmr", weight=0.8)))
    said = {"method": "mmr", "weight": 0.8, "seed": 0, "signal": "base", "descriptor": "answer"}
    assert subset.spec["diversity"] == said
    exported = export(subset, tmp_path / "diverse.txt", ExportRequest(as_format="ids"))
    assert exported.notes == list(subset.notes)
    assert json.loads((tmp_path / "diverse.txt.spec.json").read_text())["spec"]["diversity"] == said
    export(select(folder / "scores.parquet"), tmp_path / "plain.txt", ExportRequest(as_format="ids"))
    found = compare(tmp_path / "plain.txt", tmp_path / "diverse.txt")
    assert found.notes == ["diverse.txt was chosen with diversity by mmr; ranks are those by value alone"]
    assert {change.why for change in found.left} == {"diversity by mmr"}
    assert {change.why for change in found.entered} == {"the other keeps 48"}


def test_the_usual_descriptor_is_the_steps_and_weights_come_from_the_table(planted):
    path = planted[0] / "scores.parquet"
    assert select(path, RankRequest(diversity="mmr")).spec["diversity"]["descriptor"] == "steps"
    weighted = select(path, RankRequest(diversity=DiversitySpec(method="mmr", descriptor="weighted")))
    # With one step each, its weight changes nothing.
    assert weighted.row.tolist() == select(path, RankRequest(diversity="mmr")).row.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"diversity": "mmr", "by": "num_steps"}, "strata and diversity are two ways to order samples"),
        ({"diversity": "mmr", "threshold": 0.5}, "a threshold leaves no choice to diversity"),
        ({"diversity": "best"}, "method 'best': input should be"),
        ({"diversity": DiversitySpec(method="mmr", descriptor="colour")}, "descriptor 'colour' is none of answer"),
    ],
)
def test_selections_without_meaning_are_refused(planted, settings, message):
    with pytest.raises(SettingError, match=message):
        select(planted[0] / "scores.parquet", RankRequest(**settings))


def test_scores_of_several_signals_need_a_signal_to_be_named(tmp_path):
    known = known_store(tmp_path, ("early", "late"), set_aside={"late": [2, 5]})
    both = score(known.store, ScoreRequest(signals=["early", "late"]))
    with pytest.raises(SettingError, match="scored from early, late signals: say with --signal"):
        select(both, RankRequest(diversity="mmr"))
    assert len(select(both, RankRequest(diversity=DiversitySpec(method="mmr", signal="late")), count=4)) == 4
    early = score(known.store, ScoreRequest(signals="early"))
    with pytest.raises(DataError, match="2 of the 13 samples of the table have no vector in signal 'late'"):
        select(early, RankRequest(diversity=DiversitySpec(method="mmr", signal="late")))


# ---------------------------------------------------------------- measures


def test_measures_tell_a_narrow_subset_from_a_wide_one(planted, tmp_path):
    folder, found = planted
    paths = []
    for name, diversity in (("plain", None), ("wide", spec("clusters"))):
        paths.append(tmp_path / f"{name}.txt")
        export(
            select(folder / "scores.parquet", RankRequest(diversity=diversity)),
            paths[-1],
            ExportRequest(as_format="ids"),
        )
    said = diversity(
        found.store, DiversityRequest(subsets=paths, scores=folder / "scores.parquet", ratio=["0.1"], descriptor=ANSWER)
    )
    plain, wide, best = said.subsets
    assert [plain.num_samples, wide.num_samples, best.num_samples, said.pool.num_samples] == [48, 48, 24, 240]
    assert said.pool.share_touched == 1
    assert said.pool.random is None
    assert said.pool.num_touched == len(said.clusters)
    assert plain.share_touched < plain.random.share_touched.low <= wide.share_touched
    assert plain.vendi < plain.random.vendi.low < wide.vendi
    assert plain.entropy < plain.random.entropy.low
    assert plain.random == wide.random  # one size, the same random subsets
    assert plain.random.share_touched.mean == pytest.approx(plain.random.expected_share_touched, abs=0.02)
    assert plain.mean_value == pytest.approx(np.sort(found.value)[-48:].mean(), abs=1e-6)
    assert best.name == "best 0.1"


def test_clusters_add_up_and_have_their_values(planted):
    folder, found = planted
    said = diversity(
        found.store, DiversityRequest(scores=folder / "scores.parquet", descriptor=ANSWER, num_clusters=40)
    )
    assert sum(each.num_samples for each in said.clusters) == NUM_SAMPLES
    assert sum(each.num_chosen[0] for each in said.clusters) == 48
    total = sum(each.num_samples * each.mean_value for each in said.clusters)
    assert total / NUM_SAMPLES == pytest.approx(found.value.mean(), abs=1e-6)
    for each in said.clusters:
        planted_in = found.cluster[int(each.example.removeprefix("s"))]
        assert each.mean_value == pytest.approx(0.91 - 0.05 * planted_in, abs=0.011)
        assert each.representation[0] == pytest.approx(each.num_chosen[0] / each.num_samples / 0.2)
    over, under = said.represented(0, 3)
    assert len(over) == len(under) == 3
    assert min(each.mean_value for each in over) > max(each.mean_value for each in under)
    assert max(each.num_chosen[0] for each in under) == 0


def test_measures_are_the_same_whatever_the_threads_and_subsets_may_be_objects(planted):
    folder, found = planted
    subset = select(folder / "scores.parquet", RankRequest(diversity=spec("facility")))
    one, two = (
        diversity(
            found.store.location, DiversityRequest(subsets=[subset], descriptor=ANSWER, seed=4), threads=threads
        ).to_dict()
        for threads in (1, 3)
    )
    assert one == two
    other = diversity(found.store, DiversityRequest(subsets=[subset], descriptor=ANSWER, seed=5)).to_dict()
    assert other["subsets"][0]["random"] != one["subsets"][0]["random"]
    assert one["subsets"][0]["name"] == "subset 1"


def test_samples_that_point_nowhere_are_counted_apart(tmp_path):
    found = planted_store(tmp_path, per_cluster=4, zero=(0, 7))
    scores = score(found.store)
    said = diversity(found.store, DiversityRequest(scores=scores, ratio=["1", "0.5"], descriptor=ANSWER))
    assert said.pool.num_without_direction == 2
    assert sum(each.num_samples for each in said.clusters) == 46
    for method in METHODS:
        assert len(select(scores, RankRequest(diversity=spec(method)), ratio="0.5")) == 24
    only = replace(scores, table=scores.table.take([0, 7]))
    said = diversity(found.store, DiversityRequest(subsets=[select(only, ratio=1)], descriptor=ANSWER, num_random=3))
    assert (said.subsets[0].num_touched, said.subsets[0].num_without_direction) == (0, 2)
    assert json.loads(json.dumps(said.to_dict(), allow_nan=False))["subsets"][0]["vendi"] is None


def test_what_cannot_be_measured_says_why(planted, tmp_path):
    folder, found = planted
    with pytest.raises(SettingError, match="a ratio or a curve needs values: give --scores"):
        diversity(found.store, DiversityRequest(ratio=["0.2"]))
    with pytest.raises(SettingError, match="0 random subsets are too few"):
        diversity(found.store, DiversityRequest(num_random=0))
    with pytest.raises(SettingError, match="at least one weight"):
        TradeSpec.parse(weights=())
    nowhere = planted_store(tmp_path, num_clusters=2, per_cluster=2, zero=(0, 1, 2, 3))
    with pytest.raises(DataError, match=r"No sample of .* has a direction"):
        diversity(nowhere.store, DiversityRequest(descriptor=ANSWER))
    other = known_store(tmp_path).store
    with pytest.raises(ResumeMismatch, match="made from another plan than the one now in"):
        diversity(other, DiversityRequest(scores=folder / "scores.parquet"))


# ---------------------------------------------------------------- the curve


def test_the_curve_goes_from_value_to_coverage(planted):
    folder, found = planted
    said = diversity(found.store, DiversityRequest(scores=folder / "scores.parquet", descriptor=ANSWER, curve=TradeSpec(weights=(1.0, 0.0, 0.3)), num_clusters=NUM_CLUSTERS)).curve  # fmt: skip
    assert [(point.method, point.weight) for point in said.points] == [
        (method, weight) for method in ("clusters", "facility", "mmr") for weight in (0.0, 0.3, 1.0)
    ]
    for point in said.points:
        subset = select(folder / "scores.parquet", RankRequest(diversity=spec(point.method, weight=point.weight)))
        assert point.mean_value == pytest.approx(found.value[subset.row].mean(), abs=1e-6)
        if point.weight == 0:
            assert (point.value_lost, point.share_touched) == (0, said.best.share_touched)
        if point.weight == 1:
            assert point.share_touched > said.best.share_touched
            assert point.value_lost > 0.2
    assert said.random.mean_value == pytest.approx(found.value.mean(), abs=1e-6)
    picture = ElementTree.fromstring(said.picture("note"))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 2 * (9 + 2)


# ---------------------------------------------------------------- as users type it


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + result.stderr
    return result


def test_select_measure_and_draw(planted, tmp_path):
    folder, found = planted
    common = ["--descriptor", "answer"]
    run("select", folder / "scores.parquet", "--out", tmp_path / "plain.txt", "--as", "ids")
    for method in METHODS:
        options = ["--similarity", 0.9] if method == "dedup" else []
        out = ["--out", tmp_path / f"{method}.txt", "--as", "ids"]
        shown = run("select", folder / "scores.parquet", "--diversity", method, *common, *options, *out).stdout
        assert f"{method}.txt: 48 of 240 samples" in shown
        assert f"diversity by {method}: mean value" in shown
        assert len((tmp_path / f"{method}.txt").read_text().splitlines()) == 48
    subsets = [word for name in ("plain", *METHODS) for word in ("--subset", tmp_path / f"{name}.txt")]
    shown = run("diversity", found.store.location, *subsets, *common).stdout
    assert "240 samples in 30 clusters" in shown
    assert "at random" in shown
    arguments = ("diversity", found.store.location, "--scores", folder / "scores.parquet", *common, "--out",
                 tmp_path / "d.json", "--curve", tmp_path / "c.svg", "--method", "mmr", "--weight", 0.5)  # fmt: skip
    assert "What diversity costs, for 48 samples" in run(*arguments).stdout
    said = json.loads(run(*arguments, "--json").stdout)
    assert said == json.loads((tmp_path / "d.json").read_text())
    assert [point["weight"] for point in said["curve"]["points"]] == [0.5]
    assert said["descriptor"] == "answer"
    ElementTree.parse(tmp_path / "c.svg")


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_curve_over_samples_that_are_alike_is_drawn_with_nothing_to_trade(tmp_path, num_samples):
    found = planted_store(tmp_path, num_clusters=1, per_cluster=num_samples, noise=0)
    score(found.store, out=tmp_path / "scores.parquet")
    shown = run("diversity", found.store.location, "--scores", tmp_path / "scores.parquet", "--curve",
                tmp_path / "c.svg", "--descriptor", "answer", "--clusters", 1).stdout  # fmt: skip
    assert "What diversity costs, for 1 sample " in shown
    assert "there is nothing to trade value for" in shown
    texts = [each.text for each in ElementTree.parse(tmp_path / "c.svg").iter() if each.tag.endswith("text")]
    assert texts.count("nothing to trade") == 1  # evenness has no meaning; the share touched is drawn


def test_one_table_of_scores_is_taken_and_others_are_subsets(planted):
    folder, found = planted
    table = folder / "scores.parquet"
    refused = run("diversity", found.store.location, "--scores", table, "--scores", table, exit_code=2)
    assert "--scores is given 2 times and takes one value" in refused.stderr
    both = run("diversity", found.store.location, "--scores", table, "--subset", table, "--ratio", "0.1", "--json")
    assert [each["num_samples"] for each in json.loads(both.stdout)["subsets"]] == [48, 24]


def test_a_table_of_duplicates_is_never_written_over(planted, tmp_path):
    table = tmp_path / "duplicates.parquet"
    duplicates(planted[1].store, DuplicatesRequest(descriptor=ANSWER)).write(table)
    before = table.read_bytes()
    arguments = ("select", planted[0] / "scores.parquet", "--diversity", "dedup", "--duplicates", table, "--as", "ids")
    assert "the table of duplicates" in run(*arguments, "--out", table, exit_code=1).stderr
    assert table.read_bytes() == before
    run(*arguments, "--out", tmp_path / "s.txt")


def test_several_ratios_at_once_are_nested_files(planted, tmp_path):
    ratios = ["--ratio", 0.1, "--ratio", 0.3]
    out = ["--out", tmp_path / "s.txt", "--as", "ids", "--json"]
    said = json.loads(run("select", planted[0] / "scores.parquet", "--diversity", "facility", *ratios, *out).stdout)
    assert [each["num_samples"] for each in said] == [24, 72]
    small, large = (set((tmp_path / f"s-{ratio}.txt").read_text().splitlines()) for ratio in (0.1, 0.3))
    assert small < large


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("select {scores} --out {out} --diversity best", 2, "'best' is not one of"),
        ("select {scores} --out {out} --weight 0.3", 1, "--weight is for a diverse selection: give --diversity, too"),
        ("select {scores} --out {out} --clusters 3", 1, "--clusters is for a diverse selection: give --diversity, too"),
        ("select {scores} --out {out} --diversity mmr --weight 3", 1, "weight 3 is not between 0 (value alone)"),
        ("select {scores} --out {out} --diversity mmr --clusters 3", 1, "--clusters is for diversity by clusters"),
        ("select {scores} --out {out} --diversity mmr --by num_steps", 1, "give --by or --diversity"),
        ("select {scores} --out {out} --diversity mmr --signal late", 1, "has no signal 'late'"),
        (
            "select {scores} --out {out} --diversity dedup --duplicates {scores}",
            1,
            "is not a table that `grace-store",
        ),
        ("diversity {scores}", 1, "is not a grace-store store"),
        ("diversity {store} --weight 0.5", 1, "--method and --weight are for the curve: give --curve, too"),
        ("diversity {store} --curve {out}", 1, "a ratio or a curve needs values: give --scores"),
        ("diversity {store} --ratio 0.2", 1, "give --scores"),
        ("diversity {store} --scores {scores} --curve {out} --out {out}", 1, "would be written twice"),
        ("diversity {store} --scores {scores} --out {scores}", 1, "would replace or change"),
        ("diversity {store} --subset {out}", 1, "does not exist"),
        ("diversity {store} --clusters 0", 2, "0 is not in the range"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_sentence(planted, tmp_path, arguments, code, message):
    folder, found = planted
    places = {"scores": folder / "scores.parquet", "store": found.store.location, "out": tmp_path / "out"}
    result = run(*(word.format(**places) for word in arguments.split()), exit_code=code)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_an_example():
    shown = run("diversity", "--help").stdout
    assert "grace-store diversity traces.zarr" in shown
    assert "--json" in shown


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from grace_store.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split("|"))
    except SystemExit as end:
        print("exit", end.code, file=sys.stderr)
"""


def run_without(absent: str, *commands: tuple[object, ...]) -> str:
    """Run commands in one process that cannot import some packages, and return what it said on stderr."""
    lines = "\n".join("|".join(map(str, command)) for command in commands)
    command = [sys.executable, "-c", WITHOUT, absent]
    return subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True).stderr


def test_it_runs_without_torch_and_says_what_is_missing_without_faiss(planted, tmp_path):
    folder, found = planted
    out = ["--out", tmp_path / "s.txt", "--as", "ids"]
    select = ("select", folder / "scores.parquet", "--diversity", "facility", *out)
    measure = ("diversity", found.store.location, "--scores", folder / "scores.parquet", "--json")
    said = run_without("torch,transformers,peft,safetensors,PIL,plotly,pandas", select, measure)
    assert [line for line in said.splitlines() if line.startswith("exit")] == ["exit 0", "exit 0"], said
    plain = ("select", folder / "scores.parquet", *out)
    said = run_without("faiss", select, measure, plain)
    assert [line for line in said.splitlines() if line.startswith("exit")] == ["exit 1", "exit 1", "exit 0"]
    assert said.count("pip install 'grace-store[faiss]'") == 2


def test_a_store_that_moved_is_found_where_it_is_said_to_be(planted, tmp_path):
    folder, found = planted
    moved = Store.open(shutil.copytree(found.store.location, tmp_path / "moved.zarr"))
    table = replace(score(found.store), made_by=score(found.store).made_by | {"store": "gone.zarr"})
    subset = select(table, RankRequest(diversity=spec("facility"), store=moved.location))
    assert (
        subset.row.tolist() == select(folder / "scores.parquet", RankRequest(diversity=spec("facility"))).row.tolist()
    )
    assert math.isfinite(subset.threshold)
