"""Columns in blocks, and the largest of numbers that several processes have."""

import threading
from dataclasses import dataclass, field

import pytest
import torch

from feta.ranks import Ranks
from feta.solvers import columns
from feta.solvers.columns import Columns
from feta.sparsity import top_k_mask


@dataclass
class Meeting:
    """Threads that stand for processes: what they add up."""

    count: int
    parts: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count)


@dataclass(frozen=True)
class Together(Ranks):
    meeting: Meeting | None = None

    def add_(self, tensor):
        self.meeting.parts[self.rank] = tensor.clone()
        self.meeting.barrier.wait()
        total = sum(self.meeting.parts.values())
        self.meeting.barrier.wait()
        return tensor.copy_(total)


def in_threads(count, function):
    meeting, found = Meeting(count), {}

    def work(rank):
        found[rank] = function(Together(group="here", count=count, rank=rank, meeting=meeting))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(count)]


def scores(kind):
    generator = torch.Generator().manual_seed(4)
    found = torch.randn(9, 23, generator=generator).abs()
    if kind == "ties":
        return (3 * found).round()
    if kind == "zeros":
        return found.where(found > 1.5, 0)
    return found.double() if kind == "float64" else found * torch.logspace(-30, 30, 23)


@pytest.mark.parametrize("kind", ["ties", "zeros", "float64", "wide"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_largest_of_all_columns_are_those_of_the_whole(monkeypatch, kind, count):
    monkeypatch.setattr(columns, "BLOCK", 4)  # six blocks: the last of seven processes has none
    whole = scores(kind)
    for k in (0, 1, 17, 60, 150, 206, 207):
        masks = in_threads(count, lambda ranks, k=k: _chosen(Columns(23, ranks), whole, k))
        for mask in masks:
            assert torch.equal(mask, top_k_mask(whole, k))


def _chosen(share, whole, k):
    return share.whole(share.top_k(share.take(whole), k))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_blocks_are_the_same_for_any_number_of_processes(monkeypatch, count):
    monkeypatch.setattr(columns, "BLOCK", 4)
    X, M, seen = torch.randn(5, 10), torch.randn(3, 5), []

    def product(part):
        seen.append(part.shape[1])
        return M @ part

    def work(ranks):
        share = Columns(10, ranks)
        return share.whole(share.each(product, share.take(X)))

    for found in in_threads(count, work):
        assert torch.allclose(found, M @ X, atol=1e-6)
    assert sorted(filter(None, seen)) == [2, 4, 4]
