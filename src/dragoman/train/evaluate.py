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
from dragoman.model.kernels import Sentences
from dragoman.model.loss import token_nll
from dragoman.model.transformer import Batch, Transformer

TOKENS = ("src_M", "tgt_in_N", "tgt_out_N")  # of a batch


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
    """Move a micro-batch's tokens to where the model is."""
    tokens = {name: getattr(batch, name).to(device, non_blocking=True) for name in TOKENS}
    return batch._replace(**tokens)


@dataclass(frozen=True)
class SentenceLosses:
    """The negative log-likelihood of each sentence, a sum over its tokens, and how many these are."""

    nll: np.ndarray
    tokens: np.ndarray

    def mean(self) -> float:
        """Return the loss per token."""
        return float(self.nll.sum() / self.tokens.sum())


@torch.no_grad()
def sentence_losses(
    model: Transformer, probe: Probe, world: World, precision: AbstractContextManager[object]
) -> SentenceLosses:
    """Return the losses of a probe's sentences, in the order of their split; workers share its micro-batches.

    Each sentence is computed by one worker, in the same micro-batch: any number of workers finds the same numbers.
    """
    model.eval()
    order = np.concatenate(probe.micro_batches)
    tokens = probe.split.lengths[order, 1]
    nll = torch.zeros(len(order), dtype=torch.float64)
    ends = np.cumsum([len(indices) for indices in probe.micro_batches])
    for number in range(world.rank, len(ends), world.size):
        indices = probe.micro_batches[number]
        batch = to_device(collate(probe.split, indices), world.device)
        with precision:
            logits_NV = model.logits(model(batch))
        mine = slice(ends[number] - len(indices), ends[number])
        nll_N = token_nll(logits_NV, batch.tgt_out_N).double().cpu()
        sentence_N = np.repeat(np.arange(mine.start, mine.stop), tokens[mine])
        nll.index_add_(0, torch.from_numpy(sentence_N), nll_N)
    model.train()
    in_order = np.argsort(order)
    return SentenceLosses(world.sum(nll).numpy()[in_order], tokens[in_order])


@torch.no_grad()
def greedy(model: Transformer, src_ids: np.ndarray, precision: AbstractContextManager[object]) -> list[int]:
    """Return the model's own translation of one sentence, most likely token by token, without the end."""
    model.eval()
    device = model.embedding.weight.device
    src_M = torch.from_numpy(src_ids.astype(np.int64)).to(device)
    src = Sentences(torch.tensor([len(src_M)]), device)
    tgt_N = torch.full((1,), BOS, device=device)
    with precision:
        memory_MD = model.encode(src_M, src)
        for _ in range(2 * len(src_ids) + 10):
            hidden_ND = model.decode(tgt_N, Sentences(torch.tensor([len(tgt_N)]), device), memory_MD, src)
            next_1: Tensor = model.logits(hidden_ND[-1:]).argmax(-1)
            if next_1.item() == EOS:
                break
            tgt_N = torch.cat([tgt_N, next_1])
    model.train()
    return tgt_N[1:].tolist()
