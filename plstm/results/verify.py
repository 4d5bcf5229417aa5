"""Are the numbers true? Recomputes what can be recomputed of the results, and compares every digit that is written.

A problem is one line naming the file, what stands there and what should. What is checked, from the runs to the README:

    record_problems    a record against its own config and its curve: id, steps, epochs, parameters, operations, every
                       final metric, and the best step and its metrics
    measured_problems  benchmarks: medians and ratios from the single measurements; probes: scores from their parts
    claim_problems     lines of README and docs whose digits are listed in docs/claims.yaml, and every number that links
                       a file of the results
    rerun_problems     a run whose checkpoint is at hand, evaluated again: the same digits on the same kind of device

Beside them `sums.sums_problems` (no file changed at all) and `tables.stale_files` (tables follow from records).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from plstm.errors import UserError
from plstm.results.records import (
    FOLD_DIGITS,
    CurvePoint,
    RunRecord,
    check_type,
    curve_path,
    is_fold,
    read_curve,
    record_path,
)

CLAIMS = "docs/claims.yaml"
METRICS = ("loss", "accuracy")


# ---------------------------------------------------------------------- records
def record_problems(record: RunRecord, results_dir: Path) -> list[str]:
    """What in a record does not follow from its own config, or from its curve."""
    where = str(record_path(record.id, record.config, results_dir)) + (f", run {record.id}" if is_fold(record) else "")
    curve = read_curve(record, results_dir)
    pairs = [*_of_config(record), *_of_curve(record, curve)]
    wrong = [
        f"{where}: {field} is {written!r}, but {expected!r} follows from its {source}"
        for field, written, expected, source in pairs
        if written != expected
    ]
    return wrong + [f"{curve_path(record, results_dir)}: {words}" for words in _of_schedule(record, curve)]


Fact = tuple[str, Any, Any, str]  # field, what is written, what should be, what it follows from


def _of_config(record: RunRecord) -> Iterator[Fact]:
    from plstm.config import plain_config, run_id, run_name

    config, (parameters, flops) = _config_of(record), _costs(_key_of(record))
    yield "id", record.id, run_id(plain_config(config)), "config"
    yield "name", record.name, run_name(config), "config"
    for key in ("experiment", "seed"):
        yield key, getattr(record, key), getattr(config, key), "config"
    yield "command", record.command, " ".join(["python train.py", *record.overrides]), "overrides"
    steps_per_epoch = _steps_per_epoch(record)
    yield "steps", record.steps, max(round(config.optim.epochs * steps_per_epoch), 1), "config"
    yield "epochs", record.epochs, record.steps / steps_per_epoch, "steps and config"
    yield "parameters", record.parameters, parameters, "config"
    yield "flops_per_image", record.flops_per_image, flops, "config"
    yield "splits of metrics.last", sorted(record.metrics["last"]), sorted(set(config.loop.final_splits)), "config"


def _of_curve(record: RunRecord, curve: list[CurvePoint]) -> Iterator[Fact]:
    values = {(point.step, point.split, point.metric): point.value for point in curve}
    task = _task_of(record)
    kept = {split: [name for name in METRICS if task.keeps_curve(split, name)] for split in task.splits}
    shown = (lambda value: round(value, FOLD_DIGITS)) if is_fold(record) else (lambda value: value)
    for split, metrics in record.metrics["last"].items():
        for name in kept[split]:
            expected = values.get((record.steps, split, name))
            yield f"metrics.last.{split}.{name}", shown(metrics[name]), expected, "curve"
        hits, count = round(metrics["accuracy"] * metrics["count"]), metrics["count"]
        yield f"metrics.last.{split}.accuracy", metrics["accuracy"], hits / count if count else None, "count"
    loop, best = _config_of(record).loop, record.metrics["best"]
    scores = [point for point in curve if (point.split, point.metric) == (loop.best_metric, "accuracy")]
    if best is None or not scores:
        yield "metrics.best", best, None, "curve"
        return
    later = 1 if loop.best_tie == "latest" else -1
    step = max(scores, key=lambda point: (point.value, later * point.step)).step
    yield "metrics.best.step", best["step"], step, "curve"
    for split in loop.final_splits if step == record.steps else loop.eval_splits:
        for name in kept[split]:
            found = best.get(split, {}).get(name)
            found = None if found is None else shown(found)
            yield f"metrics.best.{split}.{name}", found, values.get((step, split, name)), "curve"


def _of_schedule(record: RunRecord, curve: list[CurvePoint]) -> list[str]:
    """Words for points that the run's schedule has and the curve has not, or the other way round."""
    config, task, per_epoch = _config_of(record), _task_of(record), _steps_per_epoch(record)
    loop, last = config.loop, record.steps
    unit = per_epoch if loop.unit == "epochs" else 1
    log_every, eval_every = loop.log_every * unit, loop.eval_every * unit
    evaluated = set(range(eval_every, last, eval_every))
    wanted = {(step, split) for step in evaluated for split in loop.eval_splits}
    wanted |= {(last, split) for split in loop.final_splits}
    wanted |= {(step, "train") for step in {*range(log_every, last, log_every), *evaluated, last}}
    wanted = {(step, split, name) for step, split in wanted for name in METRICS if task.keeps_curve(split, name)}
    found = [(point.step, point.split, point.metric) for point in curve]
    words = [f"has no {name} of {split} at step {step}" for step, split, name in sorted(wanted - set(found))]
    extra = sorted(set(found) - wanted)
    words += [f"has {name} of {split} at step {step}, where the run has none" for step, split, name in extra]
    words += ["has a point twice"] * (len(set(found)) < len(found))
    wrong = next((point for point in curve if point.epoch != point.step / per_epoch), None)
    late = [f"step {wrong.step} is epoch {wrong.step / per_epoch}, not {wrong.epoch}"] if wrong else []
    return words[:3] + late


