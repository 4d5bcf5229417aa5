"""What a program prints at its end; standard output that is lost, to `| head` or a full disk, ends nothing."""

import contextlib
import errno
import io
import os
import warnings

import pytest

from plstm.errors import UserError, command_line, run_script


@pytest.fixture(params=["no reader", "full disk"])
def lost(request, capfd):
    """A context manager: standard output that nothing can be written to. What capfd reads is standard error."""
    if request.param == "full disk":
        stream = open("/dev/full", "w")  # noqa: SIM115
    else:
        reader, writer = os.pipe()
        os.close(reader)
        stream = os.fdopen(writer, "w")
    return contextlib.redirect_stdout(stream)


def test_printing_goes_on_and_one_line_says_so(lost, capfd):
    with lost as stream, command_line("the run continues"):
        for _ in range(3):
            print("x" * 100_000, flush=True)
        os.write(stream.fileno(), b"from C")
        print("not flushed")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("standard output is lost (") and line.endswith("); the run continues")


def test_a_script_ends_as_it_would_have(lost, capfd):
    for returned in (None, 1):
        with lost, pytest.raises(SystemExit) as ended:
            run_script(lambda: print("x" * 100_000, flush=True) or returned)  # noqa: B023
        assert ended.value.code == returned
    assert capfd.readouterr().err == ""


def test_errors_of_a_script_are_one_line_and_a_closed_output_is_none(capfd):
    def fail(error):
        print("not seen")
        raise error

    full = OSError(errno.ENOSPC, "No space left on device", "results/a.md")
    for error, words in (
        (UserError("what is wrong"), "what is wrong"),
        (full, "results/a.md: No space left on device"),
    ):
        with contextlib.redirect_stdout(None), pytest.raises(SystemExit, match="2"):  # None, as after >&-
            run_script(lambda: fail(error))  # noqa: B023
        assert capfd.readouterr().err == f"error: {words}\n"


def test_a_warning_takes_one_line_and_so_does_ctrl_c(capfd):
    def main():
        warnings.showwarning("a\x1b picture", UserWarning, "module.py", 3)  # which pytest replaces in `warnings.warn`
        raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.showwarning = lambda *shown: print(warnings.formatwarning(*shown), end="")
        with pytest.raises(SystemExit, match="130"):
            run_script(main)
    assert capfd.readouterr() == ("warning: a\\x1b picture\n", "stopped\n")


def test_characters_that_an_encoding_lacks_are_escaped():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with contextlib.redirect_stdout(stream), command_line():
        print("✓ \udcff ü")
    assert stream.buffer.getvalue() == b"\\u2713 \\udcff \xfc\n"
