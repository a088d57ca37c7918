"""The sampler: what a line holds, and that nothing it meets can disturb training."""

import json
import os
import subprocess
import sys
import time
import types

import psutil
import pytest

from dragoman.files import read_json_lines
from dragoman.observe import telemetry
from dragoman.observe.history import GPU_COLUMNS, SAMPLE_COLUMNS
from dragoman.observe.telemetry import Meter, Sampler, append_whole, find_family, open_gpus
from dragoman.rundir import RunDir


def wait_for_lines(path, number):
    deadline = time.monotonic() + 60
    while len(lines := read_json_lines(path)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return lines


@pytest.fixture
def start(tmp_path):
    """A function that starts samplers of this process; they end with the test."""
    started = []

    def start_sampler(path=tmp_path / "telemetry" / "here.jsonl"):
        settings = {"host": "here", "interface": "lo", "workers": [os.getpid()], "gpus": []}
        started.append(Sampler.start(path, tmp_path / "log.txt", **settings))
        return started[-1], path

    yield start_sampler
    for sampler in started:
        sampler.stop()


def test_a_line_holds_all_that_the_reader_knows():
    line = Meter("here", "lo", [os.getpid()], []).sample()
    assert line.keys() == {*SAMPLE_COLUMNS, "host", "interface", "gpus"}
    assert (line["host"], line["interface"], line["gpus"]) == ("here", "lo", [])
    assert len(line["cpu"]) == len(os.sched_getaffinity(0))
    assert all(0 <= percent <= 100 for percent in line["cpu"])
    assert 0 < line["memory_run"] < line["memory_used"] < line["memory_total"]
    assert line["received"] >= 0 <= line["sent"]
    json.dumps(line)


def test_the_run_s_cores_are_those_of_its_processes_and_not_of_others():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        ours, others = Meter("here", "lo", [os.getpid()], []), Meter("here", "lo", [busy.pid], [])
        end = psutil.Process(busy.pid).cpu_times().user + 0.3
        while psutil.Process(busy.pid).cpu_times().user < end:
            time.sleep(0.01)
        child, alone = ours.sample(), others.sample()
    finally:
        busy.kill()
        busy.wait()
    assert alone["cpu_run"] > 0
    assert child["cpu_run"] >= 0.9 * alone["cpu_run"]  # what a worker starts is the run's too
    assert others.sample()["cpu_run"] == 0  # it is gone, and nothing else counts


def test_an_interface_that_is_not_there_is_null():
    line = Meter("here", "no-such", [], []).sample()
    assert line["received"] is None
    assert line["sent"] is None


def test_a_worker_that_is_gone_has_no_family():
    assert list(find_family([2**22 + 1])) == []


def test_it_samples_on_its_own_and_ends_when_told(start):
    sampler, path = start()
    lines = wait_for_lines(path, 2)
    assert lines[1]["time"] > lines[0]["time"]
    sampler.stop()
    assert sampler._process.returncode == 0


def test_it_goes_on_in_the_same_file_after_half_a_line(start):
    sampler, path = start()
    wait_for_lines(path, 1)
    sampler.stop()
    with path.open("a") as file:
        file.write('{"time": 1')
    start()
    lines = wait_for_lines(path, 3)
    assert all(line["host"] == "here" for line in lines)


def test_it_ends_with_the_worker_that_started_it(tmp_path):
    path = tmp_path / "here.jsonl"
    program = (
        "import os, sys, time; from pathlib import Path; from dragoman.observe.telemetry import Sampler\n"
        f"sampler = Sampler.start(Path({str(path)!r}), Path({str(tmp_path / 'log')!r}), host='here', "
        "interface='lo', workers=[os.getpid()], gpus=[])\n"
        "print(sampler._process.pid, flush=True); sys.stdin.read()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    sampler = psutil.Process(int(worker.stdout.readline()))
    wait_for_lines(path, 1)
    worker.kill()
    worker.communicate()
    sampler.wait(20)


def test_what_it_cannot_do_is_one_line_in_the_log(start, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    sampler, _ = start(blocked / "here.jsonl")
    sampler._process.wait(60)
    [line] = (tmp_path / "log.txt").read_text().splitlines()
    assert "telemetry: ended: " in line
    assert sampler._process.returncode == 0


def test_a_line_that_does_not_fit_on_the_disk_is_left_out(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"whole\n")
    with open(path, "ab", buffering=0) as file:

        class Full:
            fileno = file.fileno

            def write(self, data):
                file.write(data[:3])
                return 3

        append_whole(Full(), b"too long\n")
        append_whole(file, b"fits\n")
    assert path.read_bytes() == b"whole\nfits\n"


def fake_nvml(monkeypatch):
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})
    nvml.NVML_CLOCK_SM = 1

    def no_power(handle):
        raise nvml.NVMLError

    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = {"GPU-a": 0, "GPU-b": 1}.__getitem__
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=90 + handle)
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=handle, total=16)
    nvml.nvmlDeviceGetPowerUsage = lambda handle: no_power(handle) if handle else 250_000
    nvml.nvmlDeviceGetClockInfo = lambda handle, kind: 1000 + kind
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_gpus_are_those_of_the_run_and_may_keep_things_to_themselves(monkeypatch):
    fake_nvml(monkeypatch)
    line = Meter("here", "lo", [], ["GPU-b", "GPU-a"]).sample()
    second, first = line["gpus"]
    assert list(first) == list(GPU_COLUMNS)
    assert list(first.values()) == [90, 0, 16, 250.0, 1001]
    assert list(second.values()) == [91, 1, 16, None, 1001]


def test_without_a_driver_there_are_no_gpus(monkeypatch, capsys):
    nvml = fake_nvml(monkeypatch)

    def no_driver():
        raise nvml.NVMLError("no driver")

    nvml.nvmlInit = no_driver
    assert open_gpus(["GPU-a"]) == []
    assert "no driver" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus(["GPU-a"]) == []


@pytest.mark.parametrize(
    ("host", "file"),
    [("node-1.example", "node-1.example"), ("../up", "_up"), ("a/b c", "a_b_c"), ("..", "_"), ("ü", "_")],
)
def test_a_host_s_name_is_safe_as_a_file_s(tmp_path, host, file):
    assert RunDir(tmp_path).telemetry(host) == tmp_path / "telemetry" / f"{file}.jsonl"


def test_it_does_without_torch_and_numpy():
    program = f"import sys, {telemetry.__name__}; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