def _key_of(record: RunRecord) -> str:
    """The record's config as JSON; of a fold without what tells the runs of a table's cell apart."""
    config = record.config
    if is_fold(record):
        config = config | {"seed": 0, "data": config["data"] | {"fold": 0}}
    return json.dumps(config, sort_keys=True)


def _config_of(record: RunRecord):
    from omegaconf.errors import OmegaConfBaseException

    from plstm.config import check

    try:
        config = _read_config(_key_of(record))
        if is_fold(record):
            data = dataclasses.replace(config.data, fold=record.config["data"]["fold"])
            config = dataclasses.replace(config, seed=record.config["seed"], data=data)
            check(config)
        return config
    except (UserError, OmegaConfBaseException) as error:
        raise UserError(f"runs/{record.id}.json: field config: {str(error).splitlines()[0]}") from error


@functools.lru_cache
def _read_config(config_json: str):
    from plstm.config import from_file

    return from_file(json.loads(config_json))


def _task_of(record: RunRecord):
    from plstm.tasks import TASKS

    config = _config_of(record)
    return TASKS[config.task](config)


def _steps_per_epoch(record: RunRecord) -> int:
    """Of a fold without its data: all graphs but those that validate and test."""
    task = _task_of(record)
    if not is_fold(record):
        return task.steps_per_epoch
    held_out = sum(metrics["count"] for metrics in record.metrics["last"].values())
    return math.ceil((task.sizes.graphs - held_out) / task.config.optim.batch_size)


@functools.lru_cache
def _costs(config_json: str) -> tuple[int, float | None]:
    """Parameters, and operations of one forward pass, of a record's config."""
    import jax
    from flax import nnx

    from plstm.tasks import TASKS

    config = _read_config(config_json)
    task = TASKS[config.task](config)
    params = nnx.state(nnx.eval_shape(lambda: task.build_model(0)), nnx.Param)
    return sum(leaf.size for leaf in jax.tree.leaves(params)), task.flops()


# ---------------------------------------------------------------------- measurements
# A benchmark's ratios: two of its parts, and what of them is divided.
RATIOS = (
    ("speedup", "quadtree", "ours", "median_seconds"),
    ("speedup_over_scan", "scan", "ours", "median_seconds"),
    ("speedup", "at_once", "in_lots", "median_seconds"),
    ("speedup", "given_back", "kept", "median_seconds"),
    ("ratio", "pLSTM", "ViT", "median_seconds"),
    ("time_ratio", "recomputed", "kept", "median_seconds"),
    ("memory_ratio", "recomputed", "kept", "memory_bytes"),
)


def measured_problems(results_dir: Path) -> list[str]:
    """Medians and ratios that do not follow from the measurements beside them; scores that differ from their parts."""
    words = []
    for path in sorted([*results_dir.glob("benchmarks/*.json"), *results_dir.glob("probes/*.json")]):
        for where, node in _objects(read_json(path)):
            facts = [(name, node[name], expected) for name, expected in _recomputed(node) if name in node]
            words += [
                f"{path}: {where}{name} is {written!r}, but {expected!r} follows from what is beside it"
                for name, written, expected in facts
                if not math.isclose(written, expected, rel_tol=1e-12)
            ]
    return words


def _recomputed(node: dict[str, Any]) -> Iterator[tuple[str, float]]:
    if isinstance(node.get("seconds"), list) and node["seconds"]:
        yield "median_seconds", statistics.median(node["seconds"])
    if isinstance(node.get("rates"), list) and node["rates"]:
        yield "views_per_second", statistics.median(node["rates"])
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


