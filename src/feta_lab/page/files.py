"""Tables as files: CSV for programs, Markdown to paste, LaTeX for a paper. pandas writes all three."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from feta.files.atomic import write_atomic
from feta_lab.page.blocks import Table

# Characters that LaTeX's usual fonts do not have; pandas escapes its commands.
IN_TEX = ("--", "$-$", r"$\times$", "$^2$", r"$\pm$", "$<$", "$>$", r"$\rho$")
TEX = str.maketrans(dict(zip("–−×²±<>ρ", IN_TEX, strict=True)))


def write_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write each table as NAME.md, NAME.csv and NAME.tex; returns the paths. Raises FileError."""
    paths = []
    for table in tables:
        texts = {"md": markdown(table), "csv": comma_separated(table), "tex": latex(table)}
        for suffix, text in texts.items():
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomic(paths[-1], text.encode())
    return paths


def comma_separated(table: Table) -> str:
    """The table's numbers in full, or else the words of its cells; an empty field is a missing value."""
    frame = pd.DataFrame(list(table.numbers), dtype=object) if table.numbers else _frame(table)
    return str(frame.to_csv(index=False))


def markdown(table: Table) -> str:
    """The table in Markdown, its caption above it."""
    frame = _frame(table)
    for row, column in table.strong:
        frame.iat[row, column] = f"**{frame.iat[row, column]}**"
    # pandas leaves the bar alone, which would end a cell.
    frame = frame.replace(r"\|", r"\\|", regex=True).rename(columns=lambda name: name.replace("|", r"\|"))
    align = ["right" if numeric else "left" for numeric in table.numeric]
    text = frame.to_markdown(index=False, disable_numparse=True, colalign=align)
    return f"{table.caption}\n\n{text}\n" if table.caption else f"{text}\n"


def latex(table: Table) -> str:
    """A tabular with the rules of booktabs, its caption as a comment above it."""
    frame = _frame(table)
    bold = pd.DataFrame("", frame.index, frame.columns)
    for row, column in table.strong:
        bold.iat[row, column] = "textbf:--rwrap"
    style = frame.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    text = style.apply(lambda _: bold, axis=None).to_latex(hrules=True, column_format=columns)
    caption = f"% {table.caption}\n" if table.caption else ""
    return caption + str(text).translate(TEX)


def _frame(table: Table) -> pd.DataFrame:
    """The words of the cells."""
    return pd.DataFrame(table.texts, columns=list(table.columns), dtype=object)
