"""Sphinx: `make docs` writes docs/_build/html."""

import re
from typing import Any

import feta

project = "feta"
release = feta.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
default_role = "code"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 90
html_theme = "furo"
html_title = f"feta {release}"
html_show_sphinx = html_show_copyright = False


def plain_text(app: Any, what: str, name: str, owner: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: indented paragraphs are code, `argument: meaning` is a field, the rest is prose."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    lines[:] = "\n\n".join(_paragraph(text, what in ("function", "method")) for text in paragraphs).split("\n")


def _paragraph(text: str, fields: bool) -> str:
    if all(line.startswith("    ") for line in text.split("\n")):
        return f"::\n\n{text}"
    text = re.sub(r"(?<=\S)\n    +(?=\S)", " ", text)  # a field's meaning in one line
    text = re.sub(r"([*|])", r"\\\1", text)  # no markup
    return re.sub(r"^((?:\w+, )*\w+): ", _field, text, flags=re.MULTILINE) if fields else text


def _field(found: re.Match[str]) -> str:
    """Arguments that share one meaning get a field each."""
    return "\n".join(f":param {name}:" for name in found[1].split(", ")) + " "


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text)
