"""A few methods on one layer, held as tensors. Run: python examples/compare_methods.py"""

import time

import torch

import feta
from feta_lab.data import load
from feta_lab.training import Training, train

digits = load("mnist-mini")
network = train("60FC-60FC-10SM", digits, Training(max_epochs=2))
layer = network.model.fc1

# Samples are rows: A (m, d_in) goes in, B (m, d_out) must come out, W is (d_in, d_out).
A = digits.normalisation.apply(digits.train.images, "cpu").flatten(1)
W, bias = layer.weight.detach().t().contiguous(), layer.bias.detach()
B = torch.relu(A @ W + bias)

print(f"{'method':10} {'non-zeros':>9} {'error':>10} {'seconds':>8}  status")
for method in ("threshold", "wanda", "sparsegpt", "alps", "feta"):
    started = time.perf_counter()
    solution = feta.smart_prune(W, A, B, sparsity=0.9, method=method, bias=bias)
    seconds = time.perf_counter() - started
    error = torch.linalg.norm(torch.relu(A @ solution.U + solution.bias) - B) / torch.linalg.norm(B)
    count = int(solution.U.count_nonzero())
    print(f"{method:10} {count:9} {float(error):10.4f} {seconds:8.3f}  {solution.status}")
