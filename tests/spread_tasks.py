"""What the processes of a job do with networks that are spread over them."""

import weakref

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import feta
from feta.engine import shards as shards_module
from feta.engine import spread as spread_module
from feta.ranks import ALONE, Ranks
from job_tasks import samples

WIDTH, BLOCKS, WORDS = 16, 3, 20
TIGHT = feta.Settings(memory="1kB")  # less than any of these networks


class Block(nn.Module):
    """Attention by hand and a dense part, each with a shortcut; heads are read off the tensors."""

    def __init__(self, split: int = 1) -> None:
        super().__init__()
        self.norm, self.queries, self.keys = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.values, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.split = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), split

    def forward(self, x):
        normal, heads = self.norm(x), (-1, 4) if self.split == 1 else (4 // self.split, -1)
        q, k, v = (
            part(normal).unflatten(-1, heads).transpose(1, 2) for part in (self.queries, self.keys, self.values)
        )
        mixed = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(x)))


class Text(nn.Module):
    """A table of words, blocks, and scores by the same table or by a layer of their own."""

    def __init__(self, tied: bool, split: int = 1) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block(split) for _ in range(BLOCKS))
        self.last = nn.LayerNorm(WIDTH)
        if tied:
            self.scores.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.scores(self.last(x))


class Shortcut(nn.Sequential):
    """Layers and a batch-norm, with a shortcut around them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(9, 11), nn.BatchNorm1d(11), nn.ReLU(), nn.Linear(11, 9))

    def forward(self, x):
        return x + super().forward(x)


class Normed(nn.Module):
    """Batch-norms in the stem, in blocks of uneven width, and before the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU())
        self.blocks = nn.ModuleList(Shortcut() for _ in range(3))
        self.scores = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 5))

    def forward(self, x):
        x = 1.0 * self.stem(x)  # by which the stem is none of the blocks, as the scores are not
        for block in self.blocks:
            x = block(x)
        return self.scores(x + 0.0)


def made(kind: str) -> nn.Module:
    torch.manual_seed(3)
    if kind == "normed":
        model = Normed()
        for _ in range(3):
            model(samples("dense", 64))
        return model.eval()
    return Text(kind == "tied").eval()


def rows_of(kind: str) -> torch.Tensor:
    return samples("dense" if kind == "normed" else "text", 120)


def sharded(model: nn.Module, mesh, **how) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict().items()
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for name, p in state}


class Watched:
    """Bytes of gathered tensors that are alive, seen whenever one comes."""

    def __init__(self) -> None:
        self.alive, self.most, self.gather = weakref.WeakSet(), 0, shards_module.whole_of

    def __enter__(self) -> "Watched":
        shards_module.whole_of = self._whole_of
        return self

    def __exit__(self, *error) -> None:
        shards_module.whole_of = self.gather

    def _whole_of(self, part):
        found = self.gather(part)
        if all(where.is_replicate() for where in part.placements):
            return found  # what every process has anyway
        self.alive.add(found.untyped_storage())
        self.most = max(self.most, sum(storage.nbytes() for storage in self.alive))
        return found


def compared(model: nn.Module, plain: nn.Module, rows: torch.Tensor | None, **given) -> dict:
    """A network that is spread, pruned block by block, beside the same one in every process."""
    before, given = whole(model), {"settings": TIGHT} | given
    with torch.no_grad():
        model(rows_of("untied") if rows is None else rows)  # after which units of fully_shard hold whole weights
    hooks = hooks_of(model)
    with Watched() as watched:
        found = feta.prune(model, rows, 0.6, **given)
    like = [placed(model) == placed(found.model), hooks_of(found.model) == hooks]
    expected = feta.prune(plain, rows, 0.6, **given)
    now, pruned = whole(found.model), expected.model.state_dict()
    masks = [torch.equal(mask.full_tensor(), expected.masks[name]) for name, mask in found.masks.items()]
    after = whole(model)
    rows = rows_of("untied") if rows is None else rows
    with torch.no_grad():
        outputs, wanted = found.model(rows), expected.model(rows)
    outputs = outputs.full_tensor() if isinstance(outputs, DTensor) else outputs
    return {
        "unlike": [name for name in pruned if not torch.equal(now[name], pruned[name])],
        "names": list(now) == list(pruned),
        "zeros": int((pruned[f"{next(iter(found.masks))}.weight"] == 0).sum()),
        "masks": masks,
        "spread": like,
        "unharmed": all(map(torch.equal, before.values(), after.values())) and hooks_of(model) == hooks,
        "outputs": float((outputs - wanted).abs().max()),
        "batchnorm": (found.report.batchnorm, expected.report.batchnorm),
        "after": (found.report.after, expected.report.after),
        "most": watched.most,
        "all": sum(p.numel() * p.element_size() for p in plain.parameters()),
    }


def placed(model: nn.Module) -> list:
    """Where the parts of a network are, and in which modules torch has its hand."""
    known = ("placements", "device_mesh", "requires_grad")
    parts = [(name, *(getattr(p, key, None) for key in known)) for name, p in model.named_parameters()]
    return [parts, [isinstance(module, FSDPModule) for module in model.modules()]]


