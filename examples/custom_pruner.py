"""A method of your own: a frozen dataclass with a name, needs and prune. Run: python examples/custom_pruner.py"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import feta
from feta_lab.data import load
from feta_lab.judge import judge
from feta_lab.training import Training, train


@dataclass(frozen=True)
class Centred:
    """Keep the largest weights; the bias takes over what the others gave on average."""

    share: float = 1.0  # of that average
    name: ClassVar[str] = "centred"
    needs: ClassVar[feta.Needs] = feta.Needs(passes="few")  # over the data: "none", "few" or "many"

    def prune(self, problem: feta.LayerProblem, target: feta.Sparsity) -> feta.LayerSolution:
        W, rows, sums = problem.W, 0, 0.0
        for A in problem.rows.inputs():  # chunk by chunk: the data need not fit into memory
            rows, sums = rows + len(A), sums + A.double().sum(0)
        kept = W.abs().flatten().topk(target.count(W.numel())).indices
        U = torch.zeros_like(W).flatten().scatter(0, kept, W.flatten()[kept]).reshape(W.shape)
        mean = (sums / rows).to(W.dtype)
        bias = None if problem.bias is None else problem.bias + self.share * mean @ (W - U)
        return feta.LayerSolution(U, bias)


digits = load("mnist-mini")
network = train("60FC-60FC-10SM", digits, Training(max_epochs=2))
images = digits.normalisation.apply(digits.train.images, "cpu")
for method in ("threshold", Centred(), "feta"):
    result = feta.prune(network.model, images, sparsity=0.9, method=method)
    print(f"{result.report.method:10} {judge(result.model, digits)['test']:.2f} % test accuracy")
