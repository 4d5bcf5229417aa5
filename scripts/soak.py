"""Train a small model for a long time, end it now and then, and see whether memory and speed stay flat.

    python scripts/soak.py --minutes 35            # writes results/soak/soak.json, .png and .svg

A run of train.py with evaluations, checkpoints and W&B offline is killed (SIGKILL and SIGTERM in turn) in the first
third of the time and started again by the same command; then it continues undisturbed, until SIGTERM ends it.
Step time is the processor time of the process per step, so that other work on the machine matters less.
Exit status: 0 if all is flat and no step is missing or doubled, 1 if not, 2 for bad input.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from plstm.drawing import new_figure, save, style
from plstm.errors import UserError, run_script
from plstm.training.tracking import read_metrics
from scripts.common import ROOT, Parser, provenance, write_results

LOG_EVERY, EVAL_EVERY = 50, 500
COMMAND = ["debug=smoke", "experiment=arrow/vit", "model.dim=32", "model.heads=2", "optim.epochs=1e6"]
COMMAND += [f"loop.log_every={LOG_EVERY}", f"loop.eval_every={EVAL_EVERY}", "loop.eval_splits=[val]"]
COMMAND += ["logger.mode=offline"]
SAMPLE_SECONDS = 10
# How much more the last quarter of the undisturbed part may need than its first, by medians: ratio, and so much more.
LIMITS = {
    "memory_mb": (1.05, 0),
    "children_mb": (1.05, 5),
    "cpu_milliseconds_a_step": (1.25, 0),
    "threads": (1, 3),
    "files": (1, 3),
}
Sample = dict[str, Any]


def soak(work: Path, seconds: float, count: int) -> tuple[list[Sample], list[dict]]:
    """Runs, kills and watches. Returns the samples, and the kills: minute, signal, last logged step."""
    start = time.monotonic()
    due = [seconds / 3 * (n + 1) / count for n in range(count)] + [seconds]
    samples, kills, process = [], [], start_run(work)
    while due:
        time.sleep(SAMPLE_SECONDS)
        minute, step = round((time.monotonic() - start) / 60, 2), last_step(work)
        if process.poll() is not None:
            raise UserError(f"the run ended by itself, with status {process.returncode}; see {work}/output")
        if step and (used := resources(process.pid)):
            samples.append({"minute": minute, "session": len(kills), "step": step, **used})
        if time.monotonic() - start >= due[0]:
            due.pop(0)
            number = signal.SIGKILL if due and len(kills) % 2 == 0 else signal.SIGTERM
            kills.append({"minute": minute, "signal": number.name, "step": step})
            end_run(process, number)
            process = start_run(work) if due else process
    return samples, kills


def start_run(work: Path) -> subprocess.Popen:
    """Starts the run, or resumes it."""
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "train.py"), *COMMAND]
    command += [f"paths.runs={work}/runs", f"paths.results={work}/results"]
    with open(work / "output", "a") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def end_run(process: subprocess.Popen, number: signal.Signals) -> None:
    """Sends the signal and waits."""
    process.send_signal(number)
    status = process.wait(timeout=300)
    if status not in (-number, 128 + number):
        raise UserError(f"{number.name} ended the run with status {status}")


def logged(work: Path, split: str) -> list[int]:
    """The steps in the run's metrics of a split."""
    paths = work.glob("runs/*/metrics.jsonl")
    return [line["step"] for path in paths for line in read_metrics(path) if line["split"] == split]


def last_step(work: Path) -> int:
    """The last training step that the run logged, 0 before the first."""
    return max(logged(work, "train"), default=0)


