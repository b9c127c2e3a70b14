"""What is said of an error: one line of our own, or for one that nobody foresaw a line and a report of it."""

import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence

from feta import __version__
from feta.errors import FetaError, one_line, printable, shown

UNFORESEEN = 70  # EX_SOFTWARE of sysexits.h
OWNERS = ("", "certify", "Retraining", "Refinement")  # whose arguments are options of a command
OTHERS = {"Retraining.max_epochs": "--epochs", "Refinement.steps": "--refine-steps"}  # by another name


def told(error: Exception, words: Sequence[str]) -> tuple[str, int]:
    """A line for stderr, and the exit code. What no one foresaw is written to a file in the temporary folder.

    words: the command line.
    """
    if isinstance(error, FetaError):
        return printable(_as_typed(str(error), words), lines=True), 1
    if isinstance(error, OSError):  # a full disk, a file without permission
        place = "" if error.filename is None else f" '{printable(str(error.filename))[:200]}'"
        return f"cannot read or write{place}: {printable(error.strerror or str(error))}", 1
    if isinstance(error, UnicodeEncodeError):  # a name that is not text
        return f"names must be text that files can have, got {shown(str(error.object))}", 1
    if isinstance(error, MemoryError) or ("allocate" in (said := one_line(error)).lower() and "memory" in said):
        return f"there is not enough memory for this, got {printable(one_line(error))}; take fewer samples", 1
    line = f"{printable(one_line(error))}; this is a fault of feta's"
    try:
        return f"{line}, its report is in {_report(error, words)}", UNFORESEEN
    except OSError as refused:
        return f"{line}, run again with FETA_DEBUG=1 to see where (no report: {refused.strerror})", UNFORESEEN


def _as_typed(line: str, words: Sequence[str]) -> str:
    """A message about an argument, as one about the option that was typed: layers must … is --layers must …"""
    options = {word.partition("=")[0] for word in words}
    if line.startswith("checkpoint ") and "--resume" in options:
        return f"--resume: the {line}"
    where, _, rest = line.partition(" ")
    owner, _, name = where.rpartition(".")
    option = OTHERS.get(where, f"--{name.replace('_', '-')}")
    if (words[:1], where) == (["shrink"], "share"):  # of its default, too
        options.add(option)
    named = option in options and owner in OWNERS and rest.startswith("must ")
    return f"{option} {rest}" if named else line


def _report(error: Exception, words: Sequence[str]) -> str:
    torch = sys.modules.get("torch")
    about = (
        f"feta {__version__}, Python {platform.python_version()}",
        f"torch {getattr(torch, '__version__', 'not used')}",
    )
    text = [time.strftime("%Y-%m-%d %H:%M:%S"), *about, platform.platform(), "feta " + " ".join(map(repr, words)), ""]
    trace = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile(
        "w", prefix="feta-report-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write("\n".join(text) + "\n" + trace)
    return file.name
