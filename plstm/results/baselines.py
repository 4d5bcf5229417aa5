"""What tables show beside the models: chance, and figures of no model, such as a majority class or a shortcut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plstm.errors import UserError
from plstm.results.definitions import TableDefinition
from plstm.results.records import check_type


def read_baselines(table: TableDefinition, results_dir: Path) -> list[dict[str, Any]]:
    """Chance, then the entries {"name", split: accuracy, ...} under "baselines" in the table's baseline file.

    A file not made yet gives one entry without accuracies; a file of another form raises UserError.
    """
    entries: list[dict[str, Any]] = []
    if table.chance is not None:
        entries.append({"name": "chance", **dict.fromkeys(table.columns, table.chance)})
    if table.baselines is None:
        return entries
    path = results_dir / table.baselines
    if not path.is_file():
        return [*entries, {"name": f"baselines ({table.baselines}, not measured yet)"}]
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error}); make it again") from error
    check_type(measured, dict[str, Any], str(path))
    check_type(measured.get("baselines"), list[dict[str, Any]], f"{path}: field baselines")
    for index, entry in enumerate(measured["baselines"]):
        for key in ["name", *entry]:
            check_type(entry.get(key), str if key == "name" else float, f"{path}: field baselines.{index}.{key}")
    return entries + measured["baselines"]
