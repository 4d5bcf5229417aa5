"""The trained weights that studies keep: results/weights/<name>.safetensors, of the runs that their `weights` list."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from plstm.errors import UserError
from plstm.models.weights import load
from plstm.studies.definitions import TableDefinition
from plstm.studies.records import Record


def weights_path(name: str, results_dir: Path) -> Path:
    return results_dir / "weights" / f"{name}.safetensors"


def missing_weights(table: TableDefinition, records: Sequence[Record], results_dir: Path) -> dict[Path, str]:
    """The files that are to be written, and their runs' ids: those of finished runs that are not there."""
    finished = {record.id for record in records}
    kept = {weights_path(name, results_dir): run for name, run in table.weights.items() if run in finished}
    return {path: run for path, run in kept.items() if not path.is_file()}


def weights_problems(tables: Sequence[TableDefinition], records: Sequence[Record], results_dir: Path) -> Iterator[str]:
    """What is wrong with the files: not there, not whole, of another run, of no record, or listed by no study."""
    listed = {weights_path(name, results_dir): run for table in tables for name, run in table.weights.items()}
    finished = {record.id for record in records}
    for table in tables:
        for path, run in missing_weights(table, records, results_dir).items():
            yield f"{path}: missing; run: python scripts/export.py {run} {path}"
    for path in sorted((results_dir / "weights").glob("*")):
        if path not in listed:
            yield f"{path}: no file of configs/study lists it under weights"
            continue
        try:
            run = load(path).info.run
        except UserError as error:
            yield str(error)
            continue
        if run != listed[path]:
            yield f"{path}: is of run {run or 'unknown'}, and its study lists run {listed[path]}"
        elif run not in finished:
            yield f"{path}: run {run} has no record"
