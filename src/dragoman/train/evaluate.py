"""Losses on held-out text and on a clean sample of the training text, and a look at what the model says.

Both losses are of the same model without dropout and label smoothing, so they can be compared with each other.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.world import World
from dragoman.data.batches import Indices, collate, plan_evaluation
from dragoman.data.shards import Split
from dragoman.data.tokenizer import BOS, EOS
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Batch, Transformer


@dataclass(frozen=True)
class Probe:
    """Some pairs of a split, cut into micro-batches once, whose loss is measured again and again."""

    split: Split
    micro_batches: list[Indices]


def whole_split(split: Split, tokens_per_micro_batch: int) -> Probe:
    """Probe all of a split."""
    return Probe(split, plan_evaluation(split.lengths, tokens_per_micro_batch))


def fixed_sample(split: Split, size: int, tokens_per_micro_batch: int, *, seed: int) -> Probe:
    """Probe a sample that depends on the seed alone."""
    random = np.random.default_rng([seed, 1])
    chosen = np.sort(random.permutation(len(split))[:size])
    plan = plan_evaluation(split.lengths[chosen], tokens_per_micro_batch)
    return Probe(split, [chosen[indices] for indices in plan])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a micro-batch to where the model is."""
    parts = {
        name: part.to(device, non_blocking=True) for name, part in batch._asdict().items() if part is not None
    }
    return batch._replace(**parts)


@torch.no_grad()
def mean_loss(
    model: Transformer, probe: Probe, world: World, precision: AbstractContextManager[object]
) -> float:
    """Return the negative log-likelihood per token of a probe, its micro-batches shared by the workers."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for indices in probe.micro_batches[world.rank :: world.size]:
        batch = to_device(collate(probe.split, indices), world.device)
        with precision:
            logits_NV = model(batch)
        sums += torch.tensor([token_loss(logits_NV, batch.tgt_out_N, 0.0).nll.item(), len(batch.tgt_out_N)])
    model.train()
    nll, tokens = world.sum(sums).tolist()
    return float(nll / tokens)


@torch.no_grad()
def greedy(model: Transformer, src_ids: np.ndarray, precision: AbstractContextManager[object]) -> list[int]:
    """Return the model's own translation of one sentence, most likely token by token, without the end."""
    model.eval()
    device = model.embedding.weight.device
    src_BS = torch.from_numpy(src_ids.astype(np.int64))[None].to(device)
    tgt_BT = torch.full((1, 1), BOS, device=device)
    with precision:
        memory_BSD, _ = model.encode(src_BS, None)
        for _ in range(2 * len(src_ids) + 10):
            hidden_BTD = model.decode(tgt_BT, memory_BSD, None)
            next_B1: Tensor = model.logits(hidden_BTD[:, -1]).argmax(-1, keepdim=True)
            if next_B1.item() == EOS:
                break
            tgt_BT = torch.cat([tgt_BT, next_B1], dim=1)
    model.train()
    return tgt_BT[0, 1:].tolist()
