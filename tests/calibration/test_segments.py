"""Networks cut into segments: which are and which must not be, and that every state is that of a plain run."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nets
from feta.calibration.chain import Chain, State, find_chain
from feta.calibration.model import evaluating, run_on
from feta.calibration.recording import record, tensors_in
from feta.calibration.trace import trace_layers

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def chain_of(model: nn.Module, batch):
    """The chain and the layers of a model."""
    with evaluating(model):
        recording = record(model, batch)
        layers = trace_layers(recording)
        return find_chain(recording, layers, batch), layers


def check_states(model: nn.Module, batch, least: int = 2) -> Chain:
    """States behind every segment, twice, are those of a plain run; each layer is in one segment."""
    chain, layers = chain_of(model, batch)
    assert len(chain.blocks) >= least
    plain: dict[str, torch.Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: plain.__setitem__(name, next(tensors_in(output)).clone())
        )
        for name in chain.blocks
    ]
    segments = chain.segments(layers)
    with evaluating(model), torch.no_grad():
        expected = list(tensors_in(run_on(model, batch)))
        for hook in hooks:
            hook.remove()
        for _ in range(2):
            state = None
            for segment in segments:
                again = chain.run(model, segment, batch, state)  # a walk runs a segment for each of its layers
                state = chain.run(model, segment, batch, state)
                assert all(map(torch.equal, tensors_in(again), tensors_in(state)))
                if 0 < segment.stop <= len(chain.blocks):
                    assert isinstance(state, State)
                    assert torch.equal(state.hidden, plain[chain.blocks[segment.stop - 1]])
            assert all(map(torch.equal, tensors_in(state), expected))
    assert [layer for segment in segments for layer in segment.layers] == layers
    assert [s.stop for s in segments[:-1]] == [s.start for s in segments[1:]]
    assert (segments[0].start, segments[-1].start) == (-1, len(chain.blocks))
    assert "forward" not in {key for module in model.modules() for key in vars(module)}
    return chain


def test_a_chain_of_layers():
    model = nets.mlp(6, 5, 7, 4, 3)
    chain = check_states(model, X)
    assert [name for name in chain.blocks if "fc" in name] == ["fc1", "fc2", "fc3"]
    assert max(len(segment.layers) for segment in chain.segments(chain_of(model, X)[1])) == 1


class Basic(nn.Module):
    """A block of a ResNet, with functions in place."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu, self.down = nn.ReLU(inplace=True), None
        if stride > 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.relu = nn.Conv2d(2, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Basic(4, 4), Basic(4, 4))
        self.layer2 = nn.Sequential(Basic(4, 6, 2), Basic(6, 6))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def forward(self, x):
        x = self.relu(self.bn(self.stem(x)))
        return self.fc(torch.flatten(self.pool(self.layer2(self.layer1(x))), 1))


def test_blocks_in_nested_sequentials_are_one_chain():
    model = ResNet()
    chain = check_states(model, MAPS)
    assert {"layer1.0", "layer1.1", "layer2.0", "layer2.1"} <= set(chain.blocks)
    inside = [[layer.name for layer in s.layers] for s in chain.segments(chain_of(model, MAPS)[1]) if s.layers]
    assert inside == [
        ["stem"],
        ["layer1.0.conv1", "layer1.0.conv2"],
        ["layer1.1.conv1", "layer1.1.conv2"],
        ["layer2.0.conv1", "layer2.0.conv2", "layer2.0.down.0"],
        ["layer2.1.conv1", "layer2.1.conv2"],
        ["fc"],
    ]


def test_a_state_does_not_change_when_the_next_segment_works_in_place():
    model = nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.Linear(6, 2))
    check_states(model, X)


