"""Convert results of format 1 (runs/*.json with curves/*.csv, folds/*.jsonl) to format 2, once.

python scripts/convert_results.py OLD_RESULTS NEW_RESULTS
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.results.records import Record, record_path

HOW = (
    "from format 1: loop.best_metric is loop.best_split, model.family is new, keys that the config left out have their "
    "neutral values, images_per_second is examples_per_second, flops_per_image is flops_per_example, table and row are gone"
)
NEUTRAL = {"task": "arrow", "augment": None, "init_from": None, "init_checkpoint": "last"}
NEUTRAL |= {"optim.loss": "cross_entropy", "optim.schedule_per": "step"}
NEUTRAL |= {"loop.unit": "steps", "loop.save_every": None, "loop.best_tie": "latest"}


def convert_config(config: dict) -> dict:
    config = json.loads(json.dumps(config))
    for key, value in NEUTRAL.items():
        group, _, leaf = key.rpartition(".")
        (config[group] if group else config).setdefault(leaf, value)
    config["loop"]["best_split"] = config["loop"].pop("best_metric")
    config["model"] = {"family": "graph" if config["task"] == "graphs" else "vision", **config["model"]}
    return config


def convert_record(old: dict) -> Record:
    new = {key: value for key, value in old.items() if key not in ("table", "row")}
    new["config"] = convert_config(old["config"])
    new["task"] = new["config"]["task"]
    new["unit"] = "graphs" if new["task"] == "graphs" else "images"
    new["examples_per_second"] = new.pop("images_per_second")
    new["flops_per_example"] = new.pop("flops_per_image")
    return Record(**new, converted=HOW)


def columns_of(path: Path) -> dict:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    steps = sorted({int(line["step"]) for line in lines})
    columns = {"step": steps}
    for line in lines:
        name = f"{line['split']}.{line['metric']}"
        columns.setdefault(name, [None] * len(steps))[steps.index(int(line["step"]))] = float(line["value"])
    return columns


def main() -> None:
    old, new = map(Path, sys.argv[1:])
    found: dict[Path, list[str]] = {}
    lines = [
        (json.loads(path.read_text()), columns_of(old / f"curves/{path.stem}.csv"))
        for path in sorted((old / "runs").glob("*.json"))
    ]
    for path in sorted((old / "folds").glob("*.jsonl")):
        lines += [(line["record"], line["curve"]) for line in map(json.loads, path.read_text().splitlines())]
    for old_record, curve in lines:
        record = convert_record(old_record)
        line = {"record": dict(record), "curve": curve}
        text = json.dumps(line, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        found.setdefault(record_path(record.experiment, new), []).append(text)
    for path, texts in found.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts) + "\n")
        print(path, len(texts))


if __name__ == "__main__":
    main()
