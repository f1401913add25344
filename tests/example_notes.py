"""Documents of every kind: as small as they can be, and with every field they may have."""

from __future__ import annotations

import math

from grace_store.base.documents import Document, SampleRef
from grace_store.base.finding import (
    Column,
    Estimate,
    Finding,
    LabelsFile,
    LabelsNote,
    PoolNote,
    SignalNote,
    Table,
    WhereNote,
)
from grace_store.base.settings import ModelIdentity
from grace_store.base.training_settings import TrainingSpec, WarmupSpec
from grace_store.choose.selection import Selection, SubsetNote
from grace_store.likeness.recall import Recall
from grace_store.model.load.adapter_folder import CheckpointState
from grace_store.scoring.notes import (
    AgainstNote,
    AgainstSpec,
    BenchmarkNote,
    CustomHistory,
    DuplicatesNote,
    GroupsNote,
    GroupSpec,
    LearnedNote,
    NamedSignal,
    ScoredSignal,
    ScoresNote,
    SearchNote,
    Subtask,
    TargetsNote,
    WeightsNote,
)
from grace_store.scoring.sweep_table import SweepNote
from grace_store.study.trial_documents import (
    TrialItem,
    TrialPlan,
    TrialRun,
    TrialSpec,
    TrialSubset,
)
from grace_store.train.recipe import LeftOut, Recipe, WarmupDone, WarmupSubset
from grace_store.values.diverse_orders import DiversitySpec
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method import InfluenceSpec, ScoreSpec
from grace_store.values.weightings import WeightsSpec

