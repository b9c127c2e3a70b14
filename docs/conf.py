"""Sphinx: `make docs` writes docs/_build/html."""

import feta

project = "feta"
release = feta.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
default_role = "code"
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"feta {release}"
html_show_sphinx = html_show_copyright = False
