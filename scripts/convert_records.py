"""Converts the records of results/runs from format 2 to 3, once: ids that do not depend on names, and variants.

    python scripts/convert_records.py --results results README.md docs

writes results/runs anew, renames the files of results/probes after their runs, replaces the old ids in all text files
of the results folder and of the other paths named, and prints each old id with the new one. Of a record only names, two
keys of `data`, `init_from`, command and overrides change. Refuses records that are converted already. Folders of runs
are not converted: their checkpoints belong to the old ids, so a run that had not finished starts anew.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import UserError, run_script
from plstm.files import write_file
from plstm.runs.identity import plain_id
from plstm.studies.definitions import override
from plstm.studies.records import record_path

TEXT = (".csv", ".json", ".jsonl", ".md", ".yaml", ".yml")
LENGTH_32 = {"mamba2": {"model.state_dim": 32}, "transformer": {"model.heads": 2}}
GROUPS = {"reduced": "arrow_48", "balanced": "arrow_48", "demo": "arrow_48", "languages_reduced": "languages"}
GROUPS |= {"tokens_reduced": "tokens", "tracking": "tokens"}
VARIANTS = {"balanced": ["balanced"], "demo": ["demo"], "languages_reduced": ["steps_5k"]}
VARIANTS |= {"tokens_reduced": ["length_32"], "tracking": ["length_32", "longer"]}
RENAMED = {"law": "distribution", "scale": "object_scale"}  # keys of data
XLSTM = {"xlstm_1_1": [], "xlstm_1_0": ["mlstm"], "xlstm_0_1": ["slstm"]}
ABLATION = re.compile(r"plstm_(d_mode|p_mode|no_posemb|stm_bias|printed|linf|pruned|tail|released)(_finetune)?")


def convert_name(old: str) -> tuple[str, list[str], dict[str, Any]]:
    """Of an experiment of format 2: the experiment, its variants, and the settings that take the place of the rest."""
    group, _, model = old.partition("/")
    variants = list(VARIANTS.get(group, []))
    settings: dict[str, Any] = {}
    if found := ABLATION.fullmatch(model):
        variants.append(found[1])
        model = "plstm"
    elif model == "vil_released":
        variants.append("released_grid")
        model = "vil"
    elif model == "gdn_negative":
        variants.append("negative")
        model = "gdn"
    elif model in XLSTM:
        variants += XLSTM[model]
        model = "xlstm"
    elif found := re.fullmatch(r"(pr_lstm|pr_rnn)_(0r|2r)", model):
        model, refinements = found.groups()
        variants.append(refinements)
    elif found := re.fullmatch(r"plstm_(\d)", model):
        model = "plstm"
        settings["model.track"] = int(found[1])
        if found[1] == "3":
            settings["model.dim"] = 66 if group == "tokens" else 36
    elif old == "graphs/plstm_small":
        model = "plstm"
        settings["model.dim"] = 76
    elif found := re.fullmatch(r"imagenet_(plstm|vit)(_finetune)?", model):
        variants += ["finetune_small"] * bool(found[2])
        return f"imagenet_small/{found[1]}", variants, settings
    if group in ("tokens_reduced", "tracking"):
        settings |= LENGTH_32.get(model, {})
    if old == "languages_reduced/transformer":
        settings["loop.eval_every"] = 2500
    if old == "demo/vit":
        settings["optim.peak_lr"] = 0.004
    return f"{GROUPS.get(group, group)}/{model.removesuffix('_finetune')}", variants, settings


def convert(record: dict[str, Any], new_ids: dict[str, str]) -> dict[str, Any]:
    """A record of format 3; new_ids: of the runs that others fine-tune."""
    old = record["experiment"]
    experiment, variants, settings = convert_name(old)
    variant = ",".join(variants) or None
    config = {"experiment": experiment, "variant": variant}
    config |= {key: value for key, value in record["config"].items() if key != "experiment"}
    config["data"] = {RENAMED.get(key, key): value for key, value in config["data"].items()}
    start = config["init_from"]
    config["init_from"] = new_ids[start] if start else None
    words = [word for word in record["overrides"] if not word.startswith(("experiment=", "init_from="))]
    typed = {word.partition("=")[0] for word in words}
    overrides = [f"experiment={experiment}"]
    if variants:
        overrides.append(f"variant={variant}" if len(variants) == 1 else f"variant=[{variant}]")
    overrides += [override(key, value) for key, value in settings.items() if key not in typed]
    overrides += [f'init_from="{config["init_from"]}"'] if start else []
    overrides += words
    name = "-".join([experiment.replace("/", "-"), *variants]) + record["name"].removeprefix(old.replace("/", "-"))
    note = f"from format 2 by scripts/convert_records.py: its id was {record['id']}, its experiment {old}"
    changed = {
        "format": 3,
        "id": plain_id(config),
        "name": name,
        "experiment": experiment,
        "variant": variant,
        "command": shlex.join(["python", "train.py", *overrides]),
        "overrides": overrides,
        "config": config,
        "converted": "; ".join(filter(None, [record["converted"], note])),
    }
    first = {key: changed[key] for key in ("format", "id", "name", "experiment", "variant")}
    return first | {key: changed.get(key, value) for key, value in record.items() if key not in first}


def convert_all(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The new lines by old id; of runs that others fine-tune before those."""
    converted: dict[str, dict[str, Any]] = {}
    waiting = lines
    while waiting:
        new_ids = {old: line["record"]["id"] for old, line in converted.items()}
        ready = [line for line in waiting if line["record"]["config"]["init_from"] in {None, *new_ids}]
        if not ready:
            raise UserError(f"run {waiting[0]['record']['id']}: fine-tunes a run that has no record")
        for line in ready:
            converted[line["record"]["id"]] = {"record": convert(line["record"], new_ids), "curve": line["curve"]}
        waiting = [line for line in waiting if line["record"]["id"] not in converted]
    return converted


