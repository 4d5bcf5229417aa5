"""Reads what the W&B client wrote offline: LevelDB's log format, with its protocol buffers in it."""

import json
import struct
from pathlib import Path

import pytest

from plstm.studies.records import Record

BLOCK, HEAD = 32768, 7


def history(folder: Path) -> list[dict]:
    """The rows of the last session of the offline run under `folder`/wandb, in order."""
    records = _records(_last_part(folder))
    rows = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def config(folder: Path) -> dict:
    """The config of the last session."""
    (run,) = [record.run for record in _records(_last_part(folder)) if record.WhichOneof("record_type") == "run"]
    return {item.key: json.loads(item.value_json) for item in run.config.update}


def summary(folder: Path) -> dict:
    """The summary of the last session at its end."""
    records = _records(_last_part(folder))
    items = [
        item for record in records if record.WhichOneof("record_type") == "summary" for item in record.summary.update
    ]
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def assert_complete(folder: Path, record: Record, pictures: set[str], metric: str = "accuracy") -> None:
    """Config, summary and history of the last session are those of the finished run, which logged these pictures."""
    found = config(folder)
    assert record.config["model"].items() <= found["model"].items()
    for key in ("commit", "versions", "hardware", "parameters", "flops_per_example"):
        assert found[key] == getattr(record, key), key
    rows = history(folder)
    assert {"train/loss", "train/examples_per_second", f"test/{metric}", "epoch"} <= set().union(*rows)
    assert {key.split("/")[0] for row in rows for key in row if key.endswith("/_type")} == pictures
    end = summary(folder)
    assert end[f"final/test/{metric}"] == record.metrics["last"]["test"][metric]
    assert end["examples_per_second"] == pytest.approx(record.examples_per_second, abs=0.1)
    assert has_ended(folder)


def has_ended(folder: Path) -> bool:
    """Whether the client wrote the end of the run, too."""
    return _records(_last_part(folder))[-1].WhichOneof("record_type") == "exit"


def _last_part(folder: Path) -> Path:
    return max((folder / "wandb").glob("offline-run-*/*.wandb"), key=str)  # they are named by the second


def _records(path: Path) -> list:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts, records = path.read_bytes(), HEAD, b"", []
    while position + HEAD <= len(data):
        if (left := BLOCK - position % BLOCK) < HEAD:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + HEAD : position + HEAD + size]
        position += HEAD + size
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records