MADE_FROM = {"store": "s.zarr", "plan_sha256": "0" * 64, "num_units": 2, "partial": False}
WHERE = WhereNote(sql="is_correct and \"meta.level\" in ('a', 'b')", num_samples=10, num_kept=4)
LABELS = LabelsFile(
    path="labels.csv",
    sha256="6" * 64,
    num_rows=9,
    num_samples=10,
    num_matched=8,
    unknown_id="t99",
    unlabelled_id="t3",
)
SIGNAL = NamedSignal(name="base", sha256="1" * 64, num_units=2)
SCORES = ScoresNote(
    **MADE_FROM, spec=ScoreSpec(), signals={"base": ScoredSignal(sha256="1" * 64, num_units=2, weight=1.0)}
)
TARGETS = TargetsNote(
    store="t.zarr",
    plan_sha256="2" * 64,
    signals={"base": NamedSignal(name="plain", sha256="3" * 64, num_units=1)},
    subtasks_by="about.subject",
    subtasks=(Subtask(name="sums", num_samples=4), Subtask(name="signs", num_samples=3)),
    num_set_aside=1,
    num_zero=0,
    data=("moved.jsonl",),
)
INFLUENCE = SCORES.model_copy(
    update={
        "spec": InfluenceSpec(method="cadc", join_cosine=0.25),
        "checkpoints": ("base",),
        "weights_from": "equal",
        "targets": TARGETS,
        "influence_of": ("sums+signs",),
        "notes": ("1 record of the target set is set aside and does not count",),
        "label": "reconstruction",
        "capabilities": (("sums", "signs"),),
        "subtask_cosine": ((1.0, 0.5), (0.5, 1.0)),
        "thresholds": (0.25, math.nan),
        "where": WHERE,
        "labels": LABELS,
        "groups": GroupsNote(by="problem.id", within="standardised", num_groups=5, num_compared=3, num_alone=2),
        "custom_history": CustomHistory(sha256="4" * 64, weights=((0.0, 0.0), (1.0, 0.0)), function="mine"),
        "scales": ((0.5, 0.25), (-1.0, 0.5)),
        "learned": LearnedNote(
            labels=LabelsNote(field="verdict = 'good'", says="traces", kind="kind", question="problem.id"),
            of="traces",
            num_right=30,
            num_wrong=20,
            num_questions=25,
            weights={"grace": 0.25, "loss:lowest": 0.5},
            area=Estimate(value=0.8, low=0.7, high=0.9, num=600, p_value=0.001),
            area_within=Estimate(value=0.75),
            single_area=Estimate(value=0.7, low=0.6, high=0.8, num=600),
        ),
    }
)
DUPLICATES = DuplicatesNote(
    **MADE_FROM,
    signal=SIGNAL,
    descriptor="steps",
    spec=GroupSpec(threshold=0.95, floor=0.9, keep="earliest"),
    num_samples=10,
    num_zero=1,
    exact_by="text",
    search=SearchNote(index="flat", seed=0, num_distinct=9),
)
WHOLE_DUPLICATES = DUPLICATES.model_copy(
    update={
        "dimension": 16,
        "seed": 3,
        "scores": SCORES,
        "search": SearchNote(
            index="ivf-sq8",
            seed=0,
            num_distinct=9,
            recall=Recall(num_queries=5, num_true=4, num_found=4, largest_error=0.0, share=1.0),
            num_cells=4,
            num_probed=2,
        ),
        "subset": "ids.txt",
        "where": WHERE,
        "labels": LABELS,
    }
)
BENCHMARK = BenchmarkNote(
    name="test.jsonl",
    sha256="5" * 64,
    num_items=20,
    num_set_aside=1,
    num_short=2,
    num_found=3,
    num_samples=4,
    num_templates=1,
)
AGAINST = AgainstNote(
    **MADE_FROM,
    spec=AgainstSpec(ngram=5, share=0.3, cosine=0.95),
    benchmarks=(BENCHMARK,),
    num_samples=10,
    num_contaminated=4,
)
WHOLE_AGAINST = AGAINST.model_copy(
    update={
        "benchmarks": (BENCHMARK.model_copy(update={"signal": SIGNAL}),),
        "signal": SIGNAL,
        "descriptor": "projected",
        "dimension": 16,
        "seed": 3,
        "where": WHERE,
        "labels": LABELS,
    }
)
SUBSET = SubsetNote(
    spec=Selection(ratio="0.2"),
    as_format="source",
    num_samples=2,
    num_with_value=10,
    smallest_value=0.5,
    scores=SCORES,
    conclusion="2 of 10 samples are chosen.",
    rows=(3, 7),
)
WEIGHTS = WeightsNote(
    **MADE_FROM,
    spec=WeightsSpec(method="drop", drop_share=0.25, scores=ScoreSpec(alpha=0.5)),
    signals={"base": ScoredSignal(sha256="1" * 64, num_units=2, weight=1.0)},
    where=WHERE,
    labels=LABELS,
)
WHOLE_SUBSET = SUBSET.model_copy(
    update={
        "contaminated_rows": (1, 4),
        "sha256": "5" * 64,
        "spec": Selection(
            count=2,
            threshold=0.5,
            by="num_steps",
            exclude_flagged=("repeated_steps",),
            exclude_contaminated=WHOLE_AGAINST,
            control=("step_length", "num_steps"),
            diversity=DiversitySpec(
                method="clusters",
                weight=0.5,
                balance="equal",
                num_clusters=3,
                seed=1,
                signal="base",
                descriptor="steps",
            ),
            duplicates=WHOLE_DUPLICATES,
            where=WHERE,
            per_group="0.5",
            margin=0.25,
            group_by="problem.id",
            labels=LABELS,
            right="verdict = 'good'",
        ),
        "threshold": 0.5,
        "smallest_value": math.nan,
        "scores": INFLUENCE,
        "rejected_rows": (1, 9),
        "weights": WEIGHTS,
        "scores_path": "scores.parquet",
    }
)
ESTIMATE = Estimate(value=0.5, low=0.25, high=0.75, num=10, p_value=0.125)
FINDING = Finding(
    study="stability",
    pool=PoolNote(store="s.zarr", plan_sha256="0" * 64, num_units=3),
    conclusion="Most of it survives.",
    tables={"changes": Table(columns={"change": Column(heading="change")}, rows=({"change": "signal b"},))},
)

