"""How workers agree on gradients.

``every-step`` is DistributedDataParallel: the gradients of every step are summed over the world while the last
micro-batch's backward still runs. A communication hook sums instead of averaging, because the loss is already
divided by the tokens of the whole step.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dragoman.cluster.world import World


class EveryStep:
    """The model as the world trains it: call ``module``; gradients are summed on the last micro-batch."""

    def __init__(self, world: World, model: nn.Module) -> None:
        self.world = world
        self.module: nn.Module = model
        if world.size > 1:
            replica = DistributedDataParallel(
                model,
                device_ids=[world.device] if world.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
            )
            replica.register_comm_hook(None, _sum_bucket)
            self.module = replica

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Surround one forward and backward; only the last of a step exchanges gradients."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()


SYNCS = {"every-step": EveryStep}


def _sum_bucket(
    state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return summed
