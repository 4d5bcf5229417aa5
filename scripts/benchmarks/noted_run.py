"""Does what train.py does, then prints a JSON line of the times at which it came to its parts."""

import json
import time
from typing import Any

import train
from plstm.runs import session

times = {"the imports": time.time()}


def note(name: str, owner: Any, function: str) -> None:
    """Notes when `function` is called for the first time."""
    original = getattr(owner, function)

    def noting(*arguments: Any, **options: Any) -> Any:
        times.setdefault(name, time.time())
        return original(*arguments, **options)

    setattr(owner, function, noting)


if __name__ == "__main__":
    note("the config", train, "start")
    note("the data", session, "compile_programs")
    note("the model", session, "Checkpoints")
    note("the first step", session.MetricAverager, "add")
    note("the last checkpoint", train.Interrupt, "leave_at_once")
    train.run_entry(train.main, train.Config)
    print(json.dumps(times))
