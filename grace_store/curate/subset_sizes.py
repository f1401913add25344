"""How large subsets are to be, and which file each one goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grace_store.base.errors import SettingError
from grace_store.curate.select import Ranking, Subset

DEFAULT_RATIO = "0.2"


@dataclass(frozen=True, slots=True)
class SubsetSizes:
    """Shares, numbers of samples, or a least value: one of the three. With none of them, a share of 0.2."""

    ratios: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.ratios, self.counts, self.threshold is not None))) > 1:
            raise SettingError("give one of --ratio, --count and --threshold")
        if any(len(set(each)) < len(each) for each in (self.ratios, self.counts)):
            raise SettingError("the same ratio or count is given twice")

    def take(self, ranking: Ranking) -> dict[str, Subset]:
        """Return the subset of each size, by the size as it is written."""
        if self.threshold is not None:
            return {str(self.threshold): ranking.take(threshold=self.threshold)}
        if self.counts:
            return {str(count): ranking.take(count=count) for count in self.counts}
        return {ratio: ranking.take(ratio=ratio) for ratio in self.ratios or (DEFAULT_RATIO,)}


def subset_paths(out: Path, sizes: Sequence[str]) -> list[Path]:
    """Return one file name for each size: {ratio} in the name stands for it, or else it is added if there are several.

    >>> [path.name for path in subset_paths(Path("subset.jsonl"), ["0.1", "0.2"])]
    ['subset-0.1.jsonl', 'subset-0.2.jsonl']
    """
    if "{ratio}" in out.name:
        return [out.with_name(out.name.replace("{ratio}", size)) for size in sizes]
    if len(sizes) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{size}{out.suffix}") for size in sizes]
