"""How fast do cores multiply the matrices of a model? The limit of training is counted operations at the best rate.

    python bench/gemm.py --shape small --tokens 2000 --vocabulary 8000     on the cores it is pinned to

Measured are the products of every linear layer with the tokens of a batch, as our trainer computes them: forward, and
backward for the input and for the weight. What counts is the best of all, at its fastest.
"""

import argparse
import json
import time

import torch
from peers import SHAPES, Shape

from dragoman.train.products import set_up_products

SECONDS, FEWEST = 0.15, 3  # of one product


def products(shape: Shape, tokens: int, vocabulary: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the factors of all products by name."""
    width, inner = shape.d_model, shape.feed_forward
    layers = {
        "projection": (width, width),
        "key and value": (width, 2 * width),
        "query, key and value": (width, 3 * width),
        "feed-forward up": (width, inner),
        "feed-forward down": (inner, width),
        "output": (width, vocabulary),
    }
    factors = {}
    for name, (columns, rows) in layers.items():
        x, weight, gradient = (
            torch.randn(size) for size in ((tokens, columns), (rows, columns), (tokens, rows))
        )
        factors[f"{name}, forward"] = (x, weight.t())
        factors[f"{name}, input's gradient"] = (gradient, weight)
        factors[f"{name}, weight's gradient"] = (gradient.t(), x)
    return factors


def rate(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return operations a second at the fastest."""
    out, best, done, ends = left @ right, float("inf"), 0, time.perf_counter() + SECONDS
    while done < FEWEST or time.perf_counter() < ends:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best, done = min(best, time.perf_counter() - began), done + 1
    return 2.0 * left.shape[0] * left.shape[1] * right.shape[1] / best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--vocabulary", type=int, default=8000)
    given = parser.parse_args()
    set_up_products()
    torch.manual_seed(1)
    factors = products(SHAPES[given.shape], given.tokens, given.vocabulary)
    print(json.dumps({name: rate(*pair) for name, pair in factors.items()}, indent=1))


if __name__ == "__main__":
    main()
