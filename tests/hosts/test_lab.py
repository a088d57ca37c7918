"""A lab of real namespaces: hosts, links, faults, and nothing left behind."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import dragoman
from dragoman.cluster.lab.client import LAB, ask
from dragoman.errors import UserError
from tests.hosts.conftest import SECONDS, Lab, wait_until

pytestmark = pytest.mark.timeout(60)

SINK = """
import socket, time
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    client = server.accept()[0]
    count, start = 0, time.monotonic()
    while received := client.recv(1 << 16):
        count += len(received)
    print(count * 8 / (time.monotonic() - start) / 1e6, flush=True)
"""
SOURCE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as server:
    server.sendall(bytes(int(sys.argv[3])))
"""
ECHO = """
import socket
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    client = server.accept()[0]
    while received := client.recv(1 << 16):
        client.sendall(received)
"""
# Passes each line of its input on to the server, and says what comes back.
TALK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as server:
    for line in sys.stdin:
        server.sendall(line.encode())
        print(server.recv(1 << 16).decode(), end="", flush=True)
"""
# Counts what it gets of a signal, also some time after the first, and tells by its exit code.
COUNT = """
import signal, sys, time
received = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: received.append(1))
print("ready", flush=True)
while not received:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(10 + len(received))
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def dragoman_lab(*arguments: str, **options) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dragoman", "lab", *arguments]
    return subprocess.run(command, text=True, capture_output=True, timeout=SECONDS, **options)


def goodput(lab, source: str, target: str, megabytes: float) -> float:
    """Return the megabits per second that arrive at ``target``."""
    sink = lab.popen(target, python(SINK), stdout=subprocess.PIPE)
    port = sink.stdout.readline().strip()
    lab.output(source, python(SOURCE, target, port, str(int(megabytes * 1e6))))
    return float(sink.stdout.readline())


def networks_in_use() -> set[str]:
    """Return the network namespaces of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):  # it has ended
            found.add(os.readlink(path))
    return found


def test_hosts_have_names_and_reach_each_other(lab):
    assert [lab.output(host, ["hostname"]) for host in ("host1", "host2")] == ["host1", "host2"]
    assert lab.inside(["hostname"]).stdout.strip() == os.uname().nodename
    for source in ("host1", "lab"):
        server = lab.popen("host2", python(ECHO), stdout=subprocess.PIPE)
        port = server.stdout.readline().strip()
        assert lab.output(source, python(TALK, "host2", port), input="hello\n") == "hello"
    assert lab.environment["DRAGOMAN_HOSTS"] == "host1:1,host2:1"
    # Nothing else can be reached.
    assert "default" not in lab.output("host1", ["ip", "route"])


def test_the_rate_of_a_link_is_kept_both_ways_and_can_be_changed(make_lab):
    lab = make_lab(network="20mbit")
    assert 14 < goodput(lab, "host1", "host2", 2.5) < 21
    lab.slow("host2", "none")  # now only host1 is slow, and so both ways through its own link
    assert 14 < goodput(lab, "host1", "host2", 2.5) < 21
    assert 14 < goodput(lab, "host2", "host1", 2.5) < 21
    lab.slow("host1", "5mbit")
    assert 3 < goodput(lab, "host2", "host1", 0.5) < 6
    lab.slow("host1", "none")
    assert goodput(lab, "host1", "host2", 10) > 100
    assert [host["network"] for host in lab.status().values()] == ["none", "none"]


def test_an_idle_link_answers_at_once(make_lab):
    lab = make_lab(network="100mbit")
    server = lab.popen("host1", python(ECHO), stdout=subprocess.PIPE)
    port = server.stdout.readline().strip()
    program = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as server:
    seconds = []
    for _ in range(101):
        start = time.perf_counter()
        server.sendall(b"x"), server.recv(1)
        seconds.append(time.perf_counter() - start)
print(sorted(seconds)[50])
"""
    assert float(lab.output("host2", python(program, "host1", port))) < 0.001


