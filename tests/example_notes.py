"""Documents of every kind: as small as they can be, and with every field they may have."""

from __future__ import annotations

import math

from grace_store.artifacts.judgement import JudgedItems, JudgedMeasure, Judgement, LabelsNote
from grace_store.artifacts.measures import (
    ClusterShare,
    Diversity,
    FidelityDocument,
    FidelitySample,
    RandomSubsets,
    SampleAlignments,
    SpaceFidelity,
    StabilityDocument,
    SubsetDiversity,
    TradeCurve,
    TradePoint,
)
from grace_store.artifacts.notes import (
    AgainstNote,
    AgainstSpec,
    BenchmarkNote,
    ChosenDiversity,
    CustomHistory,
    DuplicatesNote,
    GroupsNote,
    GroupSpec,
    NamedSignal,
    RecallNote,
    ScoredSignal,
    ScoresNote,
    SearchNote,
    SignalNote,
    SubsetNote,
    SubsetSpec,
    Subtask,
    SweepNote,
    TargetsNote,
    WeightsNote,
    WhereNote,
)
from grace_store.artifacts.trial_documents import (
    SubsetPair,
    Trial,
    TrialItem,
    TrialPlan,
    TrialRun,
    TrialSpec,
    TrialSubset,
    TriedSubset,
)
from grace_store.base.documents import Document
from grace_store.base.settings import ModelIdentity
from grace_store.likeness.coverage import RandomInterval
from grace_store.model.lora.recipe import (
    CheckpointState,
    LeftOut,
    Recipe,
    SampleRef,
    TrainingSpec,
    WarmupDone,
    WarmupSpec,
    WarmupSubset,
)
from grace_store.values.agreement import Agreement, Survival
from grace_store.values.first_errors import FirstErrors
from grace_store.values.grid import Grid, SweepSpec
from grace_store.values.methods.method_spec import HeuristicSpec, InfluenceSpec
from grace_store.values.roc import Area
from grace_store.values.score_spec import ScoreSpec
from grace_store.values.subset_trial import SubsetDifference
from grace_store.values.weights_spec import WeightsSpec

