"""Train a small model for a long time, end it now and then, and see whether memory and speed stay flat.

    python scripts/soak.py --minutes 35            # writes results/soak/soak.json and .png

A run of train.py with evaluations, checkpoints and W&B offline is killed (SIGKILL and SIGTERM in turn) in the first
third of the time and started again by the same command; then it goes on undisturbed, until SIGTERM ends it.
Step time is what the process used of processors a step, so that other work on the machine matters less.
Exit status: 0 if all is flat and no step is missing or doubled, 1 if not, 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matplotlib.figure import Figure

from data.files import write_file
from plstm.errors import UserError, run_script
from plstm.training.environment import describe_environment
from plstm.training.tracking import read_metrics

ROOT = Path(__file__).resolve().parents[1]
LOG_EVERY, EVAL_EVERY = 50, 500
COMMAND = ["debug=smoke", "experiment=arrow/vit", "model.dim=32", "model.heads=2", "optim.epochs=1e6"]
COMMAND += [f"loop.log_every={LOG_EVERY}", f"loop.eval_every={EVAL_EVERY}", "loop.eval_splits=[val]"]
COMMAND += ["logger.mode=offline"]
SAMPLE_SECONDS = 10
# How much more the last quarter of the undisturbed part may need than its first, by medians.
MEMORY_RATIO, CPU_RATIO, FILES = 1.05, 1.25, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=35.0, help="how long (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=6, help="in the first third (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "soak", help="folder of the run, emptied first")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "soak" / "soak.json")
    arguments = parser.parse_args()
    if arguments.minutes < 1 or arguments.kills < 0:
        raise UserError("--minutes, --kills: give at least 1 minute, and no negative number of kills")
    if not Path("/proc/self/statm").exists():
        raise UserError("/proc: not there; the soak test reads the memory of processes from it, as Linux has it")
    shutil.rmtree(arguments.work, ignore_errors=True)
    samples, kills = soak(arguments.work, 60 * arguments.minutes, arguments.kills)
    checks = judge(samples, kills, arguments.work)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw(samples, kills, arguments.out.with_suffix(".png"))
    report = {
        "command": shlex.join(["python", "scripts/soak.py", *sys.argv[1:]]),
        "run": shlex.join(["python", "train.py", *COMMAND]),
        **describe_environment(ROOT),
        "checks": checks,
        "ended": kills,
        "samples": {name: [sample[name] for sample in samples] for name in samples[0]},
    }
    write_file(arguments.out, (json.dumps(report) + "\n").encode())
    for name, check in checks.items():
        print(f"{'ok  ' if check['ok'] else 'BAD '} {name}: {check['found']}")
    return 0 if all(check["ok"] for check in checks.values()) else 1


def soak(work: Path, seconds: float, count: int) -> tuple[list[dict], list[dict]]:
    """Runs, kills and watches. Returns what was sampled, and the kills: minute, signal, last logged step."""
    start = time.monotonic()
    due = [seconds / 3 * (n + 1) / count for n in range(count)]
    samples, kills, process = [], [], _start(work)
    while (now := time.monotonic() - start) < seconds:
        if due and now >= due[0]:
            due.pop(0)
            number = (signal.SIGKILL, signal.SIGTERM)[len(kills) % 2]
            kills.append({"minute": round(now / 60, 2), "signal": number.name, "step": _last_step(work)})
            _end(process, number)
            process = _start(work)
        time.sleep(SAMPLE_SECONDS)
        if process.poll() is not None:
            raise UserError(f"the run ended by itself, with status {process.returncode}; see {work}/output")
        if (sample := _sample(process.pid, _last_step(work))) and sample["step"]:
            samples.append({"minute": round((time.monotonic() - start) / 60, 2), "session": len(kills), **sample})
    kills.append({"minute": round(seconds / 60, 2), "signal": "SIGTERM", "step": _last_step(work)})
    _end(process, signal.SIGTERM)
    return samples, kills


def _start(work: Path) -> subprocess.Popen:
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "train.py"), *COMMAND]
    command += [f"paths.runs={work}/runs", f"paths.results={work}/results"]
    with open(work / "output", "a") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def _end(process: subprocess.Popen, number: signal.Signals) -> None:
    process.send_signal(number)
    status = process.wait(timeout=300)
    if status not in (-number, 128 + number):
        raise UserError(f"{number.name} ended the run with status {status}")


def _metrics(work: Path) -> Path | None:
    return next(work.glob("runs/*/metrics.jsonl"), None)


def _last_step(work: Path) -> int:
    path = _metrics(work)
    lines = [line for line in read_metrics(path) if line["split"] == "train"] if path else []
    return lines[-1]["step"] if lines else 0


def _sample(pid: int, step: int) -> dict | None:
    """Memory (MB) of the process and of its children together, processor seconds, threads, open files."""
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    tick = os.sysconf("SC_CLK_TCK")
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():  # the client of W&B is a child of a thread
            if task.name != str(pid):
                children += (task / "children").read_text().split()
        memory = [int(Path(f"/proc/{process}/statm").read_text().split()[1]) * page for process in (pid, *children)]
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None  # one of them has just ended
    return {
        "step": step,
        "memory_mb": round(memory[0], 1),
        "children_mb": round(sum(memory[1:]), 1),
        "cpu_seconds": (int(fields[11]) + int(fields[12])) / tick,
        "threads": int(fields[17]),
        "files": files,
        "load": round(os.getloadavg()[0], 2),
    }


def step_times(samples: list[dict]) -> list[tuple[float, float]]:
    """(minute, processor milliseconds a step), over at least EVAL_EVERY steps each: with evaluation and checkpoint."""
    found, first = [], None
    for sample in samples:
        if first is None or sample["session"] != first["session"]:
            first = sample
        elif sample["step"] - first["step"] >= EVAL_EVERY:
            used, steps = sample["cpu_seconds"] - first["cpu_seconds"], sample["step"] - first["step"]
            found.append((sample["minute"], 1000 * used / steps))
            first = sample
    return found


def judge(samples: list[dict], kills: list[dict], work: Path) -> dict[str, dict]:
    """The checks by name: whether each is met, and what was found."""
    last = [sample for sample in samples if sample["session"] == samples[-1]["session"]]
    settled = last[len(last) // 10 :]  # the first tenth allocates and compiles
    checks = {}

    def compare(name: str, values: list[float], ratio: float, more: float = 0.0) -> None:
        quarter = max(len(values) // 4, 1)
        before, after = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        found = f"{before:.4g} in the first quarter of the undisturbed part, {after:.4g} in the last"
        checks[name] = {"ok": bool(after <= ratio * before + more), "found": found}

    compare("memory of the run (MB)", [sample["memory_mb"] for sample in settled], MEMORY_RATIO)
    compare("memory of its children (MB)", [sample["children_mb"] for sample in settled], MEMORY_RATIO, more=5)
    compare("processor time (ms a step)", [value for _, value in step_times(settled)], CPU_RATIO)
    compare("threads", [sample["threads"] for sample in settled], 1, more=FILES)
    compare("open files", [sample["files"] for sample in settled], 1, more=FILES)
    lines = read_metrics(_metrics(work))
    steps = [line["step"] for line in lines if line["split"] == "train" and line["step"] % LOG_EVERY == 0]
    whole = steps == list(range(LOG_EVERY, steps[-1] + 1, LOG_EVERY))
    evaluated = [line["step"] for line in lines if line["split"] == "val"]
    whole &= evaluated == list(range(EVAL_EVERY, evaluated[-1] + 1, EVAL_EVERY))
    found = f"{steps[-1]:,} steps, {len(steps):,} log lines, {len(evaluated):,} evaluations, {len(kills) - 1} kills"
    checks["each step once"] = {"ok": whole, "found": found}
    return checks


def draw(samples: list[dict], kills: list[dict], path: Path) -> None:
    figure = Figure(figsize=(8, 6), layout="constrained")
    memory, cpu, steps = figure.subplots(3, 1, sharex=True)
    minutes = [sample["minute"] for sample in samples]
    memory.plot(minutes, [sample["memory_mb"] for sample in samples], ".", markersize=3, label="run")
    memory.plot(minutes, [sample["children_mb"] for sample in samples], ".", markersize=3, label="W&B client")
    memory.set(ylabel="resident memory (MB)", ylim=(0, None))
    memory.legend()
    cpu.plot(*zip(*step_times(samples), strict=True), ".", markersize=4)
    cpu.set(ylabel="CPU time a step (ms)", ylim=(0, None))
    steps.plot(minutes, [sample["step"] for sample in samples], ".", markersize=3)
    steps.set(ylabel="step logged", xlabel="minutes", ylim=(0, None))
    for axes in (memory, cpu, steps):
        for kill in kills[:-1]:
            axes.axvline(kill["minute"], color="0.7", linewidth=0.8, linestyle="-" if "KILL" in kill["signal"] else ":")
    memory.set_title("A run killed (lines), stopped (dotted) and resumed", fontsize=10)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run_script(main)
