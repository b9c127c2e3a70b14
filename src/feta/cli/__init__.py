"""The command line: a table of commands. Results go to stdout, everything else to stderr.

Commands are imported when they are called, and torch inside of them, so that help answers at once. Every option
can also be set in feta.toml ([prune] sparsity = 0.95) or by the environment (FETA_PRUNE_SPARSITY=0.95).
Other packages add commands by entry points. The laboratory's are named here, so that their absence is explained.
"""

import os
import signal
import sys
import threading
import unicodedata
import weakref
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter
from cyclopts.config import Env, Toml

from feta import __version__
from feta.cli.typed import panel
from feta.errors import FetaError, one_line, shown, unknown_name
from feta.files.plain import from_toml, text_of
from feta.plugins import LAB, added

LAB_COMMANDS = ("demo", "train", "data", "bench", "reproduce", "report")
_LAB = Group("Laboratory", sort_key=1)


class Told(SystemExit):
    """A signal has told it to end."""


class Commands(App):
    """The table of commands, whose completion in bash falls back on names of files where cyclopts knows no words."""

    def generate_completion(self, **how: Any) -> str:
        return super().generate_completion(**how).replace("\ncomplete -F", "\ncomplete -o bashdefault -o default -F")


class Settings(Toml):
    """feta.toml in this folder or above, read with the limits of every file that may come from anywhere."""

    def _load_config(self, path: Path) -> dict[str, Any]:
        self.source = str(path)  # which may be in a folder above
        try:
            found = from_toml(text_of(path))
        except (OSError, ValueError) as error:
            raise CycloptsError(msg=f"{path} must be a file of settings in TOML, got {one_line(error)}") from error
        commands = {name for name in app if not name.startswith("-")} | set(LAB_COMMANDS)
        for name, value in found.items():
            if not isinstance(value, dict):
                raise CycloptsError(
                    msg=f"{path} must have its settings below a command, such as [prune], got {name!r}"
                )
            if name not in commands:
                raise CycloptsError(msg=str(unknown_name(f"command in {path}", name, commands)))
        return found


class Environment(Env):
    """Variables such as FETA_PRUNE_SPARSITY; one that no option of the command takes is a mistake and not nothing."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        taken = {
            self._convert_argument(commands, argument): argument.hint for argument in arguments if argument.parse
        }
        known, options = list(taken), tuple(f"{name}_" for name, hint in taken.items() if "dict" in str(hint))
        for name in sorted(os.environ) if commands else ():
            if name.startswith(self._prefix(commands)) and name not in known and not name.startswith(options):
                said, _, _ = str(unknown_name("environment variable", name, known)).partition(" Known:")
                raise CycloptsError(msg=said)
        super().__call__(app, commands, arguments)


app = Commands(
    name="feta",
    help="Prune trained neural networks without retraining: smaller and faster, with little accuracy lost.",
    help_epilogue="Every option can also be set by the environment (FETA_PRUNE_SPARSITY=0.95) or in a feta.toml.",
    default_parameter=Parameter(show_env_var=False),  # a third of every page of help
    version=__version__,
    config=(Environment("FETA_", command=True), Settings("feta.toml", search_parents=True, must_exist=False)),
    help_format="markdown",
    error_formatter=panel,
    suppress_keyboard_interrupt=False,  # main says that it was interrupted
)
app.command("feta.cli.prune:prune")
app.command("feta.cli.shrink:shrink")
app.command("feta.cli.retrain:retrain")
app.command("feta.cli.export:export")
app.command("feta.cli.networks:evaluate", name="eval")
app.command("feta.cli.networks:info")
app.command("feta.cli.bounds:bounds")
app.command("feta.cli.certify:certify")
app.command("feta.cli.speed:speed")
app.command("feta.cli.networks:methods")
app.register_install_completion_command(help="Have the shell complete commands and options of feta.")
for _name, _entry in added("feta.commands").items():
    app.command(_entry.value, name=_name, group=_LAB if _name in LAB_COMMANDS else None)


def main() -> None:
    """Run a command. An error is one line on stderr, never a traceback: exit code 1, or 70 for one of feta's code.

    FETA_DEBUG=1 shows the traceback of either.
    """
    _let_threads_sleep()
    _end_in_order()
    wanted = "".join(sys.argv[1:2])
    try:
        if wanted in LAB_COMMANDS and wanted not in added("feta.commands"):
            raise FetaError(f"'{wanted}' is a command of {LAB}")
        if wanted in ("", "--help", "-h"):  # a command that is not loaded has no line in the help
            for name in app:
                _ = app[name]
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / "feta.toml").is_dir():
                raise FetaError(f"feta.toml must be a file of settings, got a folder: {folder / 'feta.toml'}")
        for word in sys.argv[1:]:  # cyclopts shows them as they are
            if any(unicodedata.category(letter) == "Cc" for letter in word):
                raise FetaError(f"the command line must hold no control characters, got {shown(word)}")
        app(sys.argv[1:])
    except (KeyboardInterrupt, Told) as end:
        again = "--resume" in sys.argv or wanted in ("train", "reproduce", "bench")
        with suppress(OSError):  # the terminal may be gone
            sys.stderr.write(f"feta: interrupted{'; the same command goes on where it stopped' * again}\n")
        sys.exit(end.code if isinstance(end, Told) else 130)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        if os.environ.get("FETA_DEBUG", "") not in ("", "0"):
            raise
        from feta.cli.mishap import told

        line, code = told(error, sys.argv[1:])
        sys.stderr.write(f"feta: {line}\n")
        sys.exit(code)
    finally:
        _end_at_once()


def _end_in_order() -> None:
    """End on SIGTERM and SIGHUP as on an error: processes are stopped and unfinished files removed on the way out."""
    for number in _told_to_end():
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores one: so do we
            signal.signal(number, _end)


def _end_at_once() -> None:
    """There is nothing left to put in order: an error while Python itself ends would be a traceback."""
    for number in _told_to_end():
        if signal.getsignal(number) == _end:
            signal.signal(number, signal.SIG_DFL)


def _told_to_end() -> list[int]:
    return [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # not on every system


def _end(number: int, frame: FrameType | None) -> None:
    if _finalizing(frame):  # Python prints an error that is raised there, and goes on
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
        return
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise Told(128 + number)


def _finalizing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def _let_threads_sleep() -> None:
    """Have OpenMP's threads sleep while they wait: on a busy machine, threads that spin take each other's time.

    OpenMP reads this once, when torch is imported. Whoever has set either variable keeps what it gives.
    """
    settings = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    if "torch" not in sys.modules and not any(name in os.environ for name in settings):
        os.environ.update(settings)