def text_files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in TEXT:
                yield file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="other files and folders with ids in their text")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    runs = arguments.results / "runs"
    old_files = sorted(runs.glob("*.jsonl"))
    lines = [json.loads(text) for path in old_files for text in path.read_bytes().splitlines()]
    if any(line["record"]["format"] != 2 for line in lines):
        raise UserError(f"{runs}: is converted already, at least in part; nothing was changed")
    converted = convert_all(lines)
    ids = {old: line["record"]["id"] for old, line in converted.items()}
    if len({*ids.values()}) < len(ids):
        raise UserError("two records would have the same id; nothing was changed")

    files: dict[Path, list[dict[str, Any]]] = {}
    for line in sorted(converted.values(), key=lambda line: line["record"]["finished"]):
        files.setdefault(record_path(line["record"]["experiment"], arguments.results), []).append(line)
    for path in old_files:
        path.unlink()
    for path, own in files.items():
        texts = [json.dumps(line, separators=(",", ":"), allow_nan=False, ensure_ascii=False) for line in own]
        write_file(path, "".join(f"{text}\n" for text in texts).encode())

    names = {line["record"]["id"]: line["record"]["name"] for line in converted.values()}
    for path in sorted((arguments.results / "probes").glob("*.json")):
        new_id = ids[path.stem[:12]]
        probes = json.loads(path.read_bytes()) | {"name": names[new_id]}
        path.unlink()
        path = path.with_name(f"{names[new_id]}-{new_id}{path.stem[12:]}.json")
        write_file(path, (json.dumps(probes, indent=2) + "\n").encode())
    for path in text_files([arguments.results, *arguments.paths]):
        if path.parent == runs:
            continue
        text = path.read_text(encoding="utf-8")
        new = re.sub(r"\b[0-9a-f]{12}\b", lambda found: ids.get(found[0], found[0]), text)
        if new != text:
            write_file(path, new.encode())
    print("\n".join(f"{old} {new}" for old, new in ids.items()))
    return 0


if __name__ == "__main__":
    run_script(main)
