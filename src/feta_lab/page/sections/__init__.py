"""Sections of the report, one module per experiment; each shows the records of its experiment, if there are any.

A module has one function, `sections(results) -> list[Section]`. Its named tables and its figures are written to
files as well. To add an experiment, write its module and add a line to SECTIONS.
"""

from collections.abc import Callable

from feta_lab.page.blocks import Section
from feta_lab.page.sections import bench, fig2, fig3, losses, table1
from feta_lab.results import Results

# In the order of the page.
_MODULES = (table1, fig2, losses, fig3, bench)
SECTIONS: tuple[Callable[[Results], list[Section]], ...] = tuple(module.sections for module in _MODULES)
