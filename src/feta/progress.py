"""What a long call shows of itself on stderr, without another package.

a terminal     one line that is drawn over itself
a notebook     a bar in the cell's output
elsewhere      a line now and then, so that a log says that it goes on and is not flooded
"""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from feta.errors import printable
from feta.pages.words import duration, in_html

OFTEN, SELDOM = 0.1, 10.0  # seconds between two drawings, and between two lines
WIDTH = 20  # of a bar


class Progress:
    """A bar inside a `with`; `update` takes what has changed. Of several processes the first one shows it."""

    def __init__(self, title: str, show: bool = True, total: float | None = None) -> None:
        self.title, self.total, self.done, self.note = title, total, 0.0, ""
        self.show = show and not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0)
        self.cell: Any = None  # of a notebook
        self.terminal = False

    def __enter__(self) -> "Progress":
        self.started = self.last = time.monotonic()
        if self.show:
            self.terminal = sys.stderr.isatty()
            if _in_notebook():
                self.cell = sys.modules["IPython.display"].display(self._shown(), raw=True, display_id=True)
            elif self.terminal:
                self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self.cell is not None:
            self._draw()
        elif self.terminal:
            self._draw()
            sys.stderr.write("\n")

    def update(
        self,
        completed: float | None = None,
        total: float | None = None,
        note: str | None = None,
        description: str | None = None,
    ) -> None:
        """What has changed: how much is done and of how much, a word on what is being done, another title."""
        self.done = self.done if completed is None else completed
        self.total = self.total if total is None else total
        self.note = self.note if note is None else printable(note)
        self.title = self.title if description is None else printable(description)
        now = time.monotonic()
        drawn = self.terminal or self.cell is not None
        if self.show and now - self.last >= (OFTEN if drawn else SELDOM):
            self.last = now
            if drawn:
                self._draw()
            else:
                sys.stderr.write(f"feta: {self._text()}\n")
                sys.stderr.flush()

    def followed(
        self, callback: Callable[[Any], None] | None, read: Callable[[Any], Mapping[str, Any]]
    ) -> Callable[[Any], None] | None:
        """A callback that keeps the bar up to date and then tells the user's own; `read` makes fields of an event."""
        if not self.show:
            return callback

        def tell(event: Any) -> None:
            self.update(**read(event))
            if callback is not None:
                callback(event)

        return tell

    def _draw(self) -> None:
        if self.cell is not None:
            self.cell.update(self._shown(), raw=True)
            return
        text = f"{self._bar()}{self._text()}"[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def _text(self) -> str:
        part = f"{self.done:.3g} of {self.total:.3g}" if self.total else ""
        spent = duration(time.monotonic() - self.started)
        return ", ".join(filter(None, (f"{self.title}: {part}" if part else self.title, spent, self.note)))

    def _bar(self) -> str:
        if not self.total:
            return ""
        full = round(WIDTH * min(self.done / self.total, 1.0))
        return f"{'█' * full}{'░' * (WIDTH - full)} "

    def _shown(self) -> dict[str, str]:
        bar = f'<progress value="{self.done}" max="{self.total}"></progress> ' if self.total else ""
        return {"text/plain": self._text(), "text/html": f"<div>{bar}{in_html(self._text())}</div>"}


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") and "IPython.display" in sys.modules
