"""Test and measure everything on a GPU, in steps: `make gpu`. The same command again does what is missing.

    python scripts/gpu.py --minutes 28        # start nothing that would not fit into 28 minutes
    python scripts/gpu.py --small             # every step with small sizes, on a CPU too: to try it

A step is a process of its own, of at most nine minutes. Its results are one JSON in <out>/<device>/steps, its output is
in the folder logs beside it. A step with results is not repeated. One that failed leaves its error, and the next
command tries it again, after those that were not tried. A training that takes longer saves and goes on in the next
process. All results together are results/benchmarks/gpu-<device>.json, and records of trainings are where they always
are; those of --small stay in <out>. Nothing is downloaded.
Exit status: 0, 1 if a step failed, 2 for bad input, 130 if interrupted.
"""

import contextlib
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.errors import UserError
from plstm.files import write_file
from plstm.runs.overrides import as_override
from scripts.common import ROOT, Parser, machine_folder, positive, run_resumable, stop
from scripts.run_table import query_environment

LONGEST = 9.0  # minutes of a process
GRACE = 0.5  # of these, in which a training that is stopped saves
RESUMES = "saved; the same command resumes"  # what train.py says last when it is stopped
ERROR = re.compile(r"error: |[\w.]*(Error|Exception)\b|\d+ (failed|error)")


class Sizes(NamedTuple):
    sides: tuple[int, ...]  # pixels, of training steps
    batches: tuple[int, ...]
    grids: Mapping[int, int]  # nodes a side -> batch; all have as many nodes in all
    lengths: tuple[int, ...]  # tokens
    repeats: int  # over which medians are taken
    seeds: tuple[int, ...]  # of the trainings; the first comes before the operators
    overrides: tuple[str, ...]  # of training steps and trainings
    tests: tuple[str, ...]  # options of pytest


FULL = Sizes((192, 224), (256, 1024), {12: 128, 24: 32, 48: 8, 96: 2}, (2048, 8192), 10, (43, 44, 45), (), ())
CUT = ("debug=smoke", "model.dim=16", "model.heads=2")
SOME = ("--on-cpu", "-k", "test_slstm or test_dag or arrow/vit or languages/rnn")
SMALL = Sizes((48,), (8,), {2: 1}, (8,), 1, (43,), CUT, SOME)


class Step(NamedTuple):
    name: str
    minutes: float  # that it should take
    command: list[str]  # of Python; with --out it writes its own results, otherwise they are its last line


def plan(sizes: Sizes, folder: Path, with_kernels: bool, paths: list[str]) -> Iterator[Step]:
    """The steps, the most telling first. folder: of their results; paths: where trainings keep theirs."""

    def measurement(name: str, minutes: float, *words: object) -> Step:
        out = ["--out", str(folder / f"{name}.json")]
        return Step(name, minutes, ["scripts/benchmark.py", *map(str, words), *out])

    def benchmark(name: str, minutes: float, *words: object) -> Step:
        return measurement(name, minutes, *words, "--repeats", sizes.repeats)

    def trainings(seed: int) -> Iterator[Step]:
        for model, peak in (("plstm", "1e-4"), ("vit", "3e-4")):
            words = [f"experiment=arrow/{model}", f"optim.peak_lr={peak}", f"seed={seed}", "logger.mode=disabled"]
            yield Step(f"arrow-{model}-s{seed}", 3, ["train.py", *words, *sizes.overrides, *paths])

    yield measurement("device", 0.5, "device")
    for tests in ("operators", "models"):
        yield Step(f"test-{tests}", 5, ["-m", "pytest", "-q", "-m", "gpu", f"tests/gpu/test_{tests}.py", *sizes.tests])
    models = [("plstm", "parallel"), *[("plstm", "fused")] * with_kernels, ("vit", None)]
    for side, batch, (model, method) in itertools.product(sizes.sides, sizes.batches, models):
        words = [f"imagenet/{model}", f"data.size={side}", f"optim.batch_size={batch}"]
        words += [f"model.method={method}"] if method else []
        name = "-".join(map(str, filter(None, ("step", model, side, batch, method))))
        yield benchmark(name, 1.5, "step", *words, *sizes.overrides)
    yield from trainings(sizes.seeds[0])
    passes = ["--passes", "forward", "both"]
    for (grid, batch), structure in itertools.product(sizes.grids.items(), ("shared_incoming", "d_mode", "general")):
        words = ["operator", "--grids", grid, "--batch", batch, "--structures", structure, *passes]
        yield benchmark(f"grid-{grid}-{structure}", 3, *words)
    for length in sizes.lengths:
        up_to = ["--recurrent_up_to", length, "--attention_up_to", length]
        yield benchmark(f"tokens-{length}", 4, "sequences", "--lengths", length, *up_to, *passes)
    for seed in sizes.seeds[1:]:
        yield from trainings(seed)


