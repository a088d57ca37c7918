"""DistributedDataParallel without torch's compiler, which we do not use.

Making one asks the compiler for a setting, and running one tells it so. That imports it, which takes 0.6 s and 70 MB of
every worker. Should torch ask in another way one day, it is imported, and all works as well.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Replica(DistributedDataParallel):
    """The model, whose gradients are exchanged in the last backward pass of a step."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        with _silent_compiler():
            super().__init__(model, **settings)

    def _inside_ddp_forward(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()  # only the compiler looks


@contextmanager
def _silent_compiler() -> Iterator[None]:
    """Answer for the compiler as long as nobody has imported it."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    settings = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    torch._dynamo = SimpleNamespace(utils=settings)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch._dynamo
