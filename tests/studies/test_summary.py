import re

from hydra.core.utils import JobReturn, JobStatus

from plstm.studies.summary import SweepSummary

from .conftest import example_record, fold_records, folds_of


def end_of(*returned, **options):
    """What is printed at the end of a sweep whose jobs returned this."""
    summary = SweepSummary(**options)
    for value in returned:
        status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
        summary.on_job_end(config=None, job_return=JobReturn(status=status, _return_value=value))
    summary.on_multirun_end(config=None)


def test_runs_that_differ_in_the_named_keys_are_averaged(graphs, capsys):
    runs = fold_records(folds_of(graphs, "graphs/gin")) + fold_records(folds_of(graphs, "graphs/gin", "MUTAG", 8)[:2])
    single = fold_records(folds_of(graphs, "graphs/gat")[:1])
    end_of(*runs, *single, None, ValueError("failed"), over=["data.fold"])
    assert capsys.readouterr().out.splitlines() == [
        "graphs/gin, MUTAG, seed 43, model.depth=4: test accuracy over 10 runs 0.7450 ± 0.0303 at the best "
        "epoch, 0.7950 ± 0.0303 at the last",
        "graphs/gin, MUTAG, seed 43, model.depth=8: test accuracy over 2 runs 0.7050 ± 0.0071 at the best "
        "epoch, 0.7550 ± 0.0071 at the last",
    ]


def test_runs_without_a_best_step(capsys):
    runs = [example_record(seed=seed) for seed in (43, 44)]
    runs = [run.model_copy(update={"metrics": {**run.metrics, "best": None}}) for run in runs]
    end_of(*runs, over=["seed", "data.train_seed"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("arrow/plstm, arrow_pointing, seed 43, optim.peak_lr=0.0001: ")
    assert re.search(r": test accuracy over 2 runs 0\.\d{4} ± 0.0000 at the last$", line)
    end_of(*runs, over=["optim.peak_lr"])
    assert capsys.readouterr().out == ""
