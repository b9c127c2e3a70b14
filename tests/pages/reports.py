"""A run's report, as the engine would make it."""

from feta.report import AllocationReport, Held, LayerReport, PruneReport, Size, Skipped, StageReport

EVIL = '"><script>alert(1)</script><!-- -->'


def run(**given) -> PruneReport:
    layers = given.pop("layers", None) or (
        LayerReport("fc1", (60, 784), 4704, 0.9, 0.25, 0.123),
        LayerReport("fc2", (60, 60), 360, 0.9, 0.5, 0.0456),
    )
    known = {
        "allocation": AllocationReport("sensitivity", 0.1, {}),
        "before": Size(51_240, 51_240, 50_640, 205_000),
        "after": Size(51_240, 5_664, 5_064, 24_000),
        "skipped": (Skipped("softmax", "Linear", 600, "its outputs are the model's"),),
        "stages": (StageReport("layer by layer", 1.5, 0.012, True),),
        "held": Held(100, 0.21, 0.95),
        "parts": {"layers": 1.0},
        "effort": "fast",
    }
    return PruneReport("feta", 0.9, 0.9, 1.6, "cpu", 3, {"ridge": 0.1}, layers, **known | given)


def layers(*statuses: str, message: str = "") -> tuple[LayerReport, ...]:
    """A layer for each status; the later, the larger its error."""
    return tuple(
        LayerReport(f"block.{place}.dense", (10, 20), 20, 0.9, place / len(statuses), 0.1, status, message)
        for place, status in enumerate(statuses)
    )
