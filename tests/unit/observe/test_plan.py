"""Plans against numbers worked out by hand, and memory against what torch really keeps."""

import itertools
import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dragoman.cli import build_app
from dragoman.cluster.estimate import GRADIENTS, Mode
from dragoman.cluster.hosts import Host
from dragoman.errors import UserError
from dragoman.model.flops import training_flops
from dragoman.model.loss import token_loss
from dragoman.model.transformer import Batch, Transformer
from dragoman.model.weights import count_parameters
from dragoman.observe.devices import DEVICES, find_device
from dragoman.observe.memory import MicroBatch, activation_bytes, memory_of
from dragoman.observe.plan import (
    Lengths,
    Price,
    forecast,
    gradient_order,
    parse_price,
    plan_network,
    slowest_work,
)
from dragoman.observe.plan_command import Wish, make_plan
from dragoman.observe.plan_html import write_html
from dragoman.observe.plan_page import as_json, assumptions, notes
from dragoman.recipe import load_recipe

LENGTHS = Lengths(np.array([[30, 20], [10, 20]]), "test")
V100 = DEVICES["v100"]


def plan(*overrides, device=V100, workers=4, hosts=2, mbit=1000, price=None, lengths=LENGTHS):
    recipe = load_recipe("transformer-base", overrides)
    network = plan_network(device, workers, hosts, mbit * 1e6)
    return forecast(recipe, device, network, vocab_size=32768, lengths=lengths, price=price)


def test_the_classic_exercise():
    told = plan()
    assert told.parameters == 60_917_760
    assert told.micro_batches == 8
    full, half = told.outlooks[:2]
    # A ring of four sends 1.5 times four bytes a weight over 94 % of a gigabit; little of it hides.
    assert full.timing.bytes_sent == pytest.approx(60_917_760 * 4 * 1.5)
    assert full.timing.exposed == pytest.approx(60_917_760 * 6 / (0.94 * 125e6), rel=0.02)
    assert half.timing.exposed == pytest.approx(full.timing.exposed / 2, rel=0.03)
    assert told.choice.timing.mode.sync == "local"
    assert told.memory.fits


def test_a_step_computes_what_its_tokens_take():
    told = plan(workers=1, hosts=1)
    cfg = told.recipe.model
    flops = training_flops(cfg, 32768, LENGTHS.pairs) / 40 * 32768
    assert told.flops_per_step == pytest.approx(flops)
    assert told.asked.timing.compute == pytest.approx(flops / V100.flops_per_second("fp16", cfg.d_model))
    assert told.asked.tokens_per_second == pytest.approx(32768 / told.asked.timing.seconds)


def test_hours_and_cost_follow_from_the_seconds_of_a_step():
    told = plan(price=Price(3.06, "device"))
    seconds = told.asked.timing.seconds
    assert told.asked.hours == pytest.approx(seconds * 300_000 / 3600)
    assert told.asked.cost == pytest.approx(told.asked.hours * 4 * 3.06)
    by_host = plan(price=Price(6.12, "host"))
    assert by_host.asked.cost == pytest.approx(told.asked.cost)


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("3.06/h", Price(3.06, "device")),
        ("3.06", Price(3.06, "device")),
        ("$12.24/host/h", Price(12.24, "host", "$")),
        ("0.9/gpu/h", Price(0.9, "device")),
    ],
)
def test_a_price_is_of_a_device_or_of_a_host(text, price):
    assert parse_price(text) == price


def test_what_is_no_price_is_told_how_to_write_one():
    with pytest.raises(UserError, match=r"fix:.*3.06/h"):
        parse_price("cheap")


def test_the_sheet_says_what_was_measured_on_it():
    """The two figures that the model of devices was fitted to: a Transformer-big on one V100."""
    big = load_recipe("transformer-big").model
    flops = training_flops(big, 33_708, np.array([[28, 28]])) / 28
    for precision, tokens_per_second in (("float32", 7_635), ("fp16", 32_153)):
        rate = V100.flops_per_second(precision, 1024) / flops
        assert rate == pytest.approx(tokens_per_second, rel=0.15)


def test_narrow_models_get_less_out_of_a_device():
    rates = [V100.flops_per_second("fp16", width) for width in (128, 256, 512, 1024)]
    assert rates == sorted(rates)


def test_precision_follows_the_device():
    assert V100.precision("auto") == "fp16"
    assert DEVICES["a100"].precision("auto") == "bf16"
    assert DEVICES["cpu"].precision("auto") == "float32"
    with pytest.raises(UserError, match="NVIDIA V100 16 GB has no bf16 arithmetic"):
        V100.precision("bf16")


def test_an_unknown_device_names_the_nearest():
    assert find_device("NVIDIA-A100") is DEVICES["a100"]
    with pytest.raises(UserError, match="did you mean v100"):
        find_device("v1000")
    with pytest.raises(UserError, match="can be measured with --measure"):
        find_device("abacus")


