import signal
import subprocess
import sys
import time

import pytest

from scripts.common import ROOT

SAVES = """
import signal, sys, time
from scripts.common import run_resumable

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

def main():
    try:
        print("training", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("saved", flush=True)
        raise

run_resumable(main, said="stopped\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM], ids=lambda number: number.name)
def test_a_terminal_that_hangs_up_twice_is_one_interruption(number):
    """As bash's does; the second would end the saving."""
    with subprocess.Popen([sys.executable, "-c", SAVES], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "training\n"
        child.send_signal(number)
        time.sleep(0.1)
        child.send_signal(number)
        assert child.communicate(timeout=30)[0] == "saved\nstopped\n"
    assert child.returncode == 130
