"""What a soak found: how much was tried, and for each thing that was wrong a line by which it can be had again."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """The count of one kind, and its reproductions."""

    kind: str
    tried: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.kind}: {self.tried:,} tried, {len(self.wrong):,} wrong", *self.wrong])