def test_more_devices_than_micro_batches_are_said_to_be_idle():
    told = plan(workers=16, hosts=8)
    assert told.busy == 8
    assert any(
        "8 micro-batches, so 8 of 16 devices have nothing to do" in note and "micro_batch_tokens=2048" in note
        for note in notes(told)
    )
    assert not any("nothing to do" in note for note in notes(plan()))


def test_a_cluster_that_is_slower_than_one_device_is_named():
    assert any("slower than one of its devices alone" in note for note in notes(plan()))
    assert not any("slower than one" in note for note in notes(plan(mbit=100_000)))


def test_dropout_of_subwords_is_said_not_to_be_counted():
    assert any(
        "vocab.dropout=0.1 makes sentences longer" in note for note in notes(plan("vocab.dropout=0.1"))
    )
    assert not any("vocab.dropout" in note for note in notes(plan()))


def test_what_does_not_fit_is_told_what_would():
    told = plan("train.tokens_per_step=65536", "train.micro_batch_tokens=65536")
    assert not told.memory.fits
    assert any(f"train.micro_batch_tokens={told.fitting_tokens} would" in note for note in notes(told))
    assert plan("train.tokens_per_step=65536", f"train.micro_batch_tokens={told.fitting_tokens}").memory.fits
    assert not plan(
        "train.tokens_per_step=65536", f"train.micro_batch_tokens={told.fitting_tokens + 512}"
    ).memory.fits


def test_more_devices_never_compute_more_each():
    for told in (plan(), plan("train.micro_batch_tokens=100")):
        compute = [rung.outlooks[str(GRADIENTS[0])].timing.compute for rung in told.ladder]
        assert [rung.devices for rung in told.ladder] == [2**power for power in range(11)]
        assert all(more <= fewer * 1.0001 for fewer, more in itertools.pairwise(compute))


def test_a_faster_network_never_predicts_slower():
    for mode in range(10):
        seconds = [plan(mbit=mbit).outlooks[mode].timing.seconds for mbit in (1, 10, 100, 1000, 10_000)]
        assert seconds == sorted(seconds, reverse=True)


def test_the_slowest_of_equal_workers_is_slower_than_the_mean():
    told = plan()
    alone, two, uneven = (slowest_work(1.0, told.rates, 6, workers) for workers in (1, 2, 4))
    assert alone.compute_seconds == pytest.approx(6.0)
    # Of two normal numbers the larger is 0.56 deviations above the mean; three micro-batches deviate √3 times.
    assert two.compute_seconds == pytest.approx(3 + 0.56 * 3**0.5 * told.rates.spread, rel=0.01)
    assert 2.0 < uneven.compute_seconds < 2.1  # two have two, two have one


def test_gradients_come_in_order_and_none_is_forgotten():
    recipe = load_recipe("transformer-base")
    order = gradient_order(recipe.model, 32768, LENGTHS)
    assert sum(each.numbers for each in order) == count_parameters(recipe.model, 32768)
    ready = [each.ready for each in order]
    assert ready == sorted(ready)
    assert 0 == ready[0] < ready[2] < ready[-1] == 1.0
    assert order[-1].numbers == 32768 * 512  # the embedding


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
def test_activations_are_what_torch_keeps(recipe_with, half, dropout, attention_dropout):
    cfg = recipe_with(
        "model.layers=2", "model.decoder_layers=3", "model.d_model=64", "model.heads=4", "model.feed_forward=192",
        f"model.dropout={dropout}", f"model.relu_dropout={dropout}", f"model.attention_dropout={attention_dropout}",
    ).model  # fmt: skip
    sentences, src, tgt, vocab = 9, 23, 17, 504  # no shape is also a weight's
    model = Transformer(cfg, vocab)
    ids = torch.randint(4, vocab, (sentences * tgt,))
    lengths = [torch.full((sentences,), length) for length in (src, tgt)]
    batch = Batch(torch.randint(4, vocab, (sentences * src,)), lengths[0], ids, ids, lengths[1])
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    weights = {tuple(shape) for weight in model.parameters() for shape in (weight.shape, weight.shape[::-1])}
    kept = {}

    def keep(tensor):
        # Not weights, nor their copies in half precision, nor their gradients: those are counted elsewhere.
        if tuple(tensor.shape) not in weights:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    precision = torch.autocast("cpu", torch.bfloat16) if half else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        loss = token_loss(model(batch), model.projection, batch.tgt_out_N, 0.1)
    really = sum(size for place, size in kept.items() if place not in own)
    counted = activation_bytes(cfg, MicroBatch(sentences, src, tgt), half=half, on_gpu=False)
    assert counted == pytest.approx(really, rel=0.08)
    assert loss.smoothed.requires_grad


