"""Are the numbers true? Compares records with their own curves, and benchmarks' medians and ratios with their parts.

A problem is one line naming the file, what stands there and what should.
"""

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
    best = record.metrics["best"] or {"step": None}
    found = []
    for at, step, splits in (("last", record.steps, record.metrics["last"]), ("best", best["step"], best)):
        for name, metrics in splits.items():
            for metric, value in metrics.items() if name != "step" else ():
                kept = curve.get((step, name, metric), value)
                # A curve keeps values as they are, to six significant digits, or formerly to four decimals.
                written = () if value is None else (float(f"{value:.{CURVE_DIGITS}g}"), round(value, 4))
                if kept not in (value, *written):
                    found.append((f"metrics.{at}.{name}.{metric}", value, kept))
    split, later = value_at(record.config, "loop.best_split"), value_at(record.config, "loop.best_tie") == "latest"
    scores = [(score, step) for (step, *key), score in curve.items() if key == [split, PRIMARY_METRIC]]
    wanted = max(scores, key=lambda pair: (pair[0], pair[1] if later else -pair[1]), default=(0, best["step"]))[1]
    if best["step"] != wanted:
        found.append(("metrics.best.step", best["step"], wanted))
    where = f"{record_path(record.experiment, results_dir)}, run {record.id}"
    return [f"{where}: {field} is {value!r}, but {other!r} follows from its curve" for field, value, other in found]


def measured_problems(results_dir: Path) -> list[str]:
    """Medians and ratios that do not follow from the measurements beside them; scores that differ from their parts."""
    words = []
    for path in sorted([*results_dir.glob("benchmarks/*.json"), *results_dir.glob("probes/*.json")]):
        objects: list[dict[str, Any]] = []
        try:
            json.loads(path.read_text(encoding="utf-8"), object_hook=lambda node, to=objects: to.append(node) or node)
        except ValueError as error:
            raise UserError(f"{path}: not a JSON file ({error}); restore it") from error
        words += [
            f"{path}: {name} is {node[name]!r}, but {expected!r} follows from what is beside it"
            for node in objects
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