def run(step: Step, log: Path, minutes: float) -> dict[str, Any] | None:
    """Its results, or its error; None if it is a training that saved and goes on. What takes longer is stopped."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *step.command]
    late = ""
    with (
        open(log, "wb") as file,
        subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, process_group=0) as child,
    ):
        try:
            for patience, number in ((minutes, signal.SIGINT), (GRACE, signal.SIGKILL)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(60 * patience)
                    break
                late = "took too long: "
                # Children of a killed process could keep the GPU.
                child.send_signal(number) if number == signal.SIGINT else os.killpg(child.pid, number)
        except KeyboardInterrupt:
            stop([child])
            raise
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["no output"]
    if child.returncode == 0:
        return read(Path(step.command[-1])) if "--out" in step.command else {"rows": [{"output": lines[-1]}]}
    if RESUMES in lines[-1]:
        return None
    error = next((line for line in reversed(lines) if ERROR.match(line)), lines[-1])
    return {"error": (late + error)[:300]}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, content: dict[str, Any]) -> None:
    write_file(path, (json.dumps(content, indent=2) + "\n").encode())


def report(steps: list[Step], folder: Path) -> list[dict[str, Any]]:
    """A row for each of the results so far, and for each step that failed."""
    rows = []
    for step in steps:
        found = read(folder / f"{step.name}.json")
        own = {"step": step.name, "commit": found.get("commit")}
        rows += [own | row for row in found.get("rows", [])]
        rows += [own | {"error": found["error"]}] if "error" in found else []
    return rows


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--minutes", type=positive, help="start nothing that would not fit into so many minutes")
    parser.add_argument("--small", action="store_true", help="cut every size; without a GPU, too")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/gpu", help="what steps leave, by device")
    options = parser.parse_args()
    end = time.monotonic() + 60 * (options.minutes or math.inf)
    environment = query_environment()
    hardware = environment["hardware"]
    on_gpu = hardware["platform"] == "gpu"
    if not on_gpu and not options.small:
        raise UserError("JAX finds no GPU here (make setup EXTRA=cuda installs CUDA); --small tries the steps without")
    device = re.sub(r"\W+", "-", hardware["device_kind"]).lower()
    place = options.out.resolve() / (f"small-{device}" if options.small else device)
    summary = place / "report.json" if options.small else machine_folder("results") / f"benchmarks/gpu-{device}.json"
    paths = [as_override(f"paths.{name}", str(place / name)) for name in ("runs", "results")] if options.small else []
    steps = [*plan(SMALL if options.small else FULL, place / "steps", on_gpu, paths)]
    failures = 0
    for step in sorted(steps, key=lambda step: "error" in read(place / f"steps/{step.name}.json")):
        path = place / f"steps/{step.name}.json"
        if "rows" in read(path):
            continue
        results = None
        while results is None and (left := (end - time.monotonic()) / 60) >= step.minutes + GRACE:
            print(f"{step.name}: python {shlex.join(step.command)}", flush=True)
            results = run(step, place / f"logs/{step.name}.log", min(left, LONGEST) - GRACE)
        if results is None:
            print(f"{step.name}: left for the next time; it needs {step.minutes:g} minutes", flush=True)
            continue
        write(path, {"commit": environment["commit"]} | results)
        write(summary, environment | {"command": "make gpu", "rows": report(steps, place / "steps")})
        if "error" in results:
            failures += 1
            print(f"{step.name}: failed, {results['error']}", flush=True)
    print(f"{failures} steps failed; results: {summary}")
    return 1 if failures else 0


if __name__ == "__main__":
    run_resumable(main)