def resources(pid: int) -> Sample | None:
    """Memory (MB) of the process and of its children together, processor seconds, threads, open files, and the load.

    None where one of the processes has just ended.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        children = sum(child.memory_info().rss for child in process.children(recursive=True))
        cpu, files = process.cpu_times(), process.num_fds()
        used = {"memory_mb": process.memory_info().rss / 1e6, "children_mb": children / 1e6, "files": files}
        return used | {
            "cpu_seconds": cpu.user + cpu.system,
            "threads": process.num_threads(),
            "load": os.getloadavg()[0],
        }
    except psutil.Error:
        return None


def step_times(samples: list[Sample]) -> list[tuple[float, float]]:
    """(minute, processor milliseconds a step), over at least EVAL_EVERY steps each: with evaluation and checkpoint."""
    found, first = [], None
    for sample in samples:
        if first is None or sample["session"] != first["session"]:
            first = sample
        elif (steps := sample["step"] - first["step"]) >= EVAL_EVERY:
            found.append((sample["minute"], 1000 * (sample["cpu_seconds"] - first["cpu_seconds"]) / steps))
            first = sample
    return found


def judge(samples: list[Sample], kills: list[dict], work: Path) -> dict[str, dict]:
    """The checks by name: whether each is met, and what was found."""
    last = [sample for sample in samples if sample["session"] == samples[-1]["session"]]
    settled, checks = last[len(last) // 10 :], {}  # the first tenth allocates and compiles
    series = {name: [sample[name] for sample in settled] for name in LIMITS if name in settled[0]}
    series["cpu_milliseconds_a_step"] = [value for _, value in step_times(settled)]
    for name, (ratio, more) in LIMITS.items():
        quarter = max(len(series[name]) // 4, 1)
        before, after = statistics.median(series[name][:quarter]), statistics.median(series[name][-quarter:])
        found = f"{before:.4g} in the first quarter of the undisturbed part, {after:.4g} in the last"
        checks[name] = {"ok": bool(after <= ratio * before + more), "found": found}
    steps = [step for step in logged(work, "train") if step % LOG_EVERY == 0]
    evaluated = logged(work, "val")
    whole = steps == list(range(LOG_EVERY, steps[-1] + 1, LOG_EVERY))
    whole &= evaluated == list(range(EVAL_EVERY, evaluated[-1] + 1, EVAL_EVERY))
    found = f"{steps[-1]:,} steps, {len(steps):,} log lines, {len(evaluated):,} evaluations, {len(kills) - 1} kills"
    return checks | {"each step once": {"ok": whole, "found": found}}


def draw(samples: list[Sample], kills: list[dict], path: Path) -> None:
    """Memory, processor time a step and steps over time, with the kills as lines (SIGTERM dotted)."""
    minutes = [sample["minute"] for sample in samples]
    with style():
        figure = new_figure(8, 6)
        memory, cpu, steps = figure.subplots(3, 1, sharex=True)
        for key, label in (("memory_mb", "run"), ("children_mb", "W&B client")):
            memory.plot(minutes, [sample[key] for sample in samples], ".", markersize=3, label=label)
        memory.legend()
        cpu.plot(*zip(*step_times(samples), strict=True), ".", markersize=4)
        steps.plot(minutes, [sample["step"] for sample in samples], ".", markersize=3)
        labels = ("resident memory (MB)", "CPU time a step (ms)", "step logged")
        for axes, label in zip((memory, cpu, steps), labels, strict=True):
            axes.set(ylabel=label, ylim=(0, None))
            for kill in kills[:-1]:
                dotted = ":" if kill["signal"] == "SIGTERM" else "-"
                axes.axvline(kill["minute"], color="0.7", linewidth=0.8, linestyle=dotted)
        steps.set(xlabel="minutes")
        save(figure, path)


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--minutes", type=float, default=35.0, help="how long")
    parser.add_argument("--kills", type=int, default=6, help="in the first third")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "soak", help="folder of the run, emptied first")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "soak" / "soak.json", help="the record")
    options = parser.parse_args()
    if options.minutes < 1 or options.kills < 0:
        raise UserError("--minutes, --kills: give at least 1 minute, and no negative number of kills")
    shutil.rmtree(options.work, ignore_errors=True)
    samples, kills = soak(options.work, 60 * options.minutes, options.kills)
    checks = judge(samples, kills, options.work)
    report = provenance() | {"run": shlex.join(["python", "train.py", *COMMAND]), "checks": checks, "ended": kills}
    report["samples"] = {name: [sample[name] for sample in samples] for name in samples[0]}
    write_results(options.out, report)
    draw(samples, kills, options.out.with_suffix(""))
    for name, check in checks.items():
        print(f"{'ok  ' if check['ok'] else 'BAD '} {name}: {check['found']}")
    return 0 if all(check["ok"] for check in checks.values()) else 1


if __name__ == "__main__":
    run_script(main)
