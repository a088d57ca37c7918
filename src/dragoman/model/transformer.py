"""The whole Transformer encoder-decoder, in one file, for reading.

Shape suffixes: B batch, S source positions, T target positions, D model width, H heads, K width of a head,
F feed-forward width, V vocabulary, N real target tokens of a batch (no padding).

One embedding matrix serves the source, the target and the output. Positions are sinusoids, so no length is
built in. Predictions are made only where there is a target token: padding never reaches the largest product.
The parameter names are the checkpoint format; ``decode/export.py`` reads them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import Model
from dragoman.model.kernels import add_dropped, attend, dropout, relu_dropped
from dragoman.model.weights import sinusoids


class Batch(NamedTuple):
    """One micro-batch on the device. Padded positions hold id 0 and are masked."""

    src_BS: Tensor  # ends with end-of-sentence
    tgt_in_BT: Tensor  # begins with begin-of-sentence
    tgt_out_N: Tensor  # what follows each target position: the real tokens of all sentences in a row
    src_mask_BS: Tensor | None  # True where there is a token; None when nothing is padded
    tgt_index_N: Tensor  # where the real tokens lie in the flattened (B·T) positions


class Attention(nn.Module):
    """Multi-head attention of queries over themselves, or over a memory."""

    def __init__(self, cfg: Model, *, over_memory: bool) -> None:
        super().__init__()
        self.heads, self.dropout = cfg.heads, cfg.attention_dropout
        if over_memory:
            self.q = nn.Linear(cfg.d_model, cfg.d_model)
            self.kv = nn.Linear(cfg.d_model, 2 * cfg.d_model)
        else:
            self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def forward(
        self, x_BTD: Tensor, memory_BSD: Tensor | None, mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        if memory_BSD is None:
            queries, memory = self.qkv(x_BTD), None
        else:
            queries, memory = self.q(x_BTD), self.kv(memory_BSD)
        dropout = self.dropout if self.training else 0.0
        return self.out(attend(queries, memory, mask, self.heads, dropout, causal=causal))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, cfg: Model) -> None:
        super().__init__()
        self.up = nn.Linear(cfg.d_model, cfg.feed_forward)
        self.down = nn.Linear(cfg.feed_forward, cfg.d_model)
        self.dropout = cfg.relu_dropout

    def forward(self, x_BTD: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        # Of a matrix, a product is no view: changing it in place costs its gradient no copies.
        inner_NF = relu_dropped(self.up(x_BTD.flatten(0, 1)), dropout)
        return self.down(inner_NF).view_as(x_BTD)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One encoder layer; with ``over_memory`` one decoder layer, which also looks at the source."""

    def __init__(self, cfg: Model, *, over_memory: bool) -> None:
        super().__init__()
        self.pre_norm = cfg.norm == "pre"
        self.attention_norm = nn.LayerNorm(cfg.d_model)
        self.attention = Attention(cfg, over_memory=False)
        if over_memory:
            self.cross_norm = nn.LayerNorm(cfg.d_model)
            self.cross_attention = Attention(cfg, over_memory=True)
        self.feed_forward_norm = nn.LayerNorm(cfg.d_model)
        self.feed_forward = FeedForward(cfg)
        self.dropout = cfg.dropout

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        """``memory_mask`` hides source padding: from the memory in the decoder, from itself in the encoder."""
        if memory_BSD is None:
            x_BTD = self._residual(
                x_BTD, self.attention_norm, lambda y: self.attention(y, None, memory_mask, causal=False)
            )
        else:
            # Padding at the end of a target is never seen by the real positions before it: causal is enough.
            x_BTD = self._residual(
                x_BTD, self.attention_norm, lambda y: self.attention(y, None, None, causal=True)
            )
            x_BTD = self._residual(
                x_BTD,
                self.cross_norm,
                lambda y: self.cross_attention(y, memory_BSD, memory_mask, causal=False),
            )
        return self._residual(x_BTD, self.feed_forward_norm, self.feed_forward)

    def _residual(self, x_BTD: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        branch_BTD = block(norm(x_BTD) if self.pre_norm else x_BTD)
        mixed_BTD = add_dropped(x_BTD, branch_BTD, self.dropout if self.training else 0.0)
        return mixed_BTD if self.pre_norm else norm(mixed_BTD)


class Stack(nn.Module):
    """The layers of one side, and the norm that closes them when they are pre-norm."""

    def __init__(self, cfg: Model, num_layers: int, *, over_memory: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(cfg, over_memory=over_memory) for _ in range(num_layers))
        self.norm = nn.LayerNorm(cfg.d_model) if cfg.norm == "pre" else nn.Identity()

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor | None, memory_mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x_BTD = layer(x_BTD, memory_BSD, memory_mask)
        return self.norm(x_BTD)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Source and target in, the state out from which each next target token is predicted."""

    def __init__(self, cfg: Model, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, cfg.d_model)
        # The embedding's weight under other names, as output and as input of the decoder; see untie().
        self._apart: tuple[Tensor, Tensor] | None = None
        self.encoder = Stack(cfg, cfg.layers, over_memory=False)
        self.decoder = Stack(cfg, cfg.num_decoder_layers, over_memory=True)
        self.dropout = cfg.dropout
        self.scale = math.sqrt(cfg.d_model)
        self.positions_TD = torch.from_numpy(
            sinusoids(256, cfg.d_model)
        )  # grows with the longest sentence seen
        self._initialise(cfg)

    def forward(self, batch: Batch) -> Tensor:
        memory_BSD, memory_mask = self.encode(batch.src_BS, batch.src_mask_BS)
        hidden_BTD = self.decode(batch.tgt_in_BT, memory_BSD, memory_mask)
        return hidden_BTD.flatten(0, 1).index_select(0, batch.tgt_index_N)  # N D

    def encode(self, src_BS: Tensor, src_mask_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the encoded source and the mask (B,1,1,S) that hides its padding."""
        memory_mask = None if src_mask_BS is None else src_mask_BS[:, None, None, :]
        return self.encoder(self._embed(src_BS, self.embedding.weight), None, memory_mask), memory_mask

    def decode(self, tgt_in_BT: Tensor, memory_BSD: Tensor, memory_mask: Tensor | None) -> Tensor:
        """Return the hidden state from which each next token is predicted."""
        weight_VD = self.embedding.weight if self._apart is None else self._apart[1]
        return self.decoder(self._embed(tgt_in_BT, weight_VD), memory_BSD, memory_mask)  # type: ignore[no-any-return]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        return F.linear(hidden_ND, self.projection)  # N V

    @property
    def projection(self) -> Tensor:
        """The weight (V, D) that turns a state into logits."""
        return self.embedding.weight if self._apart is None else self._apart[0]

    def untie(self) -> tuple[Tensor, Tensor]:
        """Let the decoder's output and its input have gradients of their own, which the tensors returned collect.

        The weight stays one. As output its gradient is the first that a backward pass completes, as input of the
        decoder it is there before the encoder's turn, and only as input of the encoder it is the last.
        """
        weight = self.embedding.weight
        self._apart = weight.detach().requires_grad_(), weight.detach().requires_grad_()
        return self._apart

    def tie(self) -> None:
        """Undo ``untie``: one weight, one gradient."""
        self._apart = None

    def _embed(self, ids_BT: Tensor, weight_VD: Tensor) -> Tensor:
        length = ids_BT.shape[1]
        if length > len(self.positions_TD):
            self.positions_TD = torch.from_numpy(sinusoids(2 * length, self.positions_TD.shape[1]))
        self.positions_TD = self.positions_TD.to(ids_BT.device)  # no copy once it is there
        x_BTD = F.embedding(ids_BT, weight_VD) * self.scale + self.positions_TD[:length]
        return dropout(x_BTD, self.dropout if self.training else 0.0)

    def _initialise(self, cfg: Model) -> None:
        nn.init.normal_(self.embedding.weight, std=cfg.d_model**-0.5)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and "embedding" not in name:
                # A fused projection is initialised as the square matrices it is made of.
                for part in torch.split(parameter.data, cfg.d_model if is_fused(name) else len(parameter)):
                    nn.init.xavier_uniform_(part)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def is_fused(name: str) -> bool:
    """Whether the parameter stacks several square projections (q, k, v) on top of each other."""
    return name.endswith(("qkv.weight", "kv.weight"))
