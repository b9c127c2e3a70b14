"""A process with everything imported that runs commands in forks of itself, so that a kill costs no second import.

    python -m soak._commands

reads a JSON object per line: words, the command line; place, its folder; step and signal, by which the command kills
itself just before the step-th call that changes a file or starts a process. It answers with the process's number and,
after another line, with how it ended. A command's errors go to PLACE.err, and the number of its calls to PLACE.steps.
"""

import atexit
import importlib
import json
import os
import pkgutil
import signal as signals
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

ABOUT_PATHS = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.truncate", "os.link", "os.symlink",
)  # fmt: skip
CALLS = (*ABOUT_PATHS, "fcntl.flock", "subprocess.Popen", "os.posix_spawn", "os.fork")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def main() -> None:
    for house in ("feta", "feta_lab"):
        package = importlib.import_module(house)
        for module in pkgutil.walk_packages(package.__path__, f"{house}."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):  # what needs a package that is not here
                    importlib.import_module(module.name)
    # Any program that makes an optimiser of torch imports this, which makes an empty folder torchinductor_USER among
    # the temporary ones, once for all: it is torch's cache and not ours to remove.
    importlib.import_module("torch._dynamo")
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _command(**request)
        print(pid, flush=True)
        sys.stdin.readline()  # until then its number stays its own: it may be killed by it
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _command(words: list[str], place: str, step: int = 0, signal: int = 0) -> None:
    """Become the command: its own session, by which its processes are known, its own folder, its own errors."""
    os.setsid()
    for number in (signals.SIGTERM, signals.SIGHUP):
        signals.signal(number, signals.SIG_DFL)  # nohup has them ignored
    signals.signal(signals.SIGINT, signals.default_int_handler)
    os.chdir(place)
    os.environ["TMPDIR"] = f"{place}/tmp"
    tempfile.tempdir = None
    tempfile.gettempdir()  # Python tries the folder out with a file of its own, which a kill just then would leave
    nowhere, said = os.open(os.devnull, os.O_RDWR), os.open(f"{place}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, file in enumerate((nowhere, nowhere, said)):
        os.dup2(file, number)
    code = 70
    try:
        code = _ended(words, place, step, signal)
        atexit._run_exitfuncs()
    except SystemExit as end:  # a signal while it ends
        code = int(str(end.code))
    finally:
        os._exit(code)


def _ended(words: list[str], place: str, step: int, signal: int) -> int:
    """Run the command; its exit code."""
    counted, code = _count(place, step, signal), 0
    try:
        sys.argv = ["feta", *words]
        importlib.import_module("feta.cli").main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 70
    Path(f"{place}.steps").write_text(str(counted[0]))
    return code


def _count(place: str, step: int, signal: int) -> list[int]:
    """Count the calls that change something below a place, and end this process at the one that is asked for."""
    counted = [0]

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            matters = _below(place, path) and bool(flags & WRITING if isinstance(flags, int) else "w" in str(mode))
        else:
            matters = event in CALLS and (event not in ABOUT_PATHS or _below(place, arguments[0]))
        if matters:
            called()

    def called() -> None:
        counted[0] += 1
        if counted[0] == step:
            os.kill(os.getpid(), signal)

    def wrapped(call: Any) -> Any:
        def instead(*arguments: Any) -> Any:
            called()
            return call(*arguments)

        return instead

    os.write, os.fsync = wrapped(os.write), wrapped(os.fsync)  # these two are not heard of otherwise
    sys.addaudithook(heard)
    return counted


def _below(place: str, path: Any) -> bool:
    """Whether a path may lie below a place; one without a root does, since the place is where the command runs."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "/"
    return not text.startswith("/") or text.startswith(place)


if __name__ == "__main__":
    main()
