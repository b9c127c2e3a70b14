"""Draws the import graph in layout.md from the imports themselves: python docs/layout.py

A test fails where the page no longer shows what the source does.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PAGE = Path(__file__).with_name("layout.md")
BEGIN, END = "<!-- import graph, drawn by docs/layout.py -->\n", "<!-- end of the graph -->\n"


def modules() -> dict[str, Path]:
    """Every module of both packages by its full name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, known: dict[str, Path]) -> Iterator[str]:
    """Full names of everything that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


def graph() -> str:
    """A line per room: the rooms that it imports from."""
    known = modules()
    rooms: dict[str, set[str]] = {}
    for name in known:
        if "." in name:
            room = ".".join(name.split(".")[:2])
            targets = {".".join(target.split(".")[:2]) for target in imports_of(name, known)}
            rooms.setdefault(room, set()).update(
                target for target in targets if target.split(".")[0] in ("feta", "feta_lab")
            )
    lines = []
    for room, targets in rooms.items():
        shown = sorted(targets - {room, "feta", "feta_lab"})
        lines.append(f"{room} ← {', '.join(shown)}" if shown else room)
    return "\n".join(lines)


def filled(text: str) -> str:
    """The page with the graph of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n{graph()}\n```\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
