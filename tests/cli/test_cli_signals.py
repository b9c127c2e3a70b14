"""A command that is told to end ends in order: nothing is left, and the same command does it again."""

import os
import signal
import subprocess
import sys
import time

import pytest

# nohup has SIGHUP ignored, and a shell SIGINT in what it runs in the background, such as these tests.
SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from feta.cli import app, main
from feta.files.atomic import replacing

def wait():  # a signal that comes just before a long sleep would be heard after it
    for _ in range(6000):
        time.sleep(0.1)

@app.command
def slow(place: Path):
    with replacing(place) as part:
        part.write_text("half")
        print("writing", flush=True)
        wait()

sys.argv[0] = "feta"
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_nothing_is_left_of_a_file_that_was_being_written(tmp_path, name):
    number = getattr(signal, name)
    command = [sys.executable, "-c", SCRIPT, "slow", str(tmp_path / "place" / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        said = process.stderr.read()
    assert (process.returncode, said) == (128 + number, b"feta: interrupted\n")
    assert list((tmp_path / "place").iterdir()) == []


def test_what_nohup_ignores_stays_ignored(tmp_path):
    script = SCRIPT.replace("signal.SIGHUP, signal.SIG_DFL", "signal.SIGHUP, signal.SIG_IGN")
    command = [sys.executable, "-c", script, "slow", str(tmp_path / "place" / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM


def test_a_signal_after_the_work_is_no_traceback():
    """Python has things of its own to do when a command is over."""
    code = SCRIPT.replace(
        "@app.command", "import atexit\natexit.register(lambda: (print('over'), wait()))\n@app.command"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", code, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert b"over\n" in iter(process.stdout.readline, b"")
        process.terminate()
        said = process.stderr.read()
    assert (process.returncode, said) == (-signal.SIGTERM, b"")


DYING = "class Dying:\n    def __del__(self):\n        signal.raise_signal(signal.SIGTERM)\n\ndying = Dying\n\n"
FINAL = (
    "import weakref\nclass Dying: pass\n\ndef dying():\n    weakref.finalize(Dying(), signal.raise_signal, 15)\n\n"
)


@pytest.mark.parametrize("thing", [DYING, FINAL], ids=["del", "finalize"])
def test_a_signal_while_something_is_finalized_is_neither_lost_nor_a_traceback(tmp_path, thing):
    """Python prints what is raised there, and goes on."""
    code = SCRIPT.replace("        wait()", "        dying()\n        wait()").replace(
        "@app.command", f"{thing}@app.command"
    )
    command = [sys.executable, "-c", code, "slow", str(tmp_path / "place" / "file")]
    ended = subprocess.run(command, capture_output=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, b"feta: interrupted\n")
    assert list((tmp_path / "place").iterdir()) == []
