"""Reads what the W&B client wrote offline: LevelDB's log format, with its protocol buffers in it."""

import json
import struct
from pathlib import Path

BLOCK, HEAD = 32768, 7


def history(folder: Path) -> list[dict]:
    """The rows of the last session of the offline run under `folder`/wandb, in order."""
    records = _records(_last_part(folder))
    rows = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


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
