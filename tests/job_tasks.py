"""What the processes of the tests' jobs do."""

import torch
from torch import nn

import feta


def network(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "dense":
        return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 14), nn.ReLU(), nn.Linear(14, 5))
    if kind == "deep":
        blocks = [nn.Sequential(nn.Linear(10, 10), nn.ReLU()) for _ in range(5)]
        return nn.Sequential(*blocks, nn.Linear(10, 4))
    if kind == "text":
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(20, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    convolutions = [nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()]
    model = nn.Sequential(*convolutions, nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    for _ in range(3):
        model(torch.randn(64, 2, 8, 8))
    return model.eval()


def samples(kind: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if kind == "text":
        return torch.randint(0, 20, (count, 6), generator=generator)
    shape = {"dense": (12,), "deep": (10,), "conv": (2, 8, 8)}[kind]
    return torch.randn(count, *shape, generator=generator)


def pruned(kind: str, count: int, double: bool = False, data: str = "shared", **options):
    """A pruned network's weights, its report's figures, and what the random state was left as."""
    model, rows = network(kind), samples(kind, count)
    if double:
        model, rows = model.double(), rows.double() if rows.is_floating_point() else rows
    settings = feta.Settings(**options.pop("settings", {}))
    if data == "loader":
        rows = torch.utils.data.DataLoader(rows, batch_size=7)
    result = feta.prune(model, rows, 0.7, settings=settings, **options)
    layers = [(layer.name, layer.nonzeros, layer.relative_error, layer.status) for layer in result.report.layers]
    return {"weights": result.model.state_dict(), "layers": layers}


def prune_all(rank, folder, jobs):
    return {name: pruned(**job) for name, job in jobs.items()}
