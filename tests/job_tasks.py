"""What the processes of the tests' jobs do."""

import time

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import distribute_module
from torch.utils.data import DataLoader, DistributedSampler

import feta
import feta.solvers.columns


def network(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "dense":
        return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 14), nn.ReLU(), nn.Linear(14, 5))
    if kind == "pixels":
        return nn.Sequential(nn.Linear(144, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5))
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
    if kind == "pixels":  # smooth, and dark in a corner: neighbours say nearly the same
        images = torch.nn.functional.avg_pool2d(torch.randn(count, 1, 18, 18, generator=generator), 7, 1).flatten(1)
        return (4 * images - torch.linspace(0, 2, 144)).relu()
    shape = {"dense": (12,), "deep": (10,), "conv": (2, 8, 8)}[kind]
    return torch.randn(count, *shape, generator=generator)


def pruned(kind: str, count: int, double: bool = False, data: str = "shared", columns: int = 512, **options):
    """A pruned network's weights, and its report's figures."""
    feta.solvers.columns.BLOCK = columns  # small, so that small layers are shared out
    model, rows = network(kind), samples(kind, count)
    if double:
        model, rows = model.double(), rows.double() if rows.is_floating_point() else rows
    settings, rows = feta.Settings(**options.pop("settings", {})), rows * options.pop("scale", 1)
    if data == "loader":
        rows = DataLoader(rows, batch_size=7)
    result = feta.prune(model, rows, options.pop("share", 0.7), settings=settings, **options)
    layers = [(layer.name, layer.nonzeros, layer.relative_error, layer.status) for layer in result.report.layers]
    return {"weights": result.model.state_dict(), "layers": layers}


def prune_all(rank, folder, jobs):
    return {name: pruned(**job) for name, job in jobs.items()}


def plain(rows, **given):
    return feta.prune(network("dense").double(), rows, 0.7, "feta", **given).model.state_dict()


def prune_shards(rank, folder):
    """Samples of each process's own, by a word and by a loader's sampler."""
    rows = samples("dense", 90).double()
    told = plain(list(rows[rank::2].split(10)), settings=feta.Settings(data="sharded"))
    dealt = DataLoader(rows, batch_size=10, sampler=DistributedSampler(rows, shuffle=False))
    return {"told": told, "sampler": plain(dealt)}


def pruned_in_turn():
    """The same samples as `prune_shards` has, in the same order, in one process."""
    rows = samples("dense", 90).double()
    pairs = zip(rows[0::2].split(10), rows[1::2].split(10), strict=True)
    return plain([part for pair in pairs for part in pair])


def refused(*arguments, **given):
    try:
        feta.prune(*arguments, 0.7, "feta", **given)
    except feta.FetaError as error:
        return str(error)
    return "nothing"


def prune_unlike(rank, folder):
    model, rows, found = network("dense"), samples("dense", 50), {}
    other = network("dense")
    torch.manual_seed(rank)
    nn.init.normal_(other[0].weight)
    found["model"] = refused(other, rows)
    found["data"] = refused(model, rows[rank:])
    alone = feta.Settings(data="alone")
    found["alone"] = f"process {rank} by itself" if refused(other, rows[rank:], settings=alone) == "nothing" else ""
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    distribute_module(model[2], mesh)
    found["spread"] = refused(model, rows)
    return found


def prune_spread(rank, folder):
    """A network spread by fully_shard, by blocks and what is left, with a batch-norm and a hook; and whole."""
    mesh, rows, found = torch.distributed.init_device_mesh("cpu", (2,)), samples("deep", 120), {}

    def made():
        model = network("deep")
        model.insert(1, nn.BatchNorm1d(10))
        return model.eval()

    model = made()
    for block in (model[0], model[2], model[3]):
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    seen = []
    model[2].register_forward_hook(lambda *_: seen.append(1))
    before = [parameter.to_local().clone() for parameter in model.parameters()]
    result = feta.prune(model, rows, 0.7, effort="fast")
    found["whole"] = feta.prune(made(), rows, 0.7, effort="fast").model.state_dict()
    found["spread"] = {
        name: getattr(p, "full_tensor", lambda p=p: p)() for name, p in result.model.state_dict().items()
    }
    found["kinds"] = [isinstance(part, FSDPModule) for part in (result.model, *result.model)]
    found["local"] = {name: tuple(p.to_local().shape) for name, p in result.model.named_parameters()}
    found["after"] = [model[2]._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is None]
    found["after"] += [result.model[2]._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is None]
    now = [parameter.to_local() for parameter in model.parameters()]
    found["unharmed"] = all(torch.equal(one, other) for one, other in zip(before, now, strict=True))
    seen.clear()
    outputs = result.model(rows)
    found["hooked"], plain = len(seen), made()
    plain.load_state_dict(found["spread"])
    found["outputs"] = float((outputs - plain(rows)).abs().max())
    outputs.sum().backward()  # it can be trained on
    return found


def fail(rank, folder):
    """What each process is told when one of them raises an error."""

    def tell(event):
        if rank == 1 and event.index == 1:
            raise feta.DataError("the callback has had enough")

    return {"failed": refused(network("deep"), samples("deep", 60), callback=tell)}


def everything(rank, folder, jobs):
    parts = {"pruned": prune_all(rank, folder, jobs), "shards": prune_shards(rank, folder)}
    parts["spread"] = prune_spread(rank, folder)
    return parts | {"unlike": prune_unlike(rank, folder)} | fail(rank, folder)


def prune_slowly(rank, folder):
    def tell(event):
        (folder / "busy").touch()
        time.sleep(2)  # long enough to be killed while the other waits

    feta.prune(network("deep"), samples("deep", 60), 0.7, "feta", callback=tell)


def prune_and_keep(rank, folder, kept_in, whole=False):
    """A run that keeps its finished layers; with `whole` also one that does not, to compare."""
    model, rows, started = network("deep"), samples("deep", 60), []

    def tell(event):
        started.append(event.kind == "start")
        time.sleep(0.2 * (not whole))

    kept = feta.prune(model, rows, 0.7, "feta", checkpoint=kept_in, callback=tell).model.state_dict()
    plain_run = feta.prune(model, rows, 0.7, "feta").model.state_dict() if whole else None
    return {"weights": kept, "whole": plain_run, "started": sum(started)}