MODEL = ModelIdentity(
    architecture="Qwen3ForCausalLM",
    hidden_size=48,
    vocab_size=400,
    config="3" * 64,
    weights="4" * 64,
    tokenizer="5" * 64,
)
WARMUP_SUBSET = WarmupSubset(num_planned=10, ratio="0.2", seed=0, samples=(SampleRef(sample_id="s0", row=0),))
CHECKPOINT = CheckpointState(
    step=2,
    num_steps=4,
    fraction="0.5",
    learning_rate=1e-4,
    mean_learning_rate=5e-5,
    loss=1.5,
    base=MODEL,
    recipe_sha256="6" * 64,
)
TRAINING = TrainingSpec(model=MODEL, rendering="template")
TRIAL_SPEC = TrialSpec(training=TRAINING)
TRIAL_PLAN = TrialPlan(
    spec=TRIAL_SPEC,
    plan_sha256="0" * 64,
    num_pool=20,
    num_held_out_samples=9,
    subsets=(
        TrialSubset(name="a.jsonl", path="a.jsonl", num_samples=4, num_trained=3, random=1, samples_sha256="8" * 64),
    ),
    held_out=(SampleRef(sample_id="s1", row=1),),
    held_out_sha256="9" * 64,
    origin={"model": "models/m", "store": "s.zarr", "images": "."},
)
TRIAL_RUN = TrialRun.sealed(
    plan_sha256=TRIAL_PLAN.fingerprint(),
    round=1,
    arm="random 1",
    seed=0,
    num_samples=3,
    num_left_out=1,
    loss=1.5,
    items=(TrialItem(sample_id="s1", num_tokens=4, loss=1.25),),
)
EXAMPLES: dict[str, Document] = {
    "scores": SCORES,
    "scores by a heuristic": SCORES.model_copy(update={"spec": ScoreSpec(measure=("random",), seed=7)}),
    "scores with all fields": INFLUENCE,
    "sweep": SweepNote(
        **MADE_FROM,
        spec=SweepSpec(about="alphas", ratio=("0.2",), grid=(Grid(alpha="0.1,0.9"),)),
        settings=("alpha=0.1", "alpha=0.9"),
        signals={"base": SignalNote(sha256="1" * 64, num_units=2)},
        where=WHERE,
        labels=LABELS,
    ),
    "weights": WEIGHTS,
    "subset": SUBSET,
    "subset with all fields": WHOLE_SUBSET,
    "duplicates": DUPLICATES,
    "duplicates with all fields": WHOLE_DUPLICATES,
    "against": AGAINST,
    "against with all fields": WHOLE_AGAINST,
    "finding": FINDING,
    "finding with all fields": FINDING.model_copy(
        update={
            "pool": FINDING.pool.model_copy(
                update={"signals": {"base": SignalNote(sha256="1" * 64, num_units=3)}, "where": WHERE, "labels": LABELS}
            ),
            "settings": {"ratio": "0.2", "score": {"alpha": 0.7}},
            "numbers": {"num_samples": 10, "by_chance": 0.1, "jaccard": ESTIMATE},
            "tables": {
                "changes": Table(
                    title="Chosen again",
                    columns={
                        "change": Column(heading="change"),
                        "jaccard": Column(heading="Jaccard", digits=2, chance=0.1),
                    },
                    rows=({"change": "signal b", "jaccard": ESTIMATE}, {"change": None, "jaccard": 0.5}),
                    about="1 is the same subset.",
                    is_drawn=True,
                )
            },
            "notes": ("A signal was left out.",),
        }
    ),
    "recipe of a warm-up": Recipe(
        spec=WarmupSpec(model=MODEL, rendering="template", checkpoints=("0.5", "1")),
        plan_sha256="7" * 64,
        subset_sha256=WARMUP_SUBSET.fingerprint(),
        origin={"model": "models/m", "store": "s.zarr", "images": "."},
    ),
    "subset of a warm-up": WARMUP_SUBSET,
    "subset of a warm-up with all fields": WARMUP_SUBSET.model_copy(
        update={
            "heldout": (SampleRef(sample_id="s1", row=1),),
            "left_out": (LeftOut(sample_id="s0", row=0, reason="too_long", detail="5000 tokens"),),
        }
    ),
    "checkpoint of a warm-up": CHECKPOINT,
    "checkpoint of a warm-up with all fields": CHECKPOINT.model_copy(update={"heldout_loss": 1.25}),
    "end of a warm-up": WarmupDone(
        recipe_sha256="6" * 64,
        num_planned=10,
        num_samples=2,
        num_left_out=0,
        num_steps=4,
        checkpoints=("checkpoint-2", "checkpoint-4"),
    ),
    "plan of a trial": TRIAL_PLAN,
    "plan of a trial with all fields": TRIAL_PLAN.model_copy(
        update={"spec": TRIAL_SPEC.model_copy(update={"generate": True})}
    ),
    "training of a trial": TRIAL_RUN,
    "training of a trial with all fields": TRIAL_RUN.model_copy(
        update={"items": (TRIAL_RUN.items[0].model_copy(update={"is_right": True}),)}
    ),
}
