"""What diversity costs: value lost against coverage gained, for every method over its weights, at one budget."""

from dataclasses import replace

import numpy as np
from pydantic import field_validator

from grace_store.artifacts.measures import TradeCurve, TradePoint
from grace_store.artifacts.pictures.panels import Axis, Panel, Point, Series, draw_panels
from grace_store.base.arrays import IntArray
from grace_store.base.errors import SettingError
from grace_store.base.settings import Settings
from grace_store.base.text import counted
from grace_store.curate.pool import Pool, pool_orders
from grace_store.curate.select import Ranking
from grace_store.likeness.clusters import Clusters
from grace_store.likeness.coverage import expected_share_touched, occupancy_entropy, random_counts, share_touched
from grace_store.values.diverse_orders import check_weight
from grace_store.values.diversity_spec import DiversitySpec, Traded
from grace_store.values.ranking import Ratio, budget

NUM_RANDOM = 200
"""Random subsets that the mean entropy is taken over."""


class TradeSpec(Settings):
    """What a curve goes over."""

    methods: tuple[Traded, ...] = ("clusters", "facility", "mmr")
    weights: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    seed: int = 0

    @field_validator("weights")
    @classmethod
    def _balances(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value:
            raise SettingError("a curve needs at least one weight")
        return tuple(sorted({check_weight(each) for each in value}))

    def specs(self) -> list[DiversitySpec]:
        """Return every method with every weight."""
        return [
            DiversitySpec(method=method, weight=weight, seed=self.seed)
            for method in dict.fromkeys(self.methods)
            for weight in self.weights
        ]


def curve_svg(curve: TradeCurve, note: str = "") -> str:
    """Return the curve as SVG: coverage on the left, evenness on the right, each against the value lost."""
    methods = list(dict.fromkeys(point.method for point in curve.points))
    lost = Axis("value lost (0: by value alone, 1: at random)")
    panels = []
    for name, label in (("share_touched", "share of clusters touched"), ("entropy", "evenness over clusters")):
        series = [Series(each, _line(curve, each, name)) for each in methods]
        marks = [replace(_drawn(each, name), name=each.method) for each in (curve.best, curve.random)]
        panels.append(Panel(lost, Axis(label), series, marks, if_empty="nothing to trade"))
    return draw_panels(panels, f"What diversity costs, for {counted(curve.num_samples, 'sample')}", note)


def _line(curve: TradeCurve, method: str, name: str) -> list[Point]:
    """Return a method's points, the last one named: labels at the lines need no legend to be looked up."""
    points = [_drawn(point, name) for point in curve.points if point.method == method]
    return [*points[:-1], replace(points[-1], name=method)]


def _drawn(point: TradePoint, name: str) -> Point:
    what = f"{point.method} {point.weight:g}" if point.weight == point.weight else point.method
    y = float(getattr(point, name))
    return Point(point.value_lost, y, f"{what}: mean value {point.mean_value:.4f}, {y:.3f}")


def trade_curve(
    pool: Pool, clusters: Clusters, ranking: Ranking, ratio: Ratio, spec: TradeSpec, *, threads: int | None = None
) -> TradeCurve:
    """Choose by every method and weight at the same budget, and measure value and coverage by the clusters given."""
    at = pool.places_of(ranking.scores.row[ranking.ranked], "the table")
    value = ranking.value[ranking.ranked]
    label, count = clusters.label[at], budget(ratio, len(at))
    size = np.bincount(label[label >= 0], minlength=clusters.num_clusters)
    gained = float(value[:count].mean() - value.mean())

    def point(method: str, weight: float, order: IntArray) -> TradePoint:
        kept = order[:count]
        counts = np.bincount(label[kept][label[kept] >= 0], minlength=clusters.num_clusters)
        mean = float(value[kept].mean())
        lost = (float(value[:count].mean()) - mean) / gained if gained > 0 else 0.0
        covered = {"share_touched": share_touched(counts), "entropy": occupancy_entropy(counts)}
        return TradePoint(method=method, weight=weight, mean_value=mean, value_lost=lost, **covered)

    specs = spec.specs()
    orders = pool_orders(pool.vector, at, specs, threads=threads)
    drawn = min(count, int(size.sum()))
    counts = random_counts(size, drawn, NUM_RANDOM, np.random.default_rng([spec.seed, drawn]))
    evenness = float(np.mean([occupancy_entropy(each) for each in counts]))
    return TradeCurve(
        ratio=str(ratio),
        num_samples=count,
        best=point("by value alone", float("nan"), np.arange(len(at))),
        random=TradePoint(
            method="random",
            weight=float("nan"),
            mean_value=float(value.mean()),
            value_lost=1.0,
            share_touched=expected_share_touched(size, drawn),
            entropy=evenness,
        ),
        points=tuple(point(each.method, each.weight or 0.0, order) for each, order in zip(specs, orders, strict=True)),
    )