def test_cut_stops_traffic_and_restore_brings_it_back(lab):
    server = lab.popen("host1", python(ECHO), stdout=subprocess.PIPE)
    port = server.stdout.readline().strip()
    client = lab.popen(
        "host2", python(TALK, "host1", port), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1
    )
    client.stdin.write("before\n")
    assert client.stdout.readline() == "before\n"
    lab.cut("host1")
    assert lab.status()["host1"]["state"] == "cut"
    refused = lab.run("host1", ["true"])
    assert refused.returncode == 255
    assert refused.stderr == (
        "dragoman lab: no route to host1, it has its cable cut: dragoman lab restore host1\n"
    )
    client.stdin.write("during\n")
    probe = python("import socket; socket.create_connection(('host1', 9), timeout=0.5)")
    assert lab.run("host2", probe).returncode != 0
    assert server.poll() is None
    assert client.poll() is None
    lab.restore("host1")
    assert client.stdout.readline() == "during\n"  # TCP sends it again: no byte is lost
    assert lab.run("host1", ["true"]).returncode == 0


def test_kill_powers_a_host_off_until_it_is_restored(lab):
    # One process stays in front, one has left everybody: another session, another parent.
    daemon = "setsid sh -c 'sleep 100 & exec sleep 100' & echo started; exec sleep 100"
    process = lab.popen("host1", ["sh", "-c", daemon], stdout=subprocess.PIPE)
    bystander = lab.popen("host2", ["sleep", "100"])
    assert process.stdout.readline() == "started\n"
    wait_until(lambda: lab.status()["host1"]["processes"] == 3, "all three")
    assert lab.kill("host1") == "host1 is powered off, 3 processes killed"
    assert process.wait(SECONDS) == 128 + signal.SIGKILL
    assert bystander.poll() is None
    assert lab.status()["host1"]["processes"] == 0
    assert lab.run("host1", ["true"]).returncode == 255
    lab.cut("host1")  # without power, the cable does not matter
    assert lab.status()["host1"]["state"] == "off"
    lab.restore("host1")
    assert lab.output("host1", ["hostname"]) == "host1"


@pytest.mark.parametrize("place", ["lab", "outside"])
def test_nobody_slips_into_a_host_that_is_killed_meanwhile(lab, place):
    program = """
import sys
from dragoman.cluster.lab import client
enter = client.enter
def enter_late(namespaces):
    if "net" in namespaces:
        print("at the door", flush=True)
        sys.stdin.readline()
    return enter(namespaces)
client.enter = enter_late
sys.exit(client.exec_on_host("host1", ["--", "sleep", "100"]))
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if place == "lab":
        late = lab.popen("lab", python(program), **pipes)
    else:
        late = subprocess.Popen(python(program), text=True, env=lab.environment, **pipes)
        lab.started.append(late)
    assert late.stdout.readline() == "at the door\n"
    assert lab.kill("host1") == "host1 is powered off, 0 processes killed"
    assert "no route to host1, it is powered off" in late.communicate("\n", timeout=SECONDS)[1]
    assert late.returncode == 255


def test_exec_is_like_the_command_itself(lab, tmp_path):
    data = bytes(range(256)) * 1000
    assert lab.run("host1", ["cat"], input=data, text=False).stdout == data
    assert lab.run("host1", ["sh", "-c", "echo to stderr >&2; exit 7"]).returncode == 7
    assert lab.run("host1", ["sh", "-c", "echo to stderr >&2; exit 7"]).stderr == "to stderr\n"
    assert lab.run("host1", ["sh", "-c", "kill -KILL $$"]).returncode == 137
    assert lab.run("host1", ["no-such-program"]).returncode == 127
    assert lab.run("host1", ["no-such-program"]).stderr == (
        "dragoman lab: no-such-program: No such file or directory\n"
    )
    assert lab.run("host1", [str(tmp_path)]).returncode == 126
    assert lab.output("host1", ["pwd"], cwd=tmp_path) == str(tmp_path)
    assert lab.output("host1", ["sh", "-c", 'echo "$0 $1"', "a  b", "$HOME"]) == "a  b $HOME"
    quiet = lab.run(
        "host1", ["sh", "-c", "yes | head -1"]
    )  # SIGPIPE ends yes, which has no reason to complain
    assert (quiet.stdout, quiet.stderr) == ("y\n", "")


def test_exec_without_dashes_is_like_ssh(lab):
    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        return dragoman_lab("exec", *words, env=lab.environment)

    assert call("host1", "echo", "a  b", "$(hostname);", "exit 4").stdout == "a b host1\n"
    assert call("host1", "echo", "a  b", "$(hostname);", "exit 4").returncode == 4
    assert call("host1", "--", "echo", "a  b", "$(hostname)").stdout == "a  b $(hostname)\n"
    assert call("host2", "--", "sh", "-c", "exit 5").returncode == 5
    fast = [sys.executable, "-m", "dragoman.cluster.lab", "exec", "host2", "hostname;", "echo", "--json"]
    assert subprocess.check_output(fast, text=True, env=lab.environment) == "host2\n--json\n"


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_signals_reach_what_exec_runs(lab, place):
    if place == "outside":
        process = lab.popen("host1", python(COUNT), stdout=subprocess.PIPE)
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(SECONDS) == 11
    else:  # there it is the same process
        line = [sys.executable, "-m", "dragoman.cluster.lab", "exec", "host1", "--", *python(COUNT)]
        program = f"""