def test_memory_of_what_does_not_depend_on_the_batch(recipe_with):
    recipe = recipe_with("optimizer.name=adam", "train.average=ema", "model.d_model=64", "model.heads=4")
    weights = count_parameters(recipe.model, 1000)
    model = Transformer(recipe.model, 1000)
    assert weights == sum(weight.numel() for weight in model.parameters())

    def memory(sync, wire, precision="float32", hosts=2):
        return memory_of(
            recipe, 1000, MicroBatch(10, 20, 20), Mode(sync, wire), precision=precision, on_gpu=True,
            hosts=hosts, available=1e9, reserved=1e8,
        )  # fmt: skip

    exact = memory("every-step", "float32")
    assert (exact.weights, exact.gradients, exact.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    assert (exact.average, exact.exchange) == (4 * weights, 0)
    assert exact.logits == 200 * 1000 * 4 + 4 * 64 * 1000
    assert memory("compressed", "int4").exchange == 4 * weights  # what rounding owes
    assert memory("compressed", "int4", hosts=1).exchange == 0
    assert memory("local", "int4").exchange == 8 * weights  # common weights and momentum
    assert exact.weights < memory("every-step", "float32", "fp16").weights < 1.5 * exact.weights


def test_the_json_has_the_same_keys_every_time():
    told, alone = as_json(plan(price=Price(1.0, "device"))), as_json(plan(workers=1, hosts=1))
    assert list(told) == [
        "model", "cluster", "rates", "memory", "modes", "choice", "asked", "scaling", "price", "notes", "assumptions",
    ]  # fmt: skip

    def keys(value):
        return {key: keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None

    for name in ("model", "cluster", "rates", "memory", "choice", "asked"):
        assert keys(told[name]) == keys(alone[name])
    assert [keys(each) for each in told["modes"]] == [keys(each) for each in alone["modes"]]
    assert alone["modes"][0]["cost"] is None
    json.dumps(told, allow_nan=False)


def test_assumptions_say_how_to_change_them():
    said = "\n".join(assumptions(plan(price=Price(3.06, "device"))))
    for option in ("--lengths", "--tflops", "--measure", "--within", "--network", "--latency-ms", "--price"):
        assert option in said


def test_options_change_what_is_assumed():
    wish = {"gpus": 4, "gpus_per_host": 2, "device": "v100", "network": "1Gbit"}
    plain = make_plan("transformer-base", (), Wish(**wish), [])
    assert (plain.network.workers, plain.network.hosts, plain.lengths.source) == (4, 2, "assumed")
    changed = make_plan(
        "transformer-base", (),
        Wish(**wish, lengths="56,28", tflops=10.0, within="8Gbit", latency_ms=2.0, price="3/h"), [],
    )  # fmt: skip
    assert changed.flops_per_step > plain.flops_per_step
    assert changed.rates.flops_per_second == 10e12
    assert changed.network.within.bytes_per_second == 1e9
    assert changed.network.between.latency_seconds == 0.002
    assert changed.price == Price(3.0, "device")
    named = make_plan("tiny", (), Wish(device="cpu", network="none"), [Host("a", 2), Host("b", 1)])
    assert (named.network.workers, named.network.hosts) == (3, 2)


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        (Wish(gpus=4), "which device"),
        (Wish(gpus=4, gpus_per_host=2, device="v100"), "how fast is the network between the 2 hosts"),
        (Wish(device="v100", lengths="many"), "not the lengths of two sides"),
        (Wish(device="v100", lengths="0,3"), "not the lengths of two sides"),
        (Wish(gpus=2, gpus_per_host=1, device="v100", network="fast"), "not the rate of a network"),
        (Wish(device="cpu", price="-1"), "not a price"),
    ],
)
def test_what_is_missing_or_wrong_is_named(wish, what):
    with pytest.raises(UserError, match=what):
        make_plan("tiny", (), wish, [])


def test_the_command_prints_a_page():
    line = "plan transformer-base --gpus 4 --gpus-per-host 2 --device v100 --network 1Gbit --price 3.06/h"
    result = CliRunner().invoke(build_app(), line.split())
    assert result.exit_code == 0, result.output
    for part in (
        "memory of a device",
        "local/16 int4",
        "1,024 (8 busy)",
        "cost",
        "use local",
        "assumed and known",
    ):
        assert part in result.output


def test_the_page_as_html_has_the_charts_values(tmp_path):
    path = tmp_path / "plan.html"
    told = plan(
        "data.directory=<b>", price=Price(3.06, "device"), lengths=Lengths(LENGTHS.pairs, "<b>set</b>")
    )
    write_html(told, path)
    text = path.read_text("utf-8")
    assert text.count("Plotly.newPlot") == 3
    assert "<b>set</b>" not in text
    assert "&lt;b&gt;set" in text
    assert str(told.ladder[-1].outlooks["every-step, float32"].tokens_per_second) in text
