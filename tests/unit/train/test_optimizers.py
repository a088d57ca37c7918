"""Optimizers: their formulas, their state, and what they must not cost."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman import config
from dragoman.model.transformer import Transformer, is_fused
from dragoman.train import optimizers
from dragoman.train.optimizers import OPTIMIZERS, Optimizer, build_optimizer, orthogonalise
from tests.unit.cluster.test_sync_gradients import together

D_MODEL = 16
SHAPE = config.Model(layers=1, d_model=D_MODEL, heads=2, feed_forward=32, dropout=0.0)


def build(**settings: object) -> tuple[Transformer, Optimizer]:
    torch.manual_seed(1)
    model = Transformer(SHAPE, 24)
    return model, build_optimizer(model, config.Optimizer(**settings), D_MODEL, "float32")


def set_gradients(model: Transformer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def weights(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def is_matrix(name: str, weight: Tensor) -> bool:
    return weight.ndim == 2 and name != "embedding.weight"


def reference_adam(
    weight: Tensor, gradients: list[Tensor], cfg: config.Optimizer, rate: float, decay: float
) -> Tensor:
    """Adam by the book, in float64."""
    weight, (beta1, beta2) = weight.double(), cfg.betas
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        weight = weight * (1 - rate * decay)
        mean = beta1 * mean + (1 - beta1) * gradient.double()
        square = beta2 * square + (1 - beta2) * gradient.double() ** 2
        denominator = (square / (1 - beta2**step)).sqrt() + cfg.epsilon
        weight = weight - rate * (mean / (1 - beta1**step)) / denominator
    return weight.float()


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_adam_is_the_formula_and_decays_matrices_only(name):
    cfg = config.Optimizer(name=name, weight_decay=0.3, epsilon=1e-8)
    model, optimizer = build(**cfg.model_dump())
    before, gradients = weights(model), {key: [] for key in weights(model)}
    for step in range(4):
        set_gradients(model, step)
        for key, parameter in model.named_parameters():
            gradients[key].append(parameter.grad.clone())
        optimizer.step(0.01)
    for key, weight in weights(model).items():
        matrix = is_matrix(key, weight)
        if not (name == "muon" and matrix):
            decay = 0.3 if name == "adamw" and matrix else 0.0
            expected = reference_adam(before[key], gradients[key], cfg, 0.01, decay)
            torch.testing.assert_close(weight, expected, atol=1e-6, rtol=1e-5)


def test_the_rate_of_each_step_is_the_one_given():
    model, optimizer = build(name="adam")
    before = weights(model)
    set_gradients(model, 1)
    optimizer.step(0.0)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(model).items())
    optimizer.step(0.5)
    assert not torch.equal(model.embedding.weight, before["embedding.weight"])


def test_muon_is_momentum_with_singular_values_near_one():
    model, optimizer = build(name="muon", momentum=0.9, weight_decay=0.5)
    rate, before, momentum = 0.1, weights(model), {}
    for step in range(3):
        before = weights(model)
        set_gradients(model, step)
        optimizer.step(rate)
        for name, parameter in model.named_parameters():
            if not is_matrix(name, parameter):
                continue
            momentum[name] = 0.9 * momentum.get(name, 0.0) + 0.1 * parameter.grad
            nesterov = 0.1 * parameter.grad + 0.9 * momentum[name]
            update = (before[name] * (1 - rate * 0.5) - parameter.detach()) / rate
            rows = D_MODEL if is_fused(name) else len(parameter)
            for part, direction in zip(update.split(rows), nesterov.split(rows), strict=True):
                u, s, vh = torch.linalg.svd(direction, full_matrices=False)
                scale = 0.2 * math.sqrt(max(part.shape))
                values = (
                    torch.diag(u.T @ part @ vh.T) / scale
                )  # the update's, along the momentum's own vectors
                strong = s > 5e-3 * direction.norm()
                assert values[strong].min() > 0.6
                assert values[strong].max() < 1.25
                assert part.square().mean().sqrt() == pytest.approx(0.2, rel=0.25)


def test_parts_of_a_fused_projection_are_orthogonalised_apart():
    updates = {}
    for part_scale in (1.0, 1000.0):
        model, optimizer = build(name="muon")
        set_gradients(model, 1)
        qkv = model.encoder.layers[0].attention.qkv.weight
        qkv.grad[:D_MODEL] *= part_scale
        before = qkv.detach().clone()
        optimizer.step(1.0)
        updates[part_scale] = before - qkv.detach()
    # A thousandfold gradient of q changes nothing, neither for q nor for k and v.
    torch.testing.assert_close(updates[1.0], updates[1000.0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("members", [2, 3, 20])  # for 15 matrices, so that some have none
def test_workers_share_the_orthogonalising_and_take_the_same_steps(members, monkeypatch):
    def take_steps(model, optimizer):
        for step in range(3):
            set_gradients(model, step)
            model.decoder.layers[0].feed_forward.up.weight.grad = None
            optimizer.step(0.01)
        return weights(model)

    workers = [build(name="muon") for _ in range(members)]

    def work(rank, team):
        workers[rank][1].share(team)
        return take_steps(*workers[rank])

    done: list[None] = []
    monkeypatch.setattr(
        optimizers, "orthogonalise", lambda stack, _: done.append(None) or orthogonalise(stack)
    )
    alone = take_steps(*build(name="muon"))
    needed = len(done)
    for found in together(work, members):
        assert all(torch.equal(found[name], weight) for name, weight in alone.items())
    assert len(done) == 2 * needed  # each matrix once, whatever the number of workers


def test_orthogonalise_brings_singular_values_near_one():
    generator = torch.Generator().manual_seed(1)
    u, _ = torch.linalg.qr(torch.randn(3, 20, 20, generator=generator))
    v, _ = torch.linalg.qr(torch.randn(3, 50, 20, generator=generator))
    values = torch.logspace(0, -2.5, 20)
    matrices = u @ torch.diag(values) @ v.mT
    found = u.mT @ orthogonalise(1e-6 * matrices) @ v
    assert torch.allclose(found, torch.diag_embed(found.diagonal(dim1=1, dim2=2)), atol=1e-4)
    assert found.diagonal(dim1=1, dim2=2).min() > 0.65
    assert found.diagonal(dim1=1, dim2=2).max() < 1.25
    one_by_one = torch.cat([orthogonalise(matrix[None]) for matrix in matrices])
    assert torch.equal(orthogonalise(matrices), one_by_one)
    assert torch.equal(orthogonalise(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


def test_orthogonalising_in_bf16_is_exact_enough():
    matrices = torch.randn(2, 16, 48, generator=torch.Generator().manual_seed(1))
    found, exact = orthogonalise(matrices, torch.bfloat16), orthogonalise(matrices)
    assert found.dtype is torch.float32
    assert not torch.equal(found, exact)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.65
    assert values.max() < 1.25
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loaded_state_continues_bit_for_bit(name):
    model, optimizer = build(name=name, weight_decay=0.01)
    for step in range(3):
        set_gradients(model, step)
        optimizer.step(0.01)
    saved = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    resumed_model, resumed = build(name=name, weight_decay=0.01)
    resumed_model.load_state_dict(model.state_dict())
    resumed.load_state(saved)
    for step in range(3, 6):
        for each_model, each in ((model, optimizer), (resumed_model, resumed)):
            set_gradients(each_model, step)
            each.step(0.02)
    after = weights(model)
    assert all(torch.equal(weight, after[key]) for key, weight in weights(resumed_model).items())
    assert not any(torch.equal(saved[key], tensor) for key, tensor in resumed.state().items()), (
        "saved is a copy"
    )


def test_state_is_flat_and_there_from_the_start():
    _, optimizer = build(name="muon")
    state = optimizer.state()
    qkv = "encoder.layers.0.attention.qkv"
    assert {key for key in state if key.startswith(qkv)} == {
        f"{qkv}.weight/momentum",
        f"{qkv}.bias/step",
        f"{qkv}.bias/exp_avg",
        f"{qkv}.bias/exp_avg_sq",
    }
    assert state["embedding.weight/exp_avg"].shape == (24, D_MODEL)


def test_all_that_does_not_fit_is_told_together():
    _, optimizer = build(name="adam")
    tensors = {key: tensor.clone() for key, tensor in optimizer.state().items()}
    del tensors["embedding.weight/step"], tensors["encoder.norm.bias/exp_avg"]
    tensors["other/step"] = torch.zeros(())
    tensors["embedding.weight/exp_avg"] = torch.ones(3)
    tensors["encoder.norm.bias/step"] = torch.ones(())
    with pytest.raises(ValueError, match="does not fit") as caught:
        optimizer.load_state(tensors)
    assert str(caught.value) == (
        "the optimizer state does not fit the model: "
        "embedding.weight/exp_avg has shape (3,) instead of (24, 16), missing embedding.weight/step, "
        "missing encoder.norm.bias/exp_avg, unexpected other/step"
    )
    assert optimizer.state()["encoder.norm.bias/step"] == 0, "nothing was loaded"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tiny_regression_converges(name):
    torch.manual_seed(1)
    x, true = torch.randn(64, 12), torch.randn(12, 12)
    layer = torch.nn.Linear(12, 12)
    optimizer = build_optimizer(layer, config.Optimizer(name=name), 12, "float32")
    for step in range(200):
        optimizer.zero_grad()
        assert layer.weight.grad is None
        loss = F.mse_loss(layer(x), x @ true)
        loss.backward()
        optimizer.step(0.1 * (1 - step / 200))
    assert loss < 0.005 * (x @ true).square().mean()


def test_parameters_without_a_gradient_stay():
    for name in OPTIMIZERS:
        model, optimizer = build(name=name, weight_decay=0.1)
        before = weights(model)
        optimizer.step(0.1)
        assert all(torch.equal(weight, before[key]) for key, weight in weights(model).items())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "adam"}, "adam (betas 0.9 and 0.997, epsilon 1e-09)"),
        (
            {"name": "adamw", "weight_decay": 0.01},
            "adamw (betas 0.9 and 0.997, epsilon 1e-09, weight decay 0.01 on 11 tensors with 5,120 weights)",
        ),
        (
            {"name": "muon"},
            "muon (momentum 0.95, weight decay 0) for 11 tensors with 5,120 weights; "
            "adam (betas 0.9 and 0.997, epsilon 1e-09) for the other 26 tensors with 896 weights",
        ),
    ],
)
def test_description_says_what_updates_what(settings, text):
    _, optimizer = build(**settings)
    assert optimizer.description() == text


def test_building_one_does_not_import_torchs_compiler():
    program = (
        "import sys, torch\n"
        "from dragoman import config\n"
        "from dragoman.train.optimizers import build_optimizer\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "for name in ('adam', 'adamw', 'muon'):\n"
        "    build_optimizer(model, config.Optimizer(name=name), 2, 'float32').step(0.1)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
