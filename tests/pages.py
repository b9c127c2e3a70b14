"""The pages and the blocks of code on them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^>]+) -->\n+)?(?:% runs\n+)?```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """Code on a page, and why it is not run, where the page says so in a comment above it."""

    language: str
    body: str
    why: str | None

    def commands(self) -> Iterator[str]:
        """The lines with a prompt, without it."""
        for line in self.body.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line.removeprefix("$ ").strip()


def blocks(path: Path, *languages: str) -> list[Block]:
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [Block(one["language"], one["body"], one["why"]) for one in found if one["language"] in languages]


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """A command's settings in front, and its words without a comment."""
    settings: dict[str, str] = {}
    rest = shlex.split(command, comments=True)
    while rest and re.fullmatch(r"[A-Z_]+=.*", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        settings[name] = value
    return settings, rest