import subprocess, sys
process = subprocess.Popen({line!r}, stdout=subprocess.PIPE)
process.stdout.readline()
process.terminate()
sys.exit(process.wait())
"""
        assert lab.inside(python(program)).returncode == 11


def test_what_exec_runs_dies_with_it(lab):
    process = lab.popen("host1", ["sleep", "100"])
    wait_until(lambda: lab.status()["host1"]["processes"] == 1, "the process")
    process.kill()
    wait_until(lambda: lab.status()["host1"]["processes"] == 0, "its end")


def test_a_mount_on_one_host_is_on_that_host_only(lab, tmp_path):
    (tmp_path / "file").write_text("shared")
    mounted = lab.run("host1", ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)])
    assert mounted.returncode == 0, mounted.stderr
    assert lab.output("host1", ["ls", str(tmp_path)]) == ""
    assert lab.output("host2", ["cat", str(tmp_path / "file")]) == "shared"
    assert os.listdir(tmp_path) == ["file"]


def test_cores_are_given_to_hosts(make_lab):
    usable = sorted(os.sched_getaffinity(0))
    lab = make_lab(hosts=3, cores_per_host=1)
    wanted = [[usable[host % len(usable)]] for host in range(3)]
    program = python("import os; print(sorted(os.sched_getaffinity(0)))")
    assert [lab.output(f"host{n}", program) for n in (1, 2, 3)] == [str(cores) for cores in wanted]
    assert [host["cores"] for host in lab.status().values()] == wanted
    assert json.loads(lab.inside(program).stdout) == usable


def test_hosts_that_must_share_cores_are_announced():
    usable = len(os.sched_getaffinity(0))
    result = dragoman_lab("--hosts", "2", "--cores-per-host", str(usable), "--", "true")
    assert result.stderr.startswith(
        f"warning: 2 hosts of {usable} cores need {2 * usable}, and {usable} can be used here: hosts share cores"
    )


def test_the_exit_code_is_that_of_the_command():
    assert dragoman_lab("--hosts", "1", "--", "sh", "-c", "exit 3").returncode == 3
    assert dragoman_lab("--hosts", "1", "--", "sh", "-c", "kill -KILL $$").returncode == 137
    result = dragoman_lab("--hosts", "1", "--", "cat", input="through\n")
    assert (result.returncode, result.stdout) == (0, "through\n")
    assert re.fullmatch(r"lab \d+: host1, network none; see dragoman lab status\n", result.stderr)


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_reaches_the_command_once(send):
    line = [sys.executable, "-m", "dragoman", "lab", "--hosts", "1", "--", *python(COUNT)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        send(process.pid, signal.SIGTERM)
        assert process.wait(SECONDS) == 11


@pytest.mark.parametrize("where", ["command", "exec"])
def test_ctrl_c_in_a_terminal_reaches_the_command_once(lab, where):
    if where == "command":
        line = [sys.executable, "-m", "dragoman", "lab", "--hosts", "1", "--", *python(COUNT)]
    else:
        line = [sys.executable, "-m", "dragoman.cluster.lab", "exec", "host1", "--", *python(COUNT)]
    child, terminal = pty.fork()
    if child == 0:
        os.execve(line[0], line, lab.environment)
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    status = os.waitpid(child, 0)[1]
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 11


def test_a_lab_killed_with_no_chance_to_clean_up_leaves_nothing(lab):
    lab.popen("host1", ["sh", "-c", "setsid sleep 100 & exec sleep 100"])
    wait_until(lambda: lab.status()["host1"]["processes"] == 2, "the processes")
    family = psutil.Process(lab.process.pid).children(recursive=True)
    networks = {lab.output(host, ["readlink", "/proc/self/ns/net"]) for host in ("host1", "host2", "lab")}
    assert len(networks & networks_in_use()) == 2  # nobody is on host2
    links = subprocess.check_output(["ip", "-brief", "link"], text=True)
    lab.process.kill()
    wait_until(lambda: not any(each.is_running() for each in family), "the end of all processes")
    assert not networks & networks_in_use()
    assert subprocess.check_output(["ip", "-brief", "link"], text=True) == links
    assert "dragoman" not in Path("/proc/mounts").read_text()
    with pytest.raises(UserError, match=f"lab {lab.name} is not running"):
        ask("status", lab=lab.name)
    assert Path(lab.directory).exists()
    assert dragoman_lab("--", "true").returncode == 0
    assert not Path(lab.directory).exists()


def test_a_lab_that_ends_takes_everything_with_it():
    program = f"{sys.executable} -m dragoman.cluster.lab exec host1 -- setsid sleep 100 & echo ${LAB}"
    directory = dragoman_lab("--", "sh", "-c", program).stdout.strip()
    assert directory.startswith("/tmp/dragoman-lab-")
    assert not Path(directory).exists()


def test_two_labs_at_once(make_lab):
    first, second = make_lab(), make_lab(hosts=3, workers_per_host=2)
    assert second.environment["DRAGOMAN_HOSTS"] == "host1:2,host2:2,host3:2"
    assert (len(first.status()), len(second.status())) == (2, 3)
    first.kill("host1")
    assert second.run("host1", ["true"]).returncode == 0
    unsure = dragoman_lab("status")
    assert unsure.returncode == 2
    assert "labs are running" in unsure.stderr
    assert "fix:   choose one, such as --lab " in unsure.stderr
    assert first.name in unsure.stderr
    assert second.name in unsure.stderr
    assert "host3" not in dragoman_lab("status", "--lab", first.name).stdout
    assert "host3" in dragoman_lab("status", "--lab", second.name).stdout
    assert "host3" in second.inside([sys.executable, "-m", "dragoman", "lab", "status"]).stdout
    assert dragoman_lab("restore", "host1", "--lab", first.name).stdout == "host1 is up\n"


def test_status_for_people_and_programs(make_lab):
    lab = make_lab(network="1.5gbit")
    lab.cut("host2")
    status = json.loads(dragoman_lab("status", "--json", env=lab.environment).stdout)
    hosts = [{key: host[key] for key in host if key != "processes"} for host in status["hosts"]]
    saved = json.loads(Path(lab.directory, "lab.json").read_text())
    assert saved == {**status, "hosts": hosts}
    assert hosts[1] == {
        "name": "host2",
        "address": "10.77.0.2",
        "state": "cut",
        "network": "1.5gbit",
        "bits_per_second": 1_500_000_000,
        "cores": [],
        "workers": 1,
    }
    lines = dragoman_lab("status", env=lab.environment).stdout.splitlines()
    assert lines[0].startswith(f"lab {lab.name}: sh -c ")
    assert lines[1].split() == ["HOST", "ADDRESS", "STATE", "NETWORK", "CORES", "PROCESSES"]
    assert lines[2].split() == ["host1", "10.77.0.1", "up", "1.5gbit", "all", "0"]


@pytest.fixture(scope="module")
def quiet_lab():
    """One lab for all tests that change nothing."""
    with Lab() as lab:
        yield lab


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--network", "fast", "--", "true"],
            "error: 'fast' is not the rate of a network\n"
            "  where: --network fast\n"
            "  fix:   write it like 20mbit, 100mbit or 1.5gbit (bits per second), or none for no limit\n",
        ),
        (
            ["--", "no-such-program", "x"],
            "error: cannot run no-such-program: there is no such program\n"
            "  where: dragoman lab -- no-such-program x\n"
            "  fix:   check the command after --\n",
        ),
        (
            ["cut", "host9"],
            "error: there is no host host9\n  where: dragoman lab cut host9\n  fix:   choose one of: host1, host2\n",
        ),
        (
            ["slow", "host1", "0mbit"],
            "error: '0mbit' is not the rate of a network\n"
            "  where: dragoman lab slow host1 0mbit\n"
            "  fix:   write it like 20mbit, 100mbit or 1.5gbit (bits per second), or none for no limit\n",
        ),
        (["exec", "host9", "true"], "error: there is no host host9\n"),
        (["status", "--lab", "x"], "error: lab x is not running\n  where: --lab x\n  fix:   choose one of: "),
        (["--hosts", "2"], "error: Missing argument 'COMMAND'"),
        (["cat", "host1"], "error: No such command 'cat'."),
    ],
)
def test_mistakes_are_explained(quiet_lab, arguments, message):
    result = dragoman_lab(*arguments, env=quiet_lab.environment)
    assert result.returncode == 2
    assert result.stderr.startswith(message)


def test_a_file_that_is_no_program_is_explained(tmp_path):
    (tmp_path / "text").write_text("text")
    (tmp_path / "text").chmod(0o755)
    result = dragoman_lab("--hosts", "1", "--", str(tmp_path / "text"))
    assert result.returncode == 2
    assert f"error: cannot run {tmp_path}/text: Exec format error\n" in result.stderr


def test_any_user_may_have_a_lab():
    """Where the kernel allows it, a lab needs no root."""
    python, become = sys.executable, []
    if os.geteuid() == 0:
        become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        # The interpreter of the tests may be in the home of root.
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    environment = {**os.environ, "PYTHONPATH": str(Path(dragoman.__file__).parents[1])}
    program = """
