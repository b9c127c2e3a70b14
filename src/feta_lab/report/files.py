"""Tables as files: Markdown to paste, LaTeX for a paper, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feta.files.atomic import write_atomic
from feta_lab.page import Table
from feta_lab.page.tables import draw_table

# What TeX would take as a command, or does not have in its usual fonts.
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "×": r"$\times$", "²": "$^2$",
    "±": r"$\pm$", "<": "$<$", ">": "$>$", "ρ": r"$\rho$",
}  # fmt: skip


@dataclass(frozen=True)
class Exhibit:
    """A table to read, and the same as plain rows of numbers; without rows the table's own cells."""

    name: str
    table: Table
    rows: tuple[Mapping[str, Any], ...] = ()


def write_tables(exhibits: Sequence[Exhibit], folder: Path) -> list[Path]:
    """Each exhibit as NAME.md, NAME.csv and NAME.tex."""
    paths = []
    for exhibit in exhibits:
        for suffix, text in (
            ("md", markdown(exhibit.table)),
            ("csv", comma_separated(exhibit)),
            ("tex", latex(exhibit.table)),
        ):
            path = folder / f"{exhibit.name}.{suffix}"
            write_atomic(path, text.encode())
            paths.append(path)
    return paths


def markdown(table: Table) -> str:
    drawn = draw_table(table)
    rule = {"left": "---", "right": "---:", "center": ":---:"}
    lines = [_heads(table), [rule[align] for _, align, _ in drawn.heads]]
    lines += [[f"**{cell.text}**" if cell.strong else cell.text for cell in row] for row in drawn.rows]
    text = "\n".join(f"| {' | '.join(part.replace('|', chr(92) + '|') for part in line)} |" for line in lines)
    return f"{table.caption}\n\n{text}\n" if table.caption else f"{text}\n"


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs."""
    drawn = draw_table(table)
    columns = "".join({"left": "l", "right": "r", "center": "c"}[align] for _, align, _ in drawn.heads)
    lines = [f"% {table.caption}"] if table.caption else []
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    if table.groups:
        lines.append(_tex_row([rf"\multicolumn{{{count}}}{{c}}{{{tex(words)}}}" for words, count in table.groups]))
    lines += [_tex_row([tex(name) for name in table.columns]), r"\midrule"]
    for row in drawn.rows:
        lines.append(_tex_row([rf"\textbf{{{tex(c.text)}}}" if c.strong else tex(c.text) for c in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(exhibit: Exhibit) -> str:
    """Numbers in full; an empty field is a missing value."""
    buffer = io.StringIO()
    if exhibit.rows:
        names = list(dict.fromkeys(name for row in exhibit.rows for name in row))
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(exhibit.rows)
    else:
        plain = csv.writer(buffer, lineterminator="\n")
        plain.writerow(_heads(exhibit.table))
        plain.writerows([cell.text for cell in row] for row in draw_table(exhibit.table).rows)
    return buffer.getvalue()


def tex(text: str) -> str:
    return "".join(TEX.get(character, character) for character in text)


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _heads(table: Table) -> list[str]:
    """Column names with their group in front, for formats that have one row of heads."""
    above = [words for words, count in table.groups for _ in range(count)] or [""] * len(table.columns)
    return [f"{words} {name}".strip() for words, name in zip(above, table.columns, strict=True)]
