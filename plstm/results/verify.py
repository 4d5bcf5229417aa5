"""Are the numbers true? Compares records with their own curves, and benchmarks' medians and ratios with their parts.

A problem is one line naming the file, what stands there and what should.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plstm.errors import UserError
from plstm.results.records import CURVE_DIGITS, PRIMARY_METRIC, Record, read_curve, record_path, value_at

# A benchmark's ratios: two of its parts, and what of them is divided.
RATIOS = (
    ("speedup", "quadtree", "ours", "median_seconds"),
    ("speedup_over_scan", "scan", "ours", "median_seconds"),
    ("speedup", "at_once", "chunked", "median_seconds"),
    ("speedup", "given_back", "kept", "median_seconds"),
    ("ratio", "pLSTM", "ViT", "median_seconds"),
    ("time_ratio", "recomputed", "kept", "median_seconds"),
    ("memory_ratio", "recomputed", "kept", "memory_bytes"),
)


def record_problems(record: Record, results_dir: Path) -> list[str]:
    """What in a record does not follow from its curve: metrics of the last and the best step, and which is the best."""
    curve = {(p.step, p.split, p.metric): p.value for p in read_curve(record, results_dir)}
    found = []
    best, split = record.metrics["best"], value_at(record.config, "loop.best_split")
    for at, step, splits in (("last", record.steps, record.metrics["last"]), ("best", (best or {}).get("step"), best)):
        for name, metrics in (splits or {}).items():
            for metric, value in metrics.items() if name != "step" else ():
                kept = curve.get((step, name, metric), value)
                if not _is_rounded(value, kept):
                    found.append((f"metrics.{at}.{name}.{metric}", value, kept))
    later = 1 if value_at(record.config, "loop.best_tie") == "latest" else -1
    scores = [(value, later * step, step) for (step, *key), value in curve.items() if key == [split, PRIMARY_METRIC]]
    if scores and (best or {}).get("step") != max(scores)[-1]:
        found.append(("metrics.best.step", (best or {}).get("step"), max(scores)[-1]))
    where = f"{record_path(record.experiment, results_dir)}, run {record.id}"
    return [f"{where}: {field} is {value!r}, but {other!r} follows from its curve" for field, value, other in found]


def _is_rounded(value: float, kept: float) -> bool:
    """Whether a curve keeps this value: as it is, to six significant digits, or formerly to four decimals."""
    return kept in (value, float(f"{value:.{CURVE_DIGITS}g}"), round(value, 4))


def measured_problems(results_dir: Path) -> list[str]:
    """Medians and ratios that do not follow from the measurements beside them; scores that differ from their parts."""
    words = []
    for path in sorted([*results_dir.glob("benchmarks/*.json"), *results_dir.glob("probes/*.json")]):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: not a JSON file ({error}); restore it") from error
        for where, node in _objects(content):
            words += [
                f"{path}: {where}{name} is {node[name]!r}, but {expected!r} follows from what is beside it"
                for name, expected in _recomputed(node)
                if name in node and not math.isclose(node[name], expected, rel_tol=1e-12)
            ]
    return words


def _recomputed(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, parts in (("median_seconds", node.get("seconds")), ("views_per_second", node.get("rates"))):
        if isinstance(parts, list) and parts:
            yield name, statistics.median(parts)
    for name, above, below, key in RATIOS:
        if name in node and all(key in node.get(part, {}) for part in (above, below)):
            yield name, node[above][key] / node[below][key]
    if parts := node.get("by_distance"):
        images = sum(part["images"] for part in parts)
        yield "images", images
        for name in ("accuracy", "answered_at", "labelled_at"):
            yield name, sum(part["images"] * part[name] for part in parts) / images


def _objects(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in a JSON value, with its dotted place."""
    if isinstance(node, dict):
        yield where, node
    for key, child in node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else []):
        yield from _objects(child, f"{where}{key}.")
