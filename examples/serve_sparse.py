"""A pruned network served on the CPU: dense and sparse, request by request. Run: python examples/serve_sparse.py"""

import time

import torch

import feta
from feta_lab.data import load
from feta_lab.training import Training, train

digits = load("mnist-mini")
network = train("300FC-300FC-10SM", digits, Training(max_epochs=2))
images = digits.normalisation.apply(digits.train.images, "cpu")
pruned = feta.prune(network.model, images[:1000], sparsity=0.95, effort="fast").model
fast = feta.sparsify(pruned, images[:1], batches=(1, 16))  # measures on this machine; the pruned model stays

x, y = digits.normalisation.apply(digits.test.images, "cpu"), digits.test.labels


def serve(model, requests):
    """Answers, and the milliseconds of a typical request."""
    times, answers = [], []
    for request in requests:
        started = time.perf_counter()
        with torch.inference_mode():
            answers.append(model(request).argmax(1))
        times.append(1e3 * (time.perf_counter() - started))
    return torch.cat(answers), sorted(times)[len(times) // 2]


for size in (1, 16):
    requests = x[:1600].split(size)
    dense, dense_ms = serve(pruned, requests)
    sparse, sparse_ms = serve(fast, requests)
    same = 100 * float((dense == sparse).float().mean())
    print(f"batch {size:2}: {dense_ms:.3f} ms dense, {sparse_ms:.3f} ms sparse, {same:.1f} % the same answers")
print(f"{100 * float((sparse == y[:1600]).float().mean()):.1f} % right")