def hooks_of(model: nn.Module) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def shard_blocks(mesh) -> dict:
    given = {"method": "feta", "options": {"weigh_outputs": False}, "layers": ["*.down"]}
    model = sharded(made("tied"), mesh, reshard_after_forward=False)
    found = {"tied": compared(model, made("tied"), rows_of("tied"), **given)}
    given = {"method": "alps", "compensate": True, "allocation": "erk", "layers": "*"}
    found["normed"] = compared(sharded(made("normed"), mesh), made("normed"), rows_of("normed"), **given)
    model, plain = sharded(made("normed"), mesh), made("normed")
    again = feta.Settings(memory="1kB", batchnorm=True)
    found["anew"] = compared(model, plain, rows_of("normed"), method="wanda", settings=again)
    model = sharded(made("untied"), mesh)
    found["no data"] = compared(model, made("untied"), None, method="threshold", layers="*")
    return found


def parallel(model: nn.Module, mesh) -> nn.Module:
    """A network spread by tensor parallelism, its norms along the positions."""
    split = {"queries": ColwiseParallel(), "keys": ColwiseParallel(), "values": ColwiseParallel()}
    split |= {"out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, split)
    positions = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
    parallelize_module(model.blocks[-1], mesh, positions)
    scores = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return parallelize_module(model, mesh, {"last": SequenceParallel(), "scores": scores})


def split_tensors(mesh) -> dict:
    """By tensor parallelism: block by block, gathered as a whole, and models that cannot be."""
    rows, found = rows_of("untied"), {}
    model = parallel(made("untied"), mesh)
    model.blocks[1].register_forward_hook(lambda *_: None)
    plain = made("untied")
    plain.blocks[1].register_forward_hook(lambda *_: None)
    found["blocks"] = compared(model, plain, rows, method="alps", layers=["*.values", "*.down"])
    given = {"method": "feta", "layers": ["blocks.0.down"]}
    gathered, expected = (feta.prune(one, rows, 0.6, **given) for one in (model, plain))
    now, pruned = whole(gathered.model), expected.model.state_dict()
    found["whole"] = [name for name in pruned if not torch.equal(now[name], pruned[name])]
    found["whole spread"] = placed(gathered.model) == placed(model)
    torch.manual_seed(3)
    found["local heads"] = refused(parallel(Text(tied=False, split=2), mesh), rows)
    return found


def refuse(mesh) -> dict:
    """What is said of networks and arguments that cannot be."""
    rows, both = (
        rows_of("untied"),
        torch.distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "parts")),
    )
    model = parallel(made("untied"), both["parts"])
    found = {"both": refused(sharded(model, both["data"]), rows)}
    found["old"] = refused(FullyShardedDataParallel(made("untied"), device_id=torch.device("cpu")), rows)
    model = sharded(made("untied"), mesh)
    found["refine"] = refused(model, rows, settings=TIGHT, refine=True)
    found["allocation"] = refused(model, rows, settings=TIGHT, allocation="sensitivity")
    found["fits"] = [spread_module.Spread(model).fits(limit, ALONE) for limit in (2**14, 2**17)]
    found["room"] = [fits(model, free) for free in (2**10, 2**40)]
    return found


def fits(model: nn.Module, free: float) -> bool:
    """The choice where the second process alone has so little free memory, and the first has plenty."""
    before, rank = spread_module.free_memory, torch.distributed.get_rank()
    spread_module.free_memory = lambda: free if rank else 2.0**40
    try:
        return spread_module.Spread(model).fits(None, Ranks.here(torch.device("cpu")))
    finally:
        spread_module.free_memory = before


def resume(mesh, folder) -> dict:
    """A run that is ended in the middle, and the one that goes on from there."""
    model, rows, started = sharded(made("normed"), mesh), rows_of("normed"), []
    given = {"settings": TIGHT, "layers": "*", "method": "alps", "checkpoint": folder / "kept"}
    found = {"ended": refused(model, rows, callback=ended_by(0, 1), **given)}
    pruned = feta.prune(model, rows, 0.6, callback=lambda event: started.append(event.kind), **given).model
    found |= {"started": started.count("start"), "gone": not (folder / "kept").exists()}
    plain, now = feta.prune(made("normed"), rows, 0.6, **given).model.state_dict(), whole(pruned)
    return found | {"unlike": [name for name in plain if not torch.equal(plain[name], now[name])]}


def ended_by(*ranks: int):
    """A callback that raises an error in some processes, at the fifth layer."""

    def tell(event):
        if event.index == 4 and torch.distributed.get_rank() in ranks:
            raise feta.DataError("the callback has had enough")

    return tell


def fail(mesh) -> str:
    """What each process is told when one of them raises an error; nothing can be exchanged after that."""
    given = {"settings": TIGHT, "layers": "*", "method": "alps", "callback": ended_by(1)}
    return refused(sharded(made("normed"), mesh), rows_of("normed"), **given)


def refused(model, rows, **given) -> str:
    try:
        feta.prune(model, rows, 0.6, **({"method": "feta"} | given))
    except feta.FetaError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def effort(mesh) -> list[str]:
    """What the stages of an effort say."""
    result = feta.prune(sharded(made("normed"), mesh), rows_of("normed"), 0.6, layers="blocks.0.0", settings=TIGHT)
    return [stage.message for stage in result.report.stages]


def everything(rank, folder) -> dict:
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    found = {"shards": shard_blocks(mesh), "parallel": split_tensors(mesh), "refused": refuse(mesh)}
    return found | {"resumed": resume(mesh, folder), "effort": effort(mesh), "failed": fail(mesh)}