def read_json(path: Path) -> Any:
    """A JSON file's value. Raises UserError where it is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error}); restore it") from error


# ---------------------------------------------------------------------- README and docs
def claim_problems(root: Path) -> list[str]:
    """Lines of docs/claims.yaml that do not stand in their file as the results have them; links to other numbers.

    A claim is {file, from: a JSON file of the results, text}; a {place:format} of the text stands for a number there:
    `{metrics.last.test.accuracy:.3f}`, `{rows[grid=12,structure=general].ours.median_seconds*1000:.1f}`.
    """
    path = root / CLAIMS
    try:
        claims = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    check_type(claims, list[dict[str, str]], str(path))
    words = []
    for claim in claims:
        if claim.keys() != {"file", "from", "text"}:
            raise UserError(f"{path}: a claim has file, from and text, and not {', '.join(claim)}")
        file, source = root / claim["file"], read_json(root / claim["from"])
        parts = re.split(r"\{([^{}:]+:[^{}]+)\}", claim["text"])  # text and placeholders in turn
        parts[1::2] = [_shown(source, *part.split(":", 1), path) for part in parts[1::2]]
        text = "".join(parts)
        if _spaced(text) not in _spaced(file.read_text(encoding="utf-8")):
            words.append(f"{file}: must have, from {claim['from']}: {_spaced(text)}")
    return words + [line for file in _documents(root) for line in _link_problems(root, file)]


def _documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _shown(source: Any, place: str, form: str, path: Path) -> str:
    place, _, factor = place.partition("*")
    try:
        number = _find(source, place)
        return format(number * float(factor) if factor else number, form)
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise UserError(f"{path}: {{{place}:{form}}}: no such number there ({type(error).__name__})") from error


def _find(node: Any, place: str) -> Any:
    for key, choice in re.findall(r"([^.\[\]]+)(?:\[([^\]]*)\])?", place):
        node = node[int(key)] if isinstance(node, list) else node[key]
        if choice:
            wanted = dict(part.split("=") for part in choice.split(","))
            node = next(row for row in node if all(str(row[name]) == value for name, value in wanted.items()))
    return node


def _link_problems(root: Path, file: Path) -> list[str]:
    """Numbers that link a JSON file of the results in which no number is written so."""
    words = []
    for shown, target in re.findall(r"\[([^\]\[]+)\]\(([^)\s]*results/[^)\s]+\.json)\)", file.read_text("utf-8")):
        path = (file.parent / target).resolve()
        if not re.fullmatch(r"[-+]?\d[\d,]*\.?\d*%?", shown):
            words += [f"{file}: links {target}, which is not there"] * (not path.is_file())
            continue
        digits = len(shown.rstrip("%").partition(".")[2])
        scale = 100 if shown.endswith("%") else 1
        values = [value for _, node in _objects(read_json(path)) for value in node.values()]
        written = {f"{scale * value:.{digits}f}" for value in values if type(value) in (int, float)}
        if shown.rstrip("%").replace(",", "") not in written:
            words.append(f"{file}: {shown} links {path.relative_to(root.resolve())}, in which no number is {shown}")
    return words


# ---------------------------------------------------------------------- checkpoints
def rerun_problems(record: RunRecord, folder: Path) -> tuple[list[str], str]:
    """Evaluates the last and the best checkpoint of a record's run again, as training did.

    Returns problems, and a line that says what was compared. On another kind of device than the record's, where sums
    have another order, nothing is compared.
    """
    from plstm.training.environment import describe_environment

    here = describe_environment(folder)["hardware"]
    kinds = [{key: hardware[key] for key in ("device_kind", "device_count")} for hardware in (record.hardware, here)]
    if kinds[0] != kinds[1]:
        shown = [f"{kind['device_count']} x {kind['device_kind']}" for kind in kinds]
        return [], f"{folder}: not compared: its record is from {shown[0]}, and here is {shown[1]}"
    wanted = {"last": record.metrics["last"]}
    if record.metrics["best"] and _config_of(record).loop.keeps_best:
        wanted["best"] = {split: values for split, values in record.metrics["best"].items() if split != "step"}
    problems = []
    for checkpoint, metrics in wanted.items():
        found = _evaluated(folder, checkpoint, list(metrics))
        for split, values in metrics.items():
            problems += [
                f"{folder}, {checkpoint} checkpoint: {split} {name} is {found[split][name]!r}, in the record {value!r}"
                for name, value in values.items()
                if found[split][name] != value
            ]
    outcome = "other digits" if problems else "the same digits"
    return problems, f"{folder}: evaluated again ({' and '.join(wanted)} checkpoint): {outcome}"


def _evaluated(folder: Path, checkpoint: str, splits: list[str]) -> dict[str, dict[str, float]]:
    from plstm.runs.weights import from_checkpoint
    from plstm.tasks import TASKS
    from plstm.training.evaluation import evaluate, make_ready

    model = from_checkpoint(folder, checkpoint=checkpoint)
    config = model.info.config
    task, batch_size = TASKS[config.task](config), config.optim.batch_size
    predict, weights, place = make_ready(model, task, batch_size)
    return {name: evaluate(predict, weights, task.split(name), batch_size, place) for name in splits}
