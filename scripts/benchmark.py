"""Time forms of one computation against each other: in one run, in turns, so that neighbours disturb all alike.

    python scripts/benchmark.py operator --grids 12 24            # the 2-D operator in each of its forms
    python scripts/benchmark.py sequences                         # the sequence operators, beside attention
    python scripts/benchmark.py steps arrow/plstm arrow/vit "arrow/plstm model.remat=true"      # training steps
    python scripts/benchmark.py steps arrow/plstm --against /tmp/before     # a `git worktree` of an older commit
    python scripts/benchmark.py step imagenet/plstm optim.batch_size=1024   # one training step alone, for GPUs
    python scripts/benchmark.py data                              # augmented views on one core

Prints a line a form and writes outputs/benchmarks/<subject>-<backend>.json, or --out: every single time and its ratio
to the first form, with the command, the commit, the versions and the machine. The pages quote those in
results/benchmarks. Exit status: 0, or 2 for bad input.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from data import decoding
from data.augment.recipes import RECIPES
from data.augment.views import augment, view_rng
from plstm.config import Config
from plstm.errors import UserError, first_line, run_script
from plstm.nn.sequence import causal_attention
from plstm.ops.delta_rule import gated_delta_rule
from plstm.ops.grid import FORMS, STRUCTURES, GridGates, plstm2d
from plstm.ops.grid.chunkwise import chunkwise
from plstm.ops.grid.matrix import by_matrix
from plstm.ops.mlstm import mlstm
from plstm.ops.sequence import plstm1d_tracking
from plstm.ops.slstm import slstm
from plstm.ops.ssd import ssd
from plstm.runs.compose import compose_experiment
from plstm.tasks import TASKS
from plstm.tasks.programs import compile_programs
from plstm.training.steps import init_state
from scripts.common import (
    IMAGE_TASKS,
    ONE_THREAD,
    ROOT,
    Parser,
    batch_shapes,
    planned_bytes,
    positive,
    write_results,
)
from scripts.make_photos import draw, encode

Row = dict[str, Any]
HEADS = 3  # of pLSTM-Vis-T
DIM = 64


# ---------------------------------------------------------------------- the harness
def compare(forms: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Row]:
    """Times every form once a round, after a round to warm up; each form is a function that returns seconds.

    `over_first` is the median over the rounds of a form's time over the first form's.
    """
    rounds = [{name: measure() for name, measure in forms.items()} for _ in range(repeats + 1)][1:]
    first = next(iter(forms), None)
    found = {}
    for name in forms:
        seconds = [times[name] for times in rounds]
        ratio = statistics.median(times[name] / times[first] for times in rounds)
        found[name] = {"median_seconds": statistics.median(seconds), "over_first": ratio, "seconds": seconds}
    return found


def wall_seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def compile_program(function: Any, arguments: tuple) -> tuple[Callable, Row]:
    """The executable, the seconds of its compilation and the bytes it needs on a device."""
    start = time.perf_counter()
    run = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    return run, {"compile_seconds": seconds, "memory_bytes": planned_bytes(run)}


def forward(operator: Callable, *arguments: Any) -> Any:
    return operator(*arguments)


def both(operator: Callable, *arguments: Any) -> Any:
    """Output and gradients of every argument, for a cotangent of ones."""
    output, backward = jax.vjp(operator, *arguments)
    return output, backward(jnp.ones_like(output))


PASSES = {"forward": forward, "both": both}


def compare_operators(
    operators: Mapping[str, tuple[Callable, tuple]], passes: Sequence[str], repeats: int
) -> Iterator[Row]:
    """Rows of {name: (operator, arguments)} in each of `passes`; of a form that fails here, as where it takes more
    memory than there is, the error."""
    for one in passes:
        runs = {}
        reports = {}
        for name, (operator, arguments) in operators.items():
            try:
                program, reports[name] = compile_program(partial(PASSES[one], operator), arguments)
                jax.block_until_ready(program(*arguments))
            except Exception as error:  # whatever a backend raises; the other forms are worth having
                yield {"form": name, "passes": one, "error": first_line(error)}
            else:
                runs[name] = partial(wall_seconds, partial(program, *arguments))
        for name, times in compare(runs, repeats).items():
            yield {"form": name, "passes": one, **reports[name], **times}


# ---------------------------------------------------------------------- operators
def draw_operator_inputs(structure: str, grid: int, batch: int, heads: int = HEADS, dim: int = DIM) -> tuple:
    """q, k, v, gates and direct of `plstm2d`, float32, with transitions near criticality."""
    keys = iter(jax.random.split(jax.random.key(0), 16))
    lead = (batch, heads, grid, grid)
    shape = (batch, heads, 4, grid, grid)
    q, k, v = (jax.random.normal(next(keys), (*lead, dim)) for _ in range(3))
    decay_l, decay_u = jax.random.uniform(next(keys), (2, *shape), minval=0.9)
    angle_l, angle_u = jax.random.uniform(next(keys), (2, *shape))
    s_r, s_d, m_l, m_u = jax.random.uniform(next(keys), (4, *shape))
    if structure == "shared_incoming":
        decay_u = decay_l
        angle_u = angle_l
        m_u = m_l
    transitions = (decay_l * angle_l, decay_u * angle_u, decay_l * (1 - angle_l), decay_u * (1 - angle_u))
    if structure == "d_mode":
        transitions = (decay_l, jnp.zeros(shape), decay_l, decay_u)
    return q, k, v, GridGates(s_r, s_d, *transitions, m_l, m_u), jax.random.uniform(next(keys), lead)


def measure_operator(options: argparse.Namespace) -> Iterator[Row]:
    """The 2-D operator in each method and form of its gating matrix, and `chunkwise` with blocks of other sizes. `at
    once` is `auto` without chunks."""
    methods = ["auto", "chunkwise", "recurrent"] + ["fused"] * (jax.default_backend() == "gpu")
    for structure, grid in itertools.product(options.structures, options.grids):
        forms = {method: partial(plstm2d, structure=structure, method=method) for method in methods}
        for form in FORMS[structure]:
            if form != "cpu" or jax.default_backend() == "cpu":
                forms[form] = partial(by_matrix, structure=structure, form=form)
        if jax.default_backend() == "cpu":  # others take no chunks
            forms["at once"] = partial(by_matrix, structure=structure, form="auto", chunks=1)
        if options.forms:
            forms = {name: form for name, form in forms.items() if name in options.forms}
        forms |= {f"block {side}": partial(chunkwise, structure=structure, block=side) for side in options.blocks}
        inputs = draw_operator_inputs(structure, grid, options.batch)
        chosen = {name: (form, inputs) for name, form in forms.items()}
        for row in compare_operators(chosen, options.passes, options.repeats):
            yield {"structure": structure, "grid": grid, "batch": options.batch, **row}


TRACK = 2  # the side of pLSTM's transitions
CHUNKED = {operator.__name__: operator for operator in (mlstm, ssd, gated_delta_rule, plstm1d_tracking)}
SEQUENCES = (*CHUNKED, "slstm")


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return causal_attention(*(part.swapaxes(1, 2) for part in (q, k, v)))


def draw_sequence_inputs(name: str, batch: int, heads: int, length: int, dim: int) -> tuple:
    """An operator's arguments, float32, with gates as layers have them at the start."""
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), (batch, heads, length, *shape))

    def unit(x: jax.Array) -> jax.Array:
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    if name == "slstm":
        gates = (jax.random.normal(next(keys), (batch, length, heads, dim)) for _ in range(4))
        return *gates, 0.1 * jax.random.normal(next(keys), (heads, dim, 4, dim))
    if name == "plstm1d_tracking":
        sides = ((TRACK, 1, TRACK), (TRACK, 1, TRACK), (TRACK, 1, 1, TRACK))
        source, mark, direct = (jax.nn.sigmoid(normal(*shape)) for shape in sides)
        inputs = normal(dim, 1), normal(dim, 1), normal(dim // TRACK, TRACK)
        return *inputs, source, normal(TRACK, TRACK) / (2 * TRACK), mark, direct
    q, k, v = (normal(dim) for _ in range(3))
    if name == "ssd":
        dt = jax.nn.softplus(normal() - 3).swapaxes(1, 2)
        return v.swapaxes(1, 2), dt, jnp.linspace(1, 16, heads), k[:, 0], q[:, 0]
    if name == "gated_delta_rule":
        return unit(q), unit(k), v, -0.1 * jax.nn.softplus(normal()), 2 * jax.nn.sigmoid(normal())
    return (q, k, v) if name == "attention" else (q, k, v, normal(), normal() + 3)


def measure_sequences(options: argparse.Namespace) -> Iterator[Row]:
    """The sequence operators in chunks, step by step, and beside our attention, each up to its longest length."""
    for name, length in itertools.product(options.operators, options.lengths):
        inputs = draw_sequence_inputs(name, options.batch, 2, length, DIM)
        forms = {}
        if name in CHUNKED:
            forms["chunkwise"] = (partial(CHUNKED[name], method="chunkwise"), inputs)
        if length <= options.recurrent_up_to:
            forms["recurrent"] = (partial(CHUNKED[name], method="recurrent") if name in CHUNKED else slstm, inputs)
        if length <= options.attention_up_to:
            forms["attention"] = (attention, draw_sequence_inputs("attention", options.batch, 2, length, DIM))
        for row in compare_operators(forms, options.passes, options.repeats):
            yield {"operator": name, "length": length, **row}


# ---------------------------------------------------------------------- training steps
STEPS = 10  # of which the fastest counts


def measure_steps(options: argparse.Namespace) -> Iterator[Row]:
    """Training steps on one thread, each form an experiment with its overrides in a process of its own."""
    folders = {"here": ROOT}
    if options.against:
        asked = subprocess.run(["git", "-C", options.against, "rev-parse", "HEAD"], capture_output=True, text=True)
        if asked.returncode:
            raise UserError(f"--against {options.against}: no checkout ({asked.stderr.strip()})")
        folders[asked.stdout.strip()] = Path(options.against)
    runs = {}
    reports = {}
    for experiment, (commit, folder) in itertools.product(options.experiments, folders.items()):
        name = f"{experiment} ({commit})"
        command = [sys.executable, "scripts/benchmark.py", "serve", *experiment.split()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=folder, env=os.environ | ONE_THREAD, **pipes)
        reports[name] = {"experiment": experiment, "commit": commit, **_read_answer(process)}
        runs[name] = process
    times = compare({name: partial(_ask, process) for name, process in runs.items()}, options.repeats)
    for name, process in runs.items():
        process.communicate()
        yield reports[name] | times[name]


def _read_answer(process: subprocess.Popen) -> Any:
    answer = process.stdout.readline()
    if not answer:
        raise UserError(f"{' '.join(process.args[3:])}: cannot be run; the reason stands above")
    return json.loads(answer)


def _ask(process: subprocess.Popen) -> float:
    print(file=process.stdin, flush=True)
    return _read_answer(process)


def prepare_step(config: Config) -> tuple[Callable[[], None], Row]:
    """A function that takes a training step and waits for it, and a report of the compiled step."""
    task = TASKS[config.task](config)
    programs = compile_programs(task, task.plan())
    state = programs.layout.place_state(init_state(task.build_model(0), programs.optimizer))
    if config.task in IMAGE_TASKS:  # random images do, without the data set
        rng = np.random.default_rng(0)
        shapes = batch_shapes(task).items()
        batch = programs.layout.place_rows(
            {name: rng.integers(2, size=leaf.shape, dtype=leaf.dtype) for name, leaf in shapes}
        )
    else:
        batch = next(task.batches(programs.layout).from_step(0))
    key = jax.random.key(0)
    step, report = compile_program(programs.step, (state, batch, key))

    def take_step() -> None:
        nonlocal state
        state, _metrics = jax.block_until_ready(step(state, batch, key))

    return take_step, report


def serve(options: argparse.Namespace) -> None:
    """Prints a report of the compiled step; then, for each line of standard input, the seconds of the fastest step."""
    experiment, *overrides = options.experiment
    take_step, report = prepare_step(compose_experiment(experiment, *overrides))
    print(json.dumps(report), flush=True)
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    for _ in sys.stdin:
        seconds = []
        for _ in range(STEPS):
            start = clock()
            take_step()
            seconds.append(clock() - start)
        print(min(seconds), flush=True)


def measure_step(options: argparse.Namespace) -> Iterator[Row]:
    """One training step alone: wall time, peak memory, operations as counted (three forward passes)."""
    config = compose_experiment(options.experiment, *options.overrides)
    take_step, report = prepare_step(config)
    (times,) = compare({"step": partial(wall_seconds, take_step)}, options.repeats).values()
    seconds = times["median_seconds"]
    batch = config.optim.batch_size
    flops = TASKS[config.task](config).flops()
    memory = jax.devices()[0].memory_stats() or {}
    yield {
        "experiment": options.experiment,
        "overrides": options.overrides,
        "batch": batch,
        **report,
        "peak_bytes": memory.get("peak_bytes_in_use"),
        "examples_per_second": batch / seconds,
        "teraflops": flops and 3 * flops * batch / seconds * 1e-12,
        "median_seconds": seconds,
        "seconds": times["seconds"],
    }


def measure_device(options: argparse.Namespace) -> Iterator[Row]:
    """What JAX finds here: its devices with their memory, and the driver."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    driver = subprocess.run(asked, capture_output=True, text=True).stdout if shutil.which(asked[0]) else ""
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")  # JAX's pool, three quarters of the memory
        yield {"device": device.device_kind, "pool_bytes": limit, "drivers": driver.splitlines()}


# ---------------------------------------------------------------------- augmented views of ImageNet-like photographs
SHAPE = (500, 375)  # of a typical training image, as are its bytes
BYTES = 87_000
SIZES = {"deit3": 192}  # the recipes' resolutions; the others' is 224


def make_photograph(number: int) -> bytes:
    """A JPEG of SHAPE and about BYTES, chroma halved both ways."""
    picture = draw(number, np.random.default_rng(number)).resize(SHAPE, Image.Resampling.BICUBIC)
    files = (encode(picture, quality, subsampling=2) for quality in range(70, 98, 3))
    return min(files, key=lambda content: abs(len(content) - BYTES))


def seconds_of_views(recipe: str, decoder: str, contents: list[bytes]) -> float:
    """Processor seconds of decoding the images and making a recipe's views of each."""
    start = time.process_time()
    with mock.patch.object(decoding, "simplejpeg", decoding.simplejpeg if decoder == "simplejpeg" else None):
        for index, content in enumerate(contents):
            picture = decoding.decode(content)
            for view in range(RECIPES[recipe].repeats):
                augment(picture, SIZES.get(recipe, 224), RECIPES[recipe], view_rng(0, 0, index, view))
    return time.process_time() - start


def measure_data(options: argparse.Namespace) -> Iterator[Row]:
    """Augmented views a second and core, by recipe and by each decoder that is installed."""
    contents = [make_photograph(number) for number in range(options.images)]
    decoders = ["pillow"] + ["simplejpeg"] * (decoding.simplejpeg is not None)
    for recipe in RECIPES:
        cases = {decoder: partial(seconds_of_views, recipe, decoder, contents) for decoder in decoders}
        for decoder, row in compare(cases, options.repeats).items():
            views = RECIPES[recipe].repeats * len(contents)
            rate = views / row["median_seconds"]
            yield {"recipe": recipe, "decoder": decoder, "views_per_second": rate, **row}


# ---------------------------------------------------------------------- the command line
SUBJECTS = {
    "operator": measure_operator,
    "sequences": measure_sequences,
    "steps": measure_steps,
    "step": measure_step,
    "data": measure_data,
    "device": measure_device,
}


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    commands = parser.add_subparsers(dest="subject", required=True, metavar="subject")
    server = commands.add_parser("serve", description="Takes steps when asked, for `steps` alone.")
    server.add_argument("experiment", nargs="+")
    subjects = {
        name: commands.add_parser(name, description=measure.__doc__, help=measure.__doc__)
        for name, measure in SUBJECTS.items()
    }
    for name, command in subjects.items():
        if name != "device":
            command.add_argument("--repeats", type=positive, default=7, help="rounds, over which medians are taken")
        command.add_argument("--out", type=Path, help="(default: outputs/benchmarks/<subject>-<backend>.json)")
    several = {"nargs": "+"}
    subjects["operator"].add_argument("--grids", type=positive, default=[12, 24], help="nodes a side", **several)
    subjects["operator"].add_argument("--structures", choices=STRUCTURES, default=list(STRUCTURES), **several)
    names = {"auto", "chunkwise", "recurrent", "fused", "at once"}.union(*FORMS.values())
    subjects["operator"].add_argument("--forms", choices=sorted(names), help="these alone", **several)
    subjects["operator"].add_argument("--blocks", type=positive, default=[], help="sides of chunkwise's", **several)
    subjects["operator"].add_argument("--batch", type=positive, default=8)
    for name in ("operator", "sequences"):
        subjects[name].add_argument("--passes", choices=PASSES, default=["both"], **several)
    subjects["sequences"].add_argument("--operators", choices=SEQUENCES, default=list(SEQUENCES), **several)
    subjects["sequences"].add_argument("--lengths", type=positive, default=[512, 2048, 8192], **several)
    subjects["sequences"].add_argument("--batch", type=positive, default=4)
    for form, most in (("recurrent", 2048), ("attention", 4096)):  # attention's weights need 4 GiB at 8,192
        subjects["sequences"].add_argument(f"--{form}_up_to", type=positive, default=most, help="tokens")
    subjects["steps"].add_argument("experiments", help='"experiment key=value ...", one argument a form', **several)
    subjects["steps"].add_argument("--against", help="the folder of another checkout of this repository")
    subjects["step"].add_argument("experiment", help="a file of configs/experiment")
    subjects["step"].add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides")
    subjects["data"].add_argument("--images", type=positive, default=64)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.subject == "serve":
        serve(options)
        return
    load = os.getloadavg()[0]
    rows = []
    for row in SUBJECTS[options.subject](options):
        rows.append(row)
        kept = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        print(", ".join(f"{key} {value}" for key, value in kept.items() if key != "seconds"), flush=True)
    if not rows:
        raise UserError(f"{options.subject}: nothing to measure; none of what was asked for runs on this machine")
    path = options.out or ROOT / f"outputs/benchmarks/{options.subject}-{jax.default_backend()}.json"
    write_results(path, {"load_average_at_start": load, "rows": rows})
    print(f"Written to {path}")


if __name__ == "__main__":
    run_script(main)