class InPlace(nn.Module):
    """A block that adds to the very tensor it is given, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        x += self.down(torch.relu(self.up(x)))
        return x


def test_blocks_that_add_to_their_own_input():
    """They may be cut, if states are kept from them, or not; a second run from a state must give the same."""
    model = nn.Sequential(nn.Linear(6, 6), InPlace(), InPlace(), nn.Linear(6, 2))
    if chain_of(model, X)[0].blocks:
        check_states(model, X)


class Block(nn.Module):
    """x + f(x), called in whatever way the caller calls it, returning what it is told to."""

    def __init__(self, width: int = 6, wrap=lambda y: y) -> None:
        super().__init__()
        self.up, self.down, self.wrap = nn.Linear(width, 8), nn.Linear(8, width), wrap

    def forward(self, hidden, mask=None, *, shift=None, scale: float = 1.0):
        y = self.down(torch.relu(self.up(hidden))) * scale
        y = y if mask is None else y * mask
        return self.wrap(hidden + (y if shift is None else y + shift))


class Stack(nn.Module):
    """A stem, a list of blocks that is walked in a loop, and a head."""

    def __init__(self, step, blocks: int = 3, wrap=lambda y: y) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(6, 6), nn.ModuleList(Block(wrap=wrap) for _ in range(blocks))
        self.norm, self.fc, self.step = nn.LayerNorm(6), nn.Linear(6, 2), step

    def forward(self, x):
        given = {"mask": (x > 0).float(), "shift": x.mean(0), "each": [x * i for i in range(len(self.blocks))]}
        h = torch.tanh(self.stem(x))
        for index, block in enumerate(self.blocks):
            h = self.step(block, h, index, given)
        return self.fc(self.norm(h))


STEPS = {
    "state alone": lambda block, h, i, given: block(h),
    "extra tensors": lambda block, h, i, given: block(h, given["mask"], shift=given["shift"]),
    "state by keyword": lambda block, h, i, given: block(hidden=h, mask=given["mask"], shift=given["shift"]),
    "state before others by keyword": lambda block, h, i, given: block(hidden=h, scale=0.5),
    "numbers": lambda block, h, i, given: block(h, None, scale=2.0),
    "others for each block": lambda block, h, i, given: block(h, given["each"][i], scale=1 + i),
}


@pytest.mark.parametrize("step", list(STEPS.values()), ids=list(STEPS))
def test_a_list_of_blocks(step):
    model = Stack(step)
    chain = check_states(model, X)
    assert {f"blocks.{i}" for i in range(3)} <= set(chain.blocks)
    names = [[layer.name for layer in s.layers] for s in chain.segments(chain_of(model, X)[1])]
    assert names[0] == ["stem"]
    assert names[-1] == ["fc"] or names[-2] == ["fc"]
    inside = [name for segment in names for name in segment][1:-1]
    assert inside == [f"blocks.{i}.{name}" for i in range(3) for name in ("up", "down")]


WRAPPED = {
    "tuple": (lambda y: (y,), lambda block, h, i, given: block(h)[0]),
    "tuple with more": (lambda y: (y, y.sum()), lambda block, h, i, given: block(h, given["mask"])[0]),
    "with a place for a cache": (lambda y: (y, None), lambda block, h, i, given: block(h)[0]),
    "list": (lambda y: [y, y], lambda block, h, i, given: block(h)[0]),
}


@pytest.mark.parametrize(("wrap", "step"), list(WRAPPED.values()), ids=list(WRAPPED))
def test_blocks_that_return_more_than_their_state(wrap, step):
    chain = check_states(Stack(step, wrap=wrap), X)
    assert {f"blocks.{i}" for i in range(3)} <= set(chain.blocks)


def test_a_batch_of_keywords():
    class Named(Stack):
        def forward(self, inputs, attention_mask):
            return {"logits": super().forward(inputs * attention_mask)}

    batch = {"inputs": X, "attention_mask": (X > -1).float()}
    check_states(Named(STEPS["extra tensors"]), batch)


def test_a_transformer_encoder():
    layer = nn.TransformerEncoderLayer(6, 2, 10, batch_first=True)
    model = nn.Sequential(nn.Linear(6, 6), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        chain = check_states(model, torch.randn(2, 4, 6))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert {f"1.layers.{i}" for i in range(3)} <= set(chain.blocks)


# Networks that must not be cut, or not there


def not_across(model: nn.Module, batch, *blocks: str) -> None:
    """No cut lies between some blocks; what chain there is gives the model's outputs."""
    chain, layers = chain_of(model, batch)
    assert not set(blocks) <= set(chain.blocks)
    if chain.blocks:
        check_states(model, batch, least=1)
    else:
        assert chain.segments(layers) == [type(chain.segments(layers)[0])(0, 0, tuple(layers))]
        with torch.no_grad(), evaluating(model):
            expected = run_on(model, batch)
            assert torch.equal(chain.run(model, chain.segments(layers)[0], batch, None), expected)


