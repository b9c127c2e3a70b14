"""Sphinx: `make docs` writes docs/_build/html."""

from __future__ import annotations

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
    """Docstrings are plain text: `argument: meaning` becomes a field, and stars and bars are no markup."""
    text = re.sub(r"(?<=\S)\n    +(?=\S)", " ", "\n".join(lines))  # a field's meaning in one line
    text = re.sub(r"([*|])", r"\\\1", text)
    if what in ("function", "method"):
        text = re.sub(r"^(\w+): ", r":param \1: ", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_text)