import sys
from dragoman.cluster.lab.run import Settings, run_lab
from dragoman.errors import UserError
try:
    sys.exit(run_lab(Settings(sys.argv[1:], bits_per_second=20_000_000)))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""
    line = [*become, python, "-c", program, "sh", "-c", "echo $DRAGOMAN_LAB; exec cat"]
    with subprocess.Popen(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        directory = process.stdout.readline().strip()
        if not directory:
            message = process.communicate()[1]
            assert process.returncode == 2, message
            pytest.skip(f"an unprivileged user cannot make a lab here:\n{message}")
        environment[LAB] = directory
        enter = [*become, python, "-m", "dragoman.cluster.lab", "exec"]
        words = ["host1", "hostname;", "getent", "hosts", "host2;", "tc", "qdisc", "show", "dev", "eth0"]
        said = subprocess.run(
            [*enter, *words], text=True, capture_output=True, env=environment, timeout=SECONDS, cwd="/"
        )
        assert said.stdout.split()[:3] == ["host1", "10.77.0.2", "host2"], said
        assert "rate 20Mbit" in said.stdout
        ask_again = [*enter, "host2", "--", *enter[len(become) :], "host1", "--", "hostname"]
        assert subprocess.check_output(ask_again, text=True, env=environment, cwd="/") == "host1\n"
        process.stdin.close()
        assert process.wait(SECONDS) == 0
