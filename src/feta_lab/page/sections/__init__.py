"""Sections of the report, one module per experiment; each shows the records of its experiment, if there are any.

A module has one function, `sections(results) -> list[Section]`. Its named tables and its figures are written to
files as well. To add an experiment, write its module and add it to SECTIONS in page/report.py.
"""
