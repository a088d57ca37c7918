"""The whole Transformer encoder-decoder, in one file, for reading.

Shape suffixes: B sentences of a batch, M source tokens of all of them, N target tokens, D model width, F feed-forward
width, V vocabulary. Sentences follow each other without padding: every matrix product is of real tokens alone.

One embedding matrix serves the source, the target and the output. Positions are sinusoids, so no length is
built in. The parameter names are the checkpoint format; ``decode/export.py`` reads them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import Model
from dragoman.model.kernels import Product, Sentences, apart, attend, dropout, relu_dropped, residual_norm
from dragoman.model.weights import sinusoids


class Batch(NamedTuple):
    """One micro-batch: the tokens of its sentences in a row, on the device, and their lengths, on the CPU."""

    src_M: Tensor  # each sentence ends with end-of-sentence
    src_lengths_B: Tensor
    tgt_in_N: Tensor  # each sentence begins with begin-of-sentence
    tgt_out_N: Tensor  # what follows each target position
    tgt_lengths_B: Tensor


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
        self, x_ND: Tensor, asking: Sentences, memory_MD: Tensor | None, asked: Sentences, *, causal: bool
    ) -> Product:
        if memory_MD is None:
            queries, memory = apart(self.qkv, x_ND), None
        else:
            queries, memory = apart(self.q, x_ND), apart(self.kv, memory_MD)
        p = self.dropout if self.training else 0.0
        return apart(self.out, attend(queries, memory, asking, asked, self.heads, p, causal=causal))


class FeedForward(nn.Module):
    def __init__(self, cfg: Model) -> None:
        super().__init__()
        self.up = nn.Linear(cfg.d_model, cfg.feed_forward)
        self.down = nn.Linear(cfg.feed_forward, cfg.d_model)
        self.dropout = cfg.relu_dropout

    def forward(self, x_ND: Tensor) -> Product:
        inner_NF = relu_dropped(apart(self.up, x_ND), self.dropout if self.training else 0.0)
        return apart(self.down, inner_NF)


class Layer(nn.Module):
    """One encoder layer; with ``over_memory`` one decoder layer, which also looks at the source."""

    def __init__(self, cfg: Model, *, over_memory: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(cfg.d_model)
        self.attention = Attention(cfg, over_memory=False)
        if over_memory:
            self.cross_norm = nn.LayerNorm(cfg.d_model)
            self.cross_attention = Attention(cfg, over_memory=True)
        self.feed_forward_norm = nn.LayerNorm(cfg.d_model)
        self.feed_forward = FeedForward(cfg)

    def blocks(
        self, own: Sentences, memory_MD: Tensor | None, memory: Sentences
    ) -> list[tuple[nn.LayerNorm, Callable[[Tensor], Product]]]:
        """Return what the layer does to the residual stream, block by block, each with its norm."""
        decodes = memory_MD is not None
        found: list[tuple[nn.LayerNorm, Callable[[Tensor], Product]]] = [
            (self.attention_norm, lambda y_ND: self.attention(y_ND, own, None, own, causal=decodes))
        ]
        if decodes:
            found.append(
                (
                    self.cross_norm,
                    lambda y_ND: self.cross_attention(y_ND, own, memory_MD, memory, causal=False),
                )
            )
        return [*found, (self.feed_forward_norm, self.feed_forward)]


class Stack(nn.Module):
    """The layers of one side, and the norm that closes them when they are pre-norm."""

    def __init__(self, cfg: Model, num_layers: int, *, over_memory: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(cfg, over_memory=over_memory) for _ in range(num_layers))
        self.norm = nn.LayerNorm(cfg.d_model) if cfg.norm == "pre" else None
        self.dropout = cfg.dropout

    def forward(self, x_ND: Tensor, own: Sentences, memory_MD: Tensor | None, memory: Sentences) -> Tensor:
        p = self.dropout if self.training else 0.0
        layers: list[Layer] = list(self.layers)  # type: ignore[arg-type]
        blocks = [each for layer in layers for each in layer.blocks(own, memory_MD, memory)]
        if self.norm is None:
            for norm, block in blocks:
                _, x_ND = residual_norm(x_ND, block(x_ND), norm, p, half=False)
            return x_ND
        # The sum after a block and the norm before the next are one.
        (first, _), *following = blocks
        y_ND: Tensor = first(x_ND)
        for (_, block), (norm, _) in zip(blocks, [*following, (self.norm, None)], strict=True):
            x_ND, y_ND = residual_norm(x_ND, block(y_ND), norm, p, half=True)
        return y_ND


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
        device = batch.src_M.device
        src, tgt = Sentences(batch.src_lengths_B, device), Sentences(batch.tgt_lengths_B, device)
        return self.decode(batch.tgt_in_N, tgt, self.encode(batch.src_M, src), src)

    def encode(self, src_M: Tensor, src: Sentences) -> Tensor:
        """Return the encoded source (M, D)."""
        return self.encoder(self._embed(src_M, src, self.embedding.weight), src, None, src)  # type: ignore[no-any-return]

    def decode(self, tgt_in_N: Tensor, tgt: Sentences, memory_MD: Tensor, src: Sentences) -> Tensor:
        """Return the hidden state (N, D) from which each next token is predicted."""
        weight_VD = self.embedding.weight if self._apart is None else self._apart[1]
        return self.decoder(self._embed(tgt_in_N, tgt, weight_VD), tgt, memory_MD, src)  # type: ignore[no-any-return]

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

    def _embed(self, ids_N: Tensor, sentences: Sentences, weight_VD: Tensor) -> Tensor:
        if sentences.longest > len(self.positions_TD):
            width = self.positions_TD.shape[1]
            self.positions_TD = torch.from_numpy(sinusoids(2 * sentences.longest, width))
        self.positions_TD = self.positions_TD.to(ids_N.device)  # no copy once it is there
        position_ND = self.positions_TD.index_select(0, sentences.position_N)
        x_ND = torch.add(position_ND, F.embedding(ids_N, weight_VD), alpha=self.scale)
        return dropout(x_ND, self.dropout if self.training else 0.0)

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
