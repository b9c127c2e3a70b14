"""What a page is made of besides tables and figures: text, headline numbers, sections, verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from feta_lab.page.cells import Table
from feta_lab.page.figure import Figure
from feta_lab.page.numbers import is_number

__all__ = ["Block", "Facts", "Fold", "Section", "Text", "Verdict", "VerdictName", "Verdicts", "is_number"]


@dataclass(frozen=True)
class Facts:
    """The headline numbers: (label, value) pairs in a row."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Text:
    """Plain paragraphs: Text("First.", "Second.")."""

    paragraphs: tuple[str, ...]

    def __init__(self, *paragraphs: str) -> None:
        object.__setattr__(self, "paragraphs", paragraphs)


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks behind one line that opens them."""

    summary: str
    blocks: tuple[Block, ...]


VerdictName = Literal["holds", "does not hold", "depends", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """What became of one claim: the answer in numbers, the reason, and the table behind both."""

    claim: str
    verdict: VerdictName
    answer: str
    why: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Verdicts:
    """Claims and their verdicts, one below the other."""

    items: tuple[Verdict, ...]


Block = Table | Figure | Facts | Text | Section | Fold | Verdicts
