"""The command line: a table of commands. Results go to stdout, everything else to stderr.

torch is imported inside the commands, so that help answers at once. Every option can also be set in
feta.toml ([prune] sparsity = 0.95) or by the environment (FETA_PRUNE_SPARSITY=0.95).
"""

from __future__ import annotations

import sys

from cyclopts import App
from cyclopts.config import Env, Toml

from feta import __version__
from feta.cli import bounds, certify, methods, networks, prune, retrain
from feta.errors import FetaError
from feta_lab.cli import bench, data, demo, report, reproduce

app = App(
    name="feta",
    help="Prune trained neural networks without retraining: smaller files, accuracy kept.",
    version=__version__,
    config=(
        Env("FETA_", command=True),
        Toml("feta.toml", search_parents=True, must_exist=False),
    ),
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # main says that it was interrupted
)
app.command(demo.demo)
app.command(networks.train)
app.command(prune.prune)
app.command(retrain.retrain)
app.command(networks.evaluate, name="eval")
app.command(networks.info)
app.command(bounds.bounds)
app.command(certify.certify)
app.command(bench.bench)
app.command(reproduce.reproduce)
app.command(report.report)
app.command(methods.methods)
app.command(data.app, name="data")


def main() -> None:
    """Run a command; an error we know is one line on stderr and exit code 1, never a traceback."""
    try:
        app(sys.argv[1:])
    except FetaError as error:
        sys.stderr.write(f"feta: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("feta: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
