"""Write the tables and figures of results/<study>, and the generated numbers and blocks of all pages; --check names
what is wrong.

--check names tables and pages that are stale, metrics of records that differ from their curves, and kept weights that
are damaged or of no record; figures are not looked at, as another Matplotlib draws them otherwise. With names of
studies, as in `python scripts/make_tables.py --check arrow-48`, only these. Pages quote the repository's own results,
and are left alone with others. --wandb also logs table.csv of each study to W&B as a wandb.Table, offline (in
outputs/wandb) when nobody is logged in. Exit status: 0, 1 if it names something that is wrong, 2 if a record, a
definition or a page cannot be read.
"""

import io
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import run_script
from plstm.files import write_file
from plstm.runs.compose import compose_config, to_eval_config
from plstm.studies.definitions import load_table
from plstm.studies.documents import document_paths, document_problems, fill_document
from plstm.studies.figures import draw_table
from plstm.studies.records import read_records, record_problems
from plstm.studies.tables import render_table
from plstm.studies.weights import weights_problems
from plstm.training.tracking import Tracker
from scripts.common import Parser, machine_folder

ROOT = Path(__file__).resolve().parents[1]


def log_table(name: str, csv: bytes, folder: Path) -> None:
    """Logs a study's table.csv, a column a metric, to the W&B run table-<name> of the local settings' account."""
    lines = pd.read_csv(io.BytesIO(csv), dtype=str, keep_default_na=False)
    lines = lines[lines.metric != "id"]  # of which a seed of many folds has many
    wide = lines.pivot(index=[*lines.columns[:-2]], columns="metric", values="value").reset_index()
    for metric in {*lines.metric}:
        numbers = pd.to_numeric(wide[metric], errors="coerce")
        wide[metric] = numbers if numbers.count() == wide[metric].count() else wide[metric].fillna("")
    logger = to_eval_config(compose_config("eval", [])).logger
    place = {"id": f"table-{name}", "dir": str(folder), "name": f"table {name}", "job_type": "table"}
    tracker = Tracker(logger.mode, **place, project=logger.project, entity=logger.entity)
    tracker.table("table", wide)
    tracker.finish()


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("names", nargs="*", help="tables to write, all and the documents if none is named")
    place = machine_folder("results", ROOT)
    parser.add_argument("--results", type=Path, default=place, help="folder of records and tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is wrong")
    parser.add_argument("--wandb", action="store_true", help="also log the tables to W&B")
    arguments = parser.parse_args()
    if arguments.check and arguments.wandb:
        parser.error("--wandb: --check logs nothing; give one of them")
    results = arguments.results
    folder = ROOT / "configs/study"
    records = read_records(results)
    paths = [folder / f"{name}.yaml" for name in arguments.names] or sorted(folder.glob("*.yaml"))
    tables = [load_table(path) for path in paths]
    problems = []

    def update(path: Path, data: bytes) -> None:
        is_stale = not path.is_file() or path.read_bytes() != data
        if is_stale and arguments.check:
            problems.append(f"stale: {path}; run: make tables")
        elif is_stale:
            write_file(path, data)
            print("wrote", path)

    for table in tables:
        files = render_table(table, records, results)
        for path, data in files.items():
            update(path, data)
        if arguments.wandb and files:
            log_table(table.name, files[results / table.name / "table.csv"], results.parent / "outputs")
        if not arguments.check:
            for path in draw_table(table, records, results):
                print("drew", path)
    documents = document_paths(ROOT) if not arguments.names and results.resolve() == ROOT / "results" else []
    for path in documents:  # after the tables, which they quote
        update(path, fill_document(path, ROOT).encode())
        problems += document_problems(path)
    if arguments.check and not arguments.names:
        problems += [problem for record in records for problem in record_problems(record, results)]
        problems += weights_problems(tables, records, results)
    print("\n".join(problems) or f"{len(tables)} tables and {len(documents)} documents are up to date")
    return 1 if problems else 0


if __name__ == "__main__":
    run_script(main)
