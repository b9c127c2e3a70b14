"""python -m feta: the command line."""

from feta.cli import main

main()