class UNet(nn.Module):
    """What a block gives is read again by one further on."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()) for _ in range(3))
        self.d = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        first = self.a(x)
        return self.d(torch.cat([self.c(self.b(first)), first], 1))


def test_connections_across_blocks():
    not_across(UNet(), MAPS, "a.0", "b.0", "c.0")

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            total = x
            for block in self.blocks:
                total = total + torch.relu(block(total))
            return total

    not_across(Dense(), X, "blocks.0", "blocks.1", "blocks.2", "blocks.3")


def test_an_extra_argument_that_an_earlier_block_made():
    def step(block, h, i, given):
        given["mask"] = (given["mask"] if i == 0 else given["last"]) * 0.5
        given["last"] = h
        return block(h, given["mask"])

    not_across(Stack(step), X, "blocks.0", "blocks.1", "blocks.2")


def test_an_extra_argument_that_a_block_changes_in_place():
    class Counting(Block):
        def forward(self, hidden, seen):
            seen += hidden.mean()
            return super().forward(hidden) * seen

    model = Stack(lambda block, h, i, given: block(h, given["shift"]))
    model.blocks = nn.ModuleList(Counting() for _ in range(3))
    not_across(model, X, "blocks.0", "blocks.1", "blocks.2")


def test_a_cache_that_grows_on_every_run():
    class Caching(Block):
        def forward(self, hidden, cache):
            cache.append(hidden)
            return super().forward(hidden) + torch.stack(cache).sum(0)

    def step(block, h, i, given):
        return block(h, given.setdefault("cache", []))

    model = Stack(step)
    model.blocks = nn.ModuleList(Caching() for _ in range(3))
    not_across(model, X, "blocks.0", "blocks.1", "blocks.2")


def test_a_weight_shared_between_blocks():
    model = Stack(STEPS["state alone"])
    model.blocks[2].up = model.blocks[0].up
    not_across(model, X, "blocks.0", "blocks.1", "blocks.2")
    model = Stack(STEPS["state alone"])
    model.blocks[2].up.weight = model.blocks[0].up.weight
    not_across(model, X, "blocks.0", "blocks.1", "blocks.2")


def test_a_block_that_runs_twice():
    model = Stack(STEPS["state alone"])
    model.blocks = nn.ModuleList([model.blocks[0], model.blocks[1], model.blocks[0]])
    not_across(model, X, "blocks.0", "blocks.1")


def test_a_tail_that_reads_what_came_before_the_blocks():
    """The head is run again for it, with the blocks switched off."""

    class Skips(Stack):
        def forward(self, x):
            h = torch.tanh(self.stem(x))
            y = h
            for block in self.blocks:
                y = block(y)
            return self.fc(self.norm(y) + h)

    check_states(Skips(None), X)


class ReadsAll(Stack):
    """Its tail reads what every block made."""

    def __init__(self, answer) -> None:
        super().__init__(None)
        self.answer = answer

    def forward(self, x):
        h, states = self.stem(x), []
        for block in self.blocks:
            h = block(h)
            states.append(h)
        return self.answer(self.fc, states)


def test_a_tail_that_reads_a_block_in_the_middle():
    not_across(ReadsAll(lambda fc, states: fc(torch.stack(states).sum(0))), X, "blocks.0", "blocks.1", "blocks.2")


OUTPUTS = {"whole numbers alone": lambda z: z.argmax(1), "an object": lambda z: SimpleNamespace(logits=z)}


@pytest.mark.parametrize("answer", list(OUTPUTS.values()), ids=list(OUTPUTS))
def test_outputs_that_are_hard_to_compare(answer):
    model = ReadsAll(lambda fc, states: answer(fc(states[0] - 3 * states[1] + torch.stack(states).sum(0))))
    chain, _ = chain_of(model, X)
    assert not {"blocks.0", "blocks.1", "blocks.2"} <= set(chain.blocks)


def test_a_model_whose_path_depends_on_the_values():
    class Gated(Stack):
        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                h = block(h)
                if float(h.abs().mean()) > 1e6:
                    h = h / 2
            return self.fc(h)

    assert chain_of(Gated(None), X)[0] == Chain()  # with its blocks switched off it would see other values


def test_a_state_that_the_tail_reads_is_seen_also_where_the_outputs_hardly_show_it():
    class Skips(Stack):
        def forward(self, x):
            h = first = self.blocks[0](self.stem(x))
            for block in self.blocks[1:]:
                h = block(h)
            return self.fc(h + first) + 2e4  # differences drown in what is added

    chain, _ = chain_of(Skips(None), X)
    assert not {"blocks.0", "blocks.1"} <= set(chain.blocks)


def test_a_forward_of_a_blocks_own_is_put_back():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    for layer in model[:2]:
        layer.forward = partial(lambda own, x: F.linear(x, own.weight, own.bias) * 3, layer)
    expected = model(X)
    chain, _ = chain_of(model, X)
    assert chain.blocks
    assert torch.equal(model(X), expected)


def test_one_layer_is_not_worth_a_cut():
    assert chain_of(nn.Sequential(nn.Linear(6, 3), nn.ReLU()), X)[0] == Chain()


def test_functions_between_blocks_end_a_chain():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    assert chain_of(Between(), X)[0] == Chain()
