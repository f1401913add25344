"""Curate reasoning traces by how their steps would train a model.

    import grace_store as gs

    store = gs.open_store("traces.zarr")
    table = gs.score(store, gs.ScoreSpec(alpha=0.5, history="ema:0.8"))
    table.value, table.to_pandas()                      # NumPy, Arrow (table.table) or pandas
    subset = gs.select(table, ratio="0.2")
    gs.export(subset, "subset.jsonl", as_format="ms-swift")
    for sample in gs.iter_samples(store):               # what is not asked for is not read
        sample.sample_id, sample.gram.shape, sample.vectors.shape, sample.segments

The functions are the command line's verbs. All public names are listed in ``__init__.pyi``, and looked up when they
are first used: importing the package loads nothing else.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def _places() -> dict[str, str]:
    """Return every public name with the module it lives in, as the stub lists them."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted([*_places(), "__version__"])
    place = None if name.startswith("_") else _places().get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_places()})
