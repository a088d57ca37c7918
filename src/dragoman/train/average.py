"""The moving average of the weights, which often translates better than the last ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dragoman.model.weights import require_same_names


class MovingAverage:
    """Follows the weights: ``average = decay · average + (1 - decay) · weights`` after every step.

    Young averages use a shorter memory, (1 + step) / (10 + step), so the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(model.named_parameters())
        self._average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._average.values()), list(self._weights.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model compute with the averaged weights for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        return self._average

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        require_same_names(set(self._average), set(tensors), "the moving average")
        for name, tensor in tensors.items():
            self._average[name].copy_(tensor)

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self._weights.items():
            weight.data, self._average[name] = self._average[name], weight.data