MADE_FROM = {"store": "s.zarr", "plan_sha256": "0" * 64, "num_units": 2, "partial": False}
WHERE = WhereNote(sql="is_correct and \"meta.level\" in ('a', 'b')", num_samples=10, num_kept=4)
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
        "hygiene": ("repeated_steps", "cut_off"),
        "notes": ("1 record of the target set is set aside and does not count",),
        "label": "reconstruction",
        "capabilities": (("sums", "signs"),),
        "subtask_cosine": ((1.0, 0.5), (0.5, 1.0)),
        "thresholds": (0.25, math.nan),
        "where": WHERE,
        "groups": GroupsNote(by="problem.id", within="standardised", num_groups=5, num_compared=3, num_alone=2),
        "custom_history": CustomHistory(sha256="4" * 64, weights=((0.0, 0.0), (1.0, 0.0)), function="mine"),
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
            recall=RecallNote(num_queries=5, num_true=4, num_found=4, largest_error=0.0, share=1.0),
            num_cells=4,
            num_probed=2,
        ),
        "subset": "ids.txt",
        "where": WHERE,
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
    }
)
SUBSET = SubsetNote(
    spec=SubsetSpec(ratio="0.2"),
    as_format="source",
    num_samples=2,
    num_with_value=10,
    smallest_value=0.5,
    scores=SCORES,
    rows=(3, 7),
)
WEIGHTS = WeightsNote(
    **MADE_FROM,
    spec=WeightsSpec(method="drop", drop_share=0.25, scores=ScoreSpec(alpha=0.5)),
    signals={"base": ScoredSignal(sha256="1" * 64, num_units=2, weight=1.0)},
    where=WHERE,
)
WHOLE_SUBSET = SUBSET.model_copy(
    update={
        "conclusion": "2 of 10 samples are chosen.",
        "contaminated_rows": (1, 4),
        "sha256": "5" * 64,
        "spec": SubsetSpec(
            count=2,
            threshold=0.5,
            by="num_steps",
            exclude_flagged=("repeated_steps",),
            exclude_contaminated=WHOLE_AGAINST,
            control=("step_length", "num_steps"),
            diversity=ChosenDiversity(
                method="dedup",
                weight=0.5,
                similarity=0.95,
                balance="equal",
                num_clusters=3,
                seed=1,
                signal="base",
                descriptor="steps",
                duplicates=WHOLE_DUPLICATES,
            ),
            balanced="capability",
            where=WHERE,
            per_group="0.5",
            margin=0.25,
            group_by="problem.id",
        ),
        "threshold": 0.5,
        "smallest_value": math.nan,
        "scores": INFLUENCE,
        "rejected_rows": (1, 9),
        "weights": WEIGHTS,
        "scores_path": "scores.parquet",
    }
)
INTERVAL = RandomInterval(mean=0.5, low=0.25, high=0.75, num_subsets=10)
POOL = SubsetDiversity(
    name="pool",
    num_samples=10,
    num_without_direction=0,
    mean_value=math.nan,
    num_touched=1,
    share_touched=1.0,
    entropy=math.nan,
    vendi=3.5,
    vendi_num_samples=10,
    nearest_distance=0.5,
)
DIVERSITY = Diversity(
    **MADE_FROM,
    signal=SIGNAL,
    descriptor="steps",
    num_samples=10,
    num_clusters=1,
    compared=(),
    seed=0,
    num_random=10,
    pool=POOL,
    subsets=(),
    clusters=(
        ClusterShare(cluster=0, num_samples=10, mean_value=math.nan, example="s0", num_chosen=(), representation=()),
    ),
)
POINT = TradePoint(method="mmr", weight=0.5, mean_value=0.25, value_lost=0.125, share_touched=1.0, entropy=math.nan)
WHOLE_DIVERSITY = DIVERSITY.model_copy(
    update={
        "dimension": 16,
        "seed": 3,
        "scores": SCORES,
        "where": WHERE,
        "compared": ("best 0.2",),
        "subsets": (
            POOL.model_copy(
                update={
                    "name": "best 0.2",
                    "num_samples": 2,
                    "share_alike": 0.5,
                    "random": RandomSubsets(
                        share_touched=INTERVAL,
                        expected_share_touched=0.5,
                        entropy=INTERVAL.model_copy(update={"mean": math.nan, "low": math.nan, "high": math.nan}),
                        vendi=INTERVAL,
                        nearest_distance=INTERVAL,
                    ),
                }
            ),
        ),
        "clusters": (
            ClusterShare(
                cluster=0, num_samples=10, mean_value=0.5, example="s0", num_chosen=(2,), representation=(1.0,)
            ),
        ),
        "curve": TradeCurve(ratio="0.2", num_samples=2, best=POINT, random=POINT, points=(POINT,)),
        "conclusion": "The subset best 0.2 is less varied than random subsets of its size.",
    }
)
AGREEMENT = Agreement(correlation=0.5, low=0.25, high=math.nan, num_pairs=10)
SURVIVAL = Survival(jaccard=0.5, low=0.25, high=0.75, num_samples=10, num_chosen=2)
STABILITY = StabilityDocument(
    store="s.zarr",
    plan_sha256="0" * 64,
    conclusion="Most of it survives.",
    signal="base",
    ratio="0.2",
    num_samples=10,
    num_chosen=2,
    by_chance=0.1,
    signals={},
    storages={"int8": SURVIVAL},
)
FIDELITY = FidelityDocument(
    store="s.zarr",
    plan_sha256="0" * 64,
    signal="base",
    num_samples=10,
    num_steps=30,
    ratio="0.2",
    by_chance=0.1,
    spaces={
        "representation": SpaceFidelity(
            answer_alignment=AGREEMENT,
            history_alignment=AGREEMENT,
            value=AGREEMENT,
            chosen=SURVIVAL,
        )
    },
)
ALIGNMENTS = SampleAlignments(value=0.5, answer_alignment=(0.5, 0.25), history_alignment=(math.nan, 0.25))

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
AREA = Area(0.625, 0.5, 0.75, 0.125, 9, 4, 36)
NO_AREA = Area(math.nan, math.nan, math.nan, math.nan, 9, 0, 0)
JUDGED = JudgedMeasure(
    measure="grace",
    signal="base",
    better="higher",
    across=AREA,
    within=NO_AREA,
    across_fixed=AREA,
    within_fixed=NO_AREA,
)
JUDGEMENT = Judgement(
    **MADE_FROM,
    signals={"base": SignalNote(sha256="1" * 64, num_units=2)},
    spec=ScoreSpec(),
    labels=LabelsNote(field="is_correct", says="traces"),
    num_samples=13,
    num_left_out=0,
    draws=400,
    seed=0,
    judged=(
        JudgedItems(
            of="traces", num_right=9, num_wrong=4, num_questions=5, conclusion="Too few labels.", measures=(JUDGED,)
        ),
    ),
)
WHOLE_JUDGEMENT = JUDGEMENT.model_copy(
    update={
        "skipped": ("less",),
        "where": WHERE,
        "labels": LabelsNote(field="wrong", says="wrong_steps", threshold=0.5, kind="why", question="problem"),
        "judged": (
            JudgedItems(
                of="steps",
                num_right=9,
                num_wrong=4,
                num_questions=5,
                conclusion="Too few labels.",
                measures=(
                    JUDGED.model_copy(
                        update={"kinds": {"slip": AREA}, "first_errors": FirstErrors(0.25, 0.125, 0.5, 0.25, 0.25)}
                    ),
                ),
                chance_of_first_errors=0.375,
            ),
        ),
    }
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
DIFFERENCE = SubsetDifference(0.012, 0.006, 0.018, 0.002, 0.01)
TRIED = TriedSubset(
    name="a.jsonl",
    num_samples=4,
    num_trained=3,
    num_rounds=1,
    heldout_loss=1.512,
    random_losses=(1.5, 1.5),
    difference=DIFFERENCE,
    conclusion="Random subsets train better models than a.jsonl: held-out loss +0.012, 0.006 to 0.018.",
)
TRIAL = Trial(
    store="s.zarr",
    plan_sha256="0" * 64,
    spec=TRIAL_SPEC,
    conclusion=TRIED.conclusion,
    num_pool=20,
    num_items=1,
    num_runs=3,
    num_most_runs=9,
    subsets=(TRIED,),
)
ANSWERED = {
    "share_right": 0.5,
    "random_shares_right": (0.5, 0.25),
    "right_difference": DIFFERENCE,
    "right_conclusion": "Models trained on a.jsonl answer more questions right: 0.500 of them.",
}
QUESTIONS = {"num_questions": 1, "random_num_questions": (3, 2)}
PAIR = SubsetPair(
    first="a.jsonl",
    second="b.jsonl",
    num_rounds=1,
    difference=DIFFERENCE,
    conclusion="b.jsonl trains better models than a.jsonl: held-out loss lower by 0.012, 0.006 to 0.018.",
)

EXAMPLES: dict[str, Document] = {
    "scores": SCORES,
    "scores by a heuristic": SCORES.model_copy(update={"spec": HeuristicSpec(method="random", seed=7)}),
    "scores with all fields": INFLUENCE,
    "sweep": SweepNote(
        **MADE_FROM,
        spec=SweepSpec(about="alphas", ratio=("0.2",), grid=(Grid(alpha="0.1,0.9"),)),
        settings=("alpha=0.1", "alpha=0.9"),
        signals={"base": SignalNote(sha256="1" * 64, num_units=2)},
        where=WHERE,
    ),
    "weights": WEIGHTS,
    "subset": SUBSET,
    "subset with all fields": WHOLE_SUBSET,
    "duplicates": DUPLICATES,
    "duplicates with all fields": WHOLE_DUPLICATES,
    "against": AGAINST,
    "against with all fields": WHOLE_AGAINST,
    "diversity": DIVERSITY,
    "diversity with all fields": WHOLE_DIVERSITY,
    "stability": STABILITY,
    "stability with all fields": STABILITY.model_copy(
        update={
            "signals": {"other": SURVIVAL},
            "steps": SURVIVAL,
            "skipped": ("whole",),
            "where": WhereNote(sql="num_steps > 2", num_samples=20, num_kept=10),
        }
    ),
    "fidelity": FIDELITY,
    "fidelity with all fields": FIDELITY.model_copy(
        update={
            "samples": (FidelitySample(sample_id="s0", scores={"proxy": ALIGNMENTS}),),
            "conclusion": "Too few samples to say.",
        }
    ),
    "judgement": JUDGEMENT,
    "judgement with all fields": WHOLE_JUDGEMENT,
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
        update={"spec": TRIAL_SPEC.model_copy(update={"by": "kind", "generate": True})}
    ),
    "training of a trial": TRIAL_RUN,
    "training of a trial with all fields": TRIAL_RUN.model_copy(
        update={"items": (TRIAL_RUN.items[0].model_copy(update={"is_right": True}),)}
    ),
    "trial": TRIAL,
    "trial with all fields": TRIAL.model_copy(
        update={
            "subsets": (TRIED.model_copy(update=ANSWERED | QUESTIONS),),
            "questions_conclusion": "Random subsets have traces of 2 to 3 questions, a.jsonl of 1.",
            "num_held_out_samples": 3,
            "pairs": (PAIR,),
        }
    ),
}
