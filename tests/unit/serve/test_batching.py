"""Sentences of many requests in one queue: in turns, in order, and nothing lost."""

import asyncio
import threading

import pytest

from dragoman.decode.translator import Hypothesis, Translation
from dragoman.serve import batching
from dragoman.serve.batching import Batcher, Full


class Fake:
    """Translates into capitals, one batch at a time, each when it is let."""

    def __init__(self, gated=False):
        self.batches = []
        self.gate = threading.Semaphore(0 if gated else 10**6)

    def translate(self, lines, nbest=1, attention=False):
        assert self.gate.acquire(timeout=30)
        self.batches.append(list(lines))
        if "bad" in lines:
            raise RuntimeError("a broken batch")
        return iter([Translation((Hypothesis(line.upper(), -1.0, 1),) * nbest) for line in lines])


def run(scenario, translator, **options):
    """Run a scenario with a batcher, which ends with everything done."""

    async def whole():
        given = {"cores": 1, "most_characters": 10**6, "longest_wait_seconds": 60} | options
        batcher = Batcher(translator, **given)
        try:
            await asyncio.wait_for(scenario(batcher), 30)
        finally:
            translator.gate.release(10**6)
            batcher.close()
            batcher.join(30)
        assert not any(thread.is_alive() for thread in batcher._threads)
        assert batcher.queued == 0

    asyncio.run(whole())


def test_every_request_gets_its_own_in_order():
    async def scenario(batcher):
        jobs = [batcher.submit([f"{a} {b}" for b in range(a % 7)]) for a in range(50)]
        for a, job in enumerate(jobs):
            assert [each.text for each in await job.done] == [f"{a} {b}" for b in range(a % 7)]

    run(scenario, Fake(), cores=2)


def test_a_large_request_does_not_hold_up_a_small_one(monkeypatch):
    monkeypatch.setattr(batching, "BATCH_CHARACTERS", 100)
    translator = Fake(gated=True)

    async def scenario(batcher):
        large = batcher.submit([f"sentence {n}" for n in range(1000)])
        small = batcher.submit(["small"])
        translator.gate.release(6)  # what was begun before it came, and a turn
        assert (await small.done)[0].text == "SMALL"
        assert not large.done.done()
        assert sum(map(len, translator.batches)) < 100
        batcher.cancel(large)

    run(scenario, translator)


def test_cores_share_even_a_small_request_evenly():
    translator = Fake()

    async def scenario(batcher):
        await batcher.submit(["a" * length for length in (50, 90, 60, 40)]).done
        assert sorted(sorted(map(len, batch)) for batch in translator.batches) == [[40, 50], [60, 90]]
        translator.batches.clear()
        await batcher.submit(["a" * 50, "a" * 60]).done  # too little for two
        assert len(translator.batches) == 1

    run(scenario, translator, cores=2)


def test_requests_for_more_hypotheses_are_batched_apart():
    translator = Fake(gated=True)

    async def scenario(batcher):
        jobs = [batcher.submit([f"n{n}"], nbest=1 + n % 2) for n in range(10)]
        translator.gate.release(100)
        for n, job in enumerate(jobs):
            assert len((await job.done)[0].hypotheses) == 1 + n % 2

    run(scenario, translator)
    for batch in translator.batches:
        assert len({int(text[1:]) % 2 for text in batch}) == 1


def test_a_full_queue_refuses_and_says_when_to_come_back():
    translator = Fake(gated=True)

    async def scenario(batcher):
        jobs = [batcher.submit(["x" * 500])]  # an empty queue takes any request
        with pytest.raises(Full) as caught:
            batcher.submit(["y"])
        assert caught.value.seconds >= 1
        translator.gate.release(100)
        await jobs[0].done
        await batcher.submit(["y"]).done

    run(scenario, translator, most_characters=100)


def test_too_many_requests_are_refused(monkeypatch):
    monkeypatch.setattr(batching, "MOST_JOBS", 3)
    translator = Fake(gated=True)

    async def scenario(batcher):
        jobs = [batcher.submit(["x"]) for _ in range(3)]
        with pytest.raises(Full):
            batcher.submit(["y"])
        batcher.cancel(jobs[0])
        batcher.submit(["y"])

    run(scenario, translator)


def test_a_long_wait_refuses_as_well():
    translator = Fake(gated=True)

    async def scenario(batcher):
        batcher._rate = 10.0  # characters a second
        waiting = batcher.submit(["x" * 280])
        with pytest.raises(Full) as caught:
            batcher.submit(["y"])
        assert caught.value.seconds == 30
        batcher.cancel(waiting)
        assert batcher.queued == 0

    run(scenario, translator, longest_wait_seconds=20)


def test_a_batch_that_breaks_fails_its_requests_and_no_other():
    async def scenario(batcher):
        with pytest.raises(RuntimeError, match="a broken batch"):
            await batcher.submit(["bad", "good"]).done
        assert (await batcher.submit(["good"]).done)[0].text == "GOOD"

    run(scenario, Fake())


def test_what_nobody_waits_for_is_not_translated():
    translator = Fake(gated=True)

    async def scenario(batcher):
        first, second = batcher.submit(["first"]), batcher.submit(["gone"] * 50)
        batcher.cancel(second)
        last = batcher.submit(["last"])
        translator.gate.release(100)
        await first.done
        await last.done
        assert second.done.cancelled()

    run(scenario, translator)
    assert sum(batch.count("gone") for batch in translator.batches) <= 1


def test_closing_finishes_what_was_accepted():
    translator = Fake(gated=True)

    async def scenario(batcher):
        job = batcher.submit(["a", "b"])
        batcher.close()
        translator.gate.release(100)
        assert [each.text for each in await job.done] == ["A", "B"]

    run(scenario, translator)
