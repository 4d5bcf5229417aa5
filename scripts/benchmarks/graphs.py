"""An epoch of the graph models, evaluation included: its time on each data set, and compilation."""

from collections.abc import Iterator
from typing import Any

from plstm.runs.programs import compose_experiment
from plstm.tasks import TASKS
from plstm.training.evaluation import evaluate
from plstm.training.steps import make_predict
from scripts.benchmarks.harness import Row, Subject, alternate, option, timing, wall_seconds
from scripts.benchmarks.models import Training

MODELS = ("plstm", "gin", "gat", "gcn", "lstm", "mpnn")


class Epochs:
    """A model in training; each call trains an epoch of the first fold, and evaluates it as a run does."""

    def __init__(self, model: str, data_set: str):
        config = compose_experiment(f"graphs/{model}", f"data.name={data_set}")
        task, self._batch_size = TASKS[config.task](config), config.optim.batch_size
        self._training = Training(task.build_model(0), config.optim, task.loss, self._batch_size)
        self._measure = make_predict(self._training.graphdef, task.metrics)
        self._batches = task.batches(self._training.layout).from_step(0)
        self._splits = [task.split(name) for name in ("val", "test")]
        self.steps = task.steps_per_epoch
        self.first_epoch_seconds = wall_seconds(self)

    def __call__(self) -> Any:
        training = self._training
        for _ in range(self.steps):
            metrics = training.step(next(self._batches))
        for split in self._splits:
            evaluate(self._measure, training.state.weights, split, self._batch_size, training.layout.place_rows)
        return metrics


def measure(options: Any) -> Iterator[Row]:
    """Epochs of the graph models on each data set, evaluation included; the models of a set take turns."""
    for data_set in options.sets:
        epochs = {model: Epochs(model, data_set) for model in options.models}
        for model, seconds in alternate(epochs, options.repeats).items():
            row = timing(seconds)
            compiling = epochs[model].first_epoch_seconds - row["median_seconds"]
            yield {"set": data_set, "model": model, "steps": epochs[model].steps, **row, "compile_seconds": compiling}


SETS = option(["MUTAG"], "of TUDataset", str)
SUBJECTS = {"graphs": Subject(measure, {"--sets": SETS, "--models": option(list(MODELS), "", str, choices=MODELS)})}
