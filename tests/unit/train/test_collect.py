"""Events and telemetry come to the leader's disk, each line once, whoever was killed in between."""

import threading

import pytest

from dragoman.cluster.world import World
from dragoman.rundir import RunDir
from dragoman.train import collect
from dragoman.train.collect import Collector


class Meeting:
    """Where workers in threads of one process exchange what they have."""

    def __init__(self, size):
        self.barrier, self.values = threading.Barrier(size), [None] * size

    def exchange(self, rank, value):
        self.barrier.wait(10)
        self.values[rank] = value
        self.barrier.wait(10)
        return list(self.values)


class Worker(World):
    def bind(self, meeting, host):
        object.__setattr__(self, "meeting", meeting)
        object.__setattr__(self, "name", host)
        return self

    @property
    def host(self):
        return self.name

    def gather(self, value):
        return self.meeting.exchange(self.rank, value)

    def share(self, value, source=0):
        return self.meeting.exchange(self.rank, value)[source]


class Cluster:
    """Hosts with a disk each: ``launch`` gives each rank its host, whose lines it writes and has collected."""

    def __init__(self, path):
        self.path, self.count = path, 0

    def run(self, host):
        return RunDir(self.path / host)

    def write(self, path, host, lines=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for _ in range(lines):
                self.count += 1
                file.write(f'{{"number": {self.count}, "host": "{host}"}}\n')

    def launch(self, hosts, rounds=1, killed=False, lines=2):
        """Let each worker write, and all collect; a ``killed`` launch ends with lines that nobody collected."""
        meeting = Meeting(len(hosts))
        local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        worlds = [
            Worker(rank, len(hosts), local[rank]).bind(meeting, host) for rank, host in enumerate(hosts)
        ]
        failures = []

        def work(world):
            try:
                run = self.run(world.host)
                collector = Collector(run, world, shares_disk=world.host == hosts[0])
                for _ in range(rounds):
                    collector.collect()
                    meeting.barrier.wait(10)
                    if world.rank == 0:
                        for each in worlds:
                            self.write(self.run(each.host).events(each.rank), each.host, lines)
                            if each.local_rank == 0:
                                self.write(self.run(each.host).telemetry(each.host), each.host, lines)
                    meeting.barrier.wait(10)
                if not killed:
                    collector.collect_all()
            except Exception as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=work, args=(world,)) for world in worlds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not failures

    def lines(self, path):
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def test_the_leader_has_the_lines_of_all_ranks_and_hosts(cluster):
    cluster.launch(["a", "a", "b", "b"], rounds=3)
    for rank in (2, 3):
        copy = cluster.lines(cluster.run("a").events(rank))
        assert copy == cluster.lines(cluster.run("b").events(rank))
        assert len(copy) == 6
    assert cluster.lines(cluster.run("a").telemetry("b")) == cluster.lines(cluster.run("b").telemetry("b"))
    assert not cluster.run("b").events(0).exists()  # nothing goes the other way


def test_what_a_killed_launch_left_comes_with_the_next_and_once(cluster):
    cluster.launch(["a", "b"], rounds=2, killed=True)
    copy, original = (cluster.run(host).events(1) for host in "ab")
    assert len(cluster.lines(copy)) < len(cluster.lines(original))
    with copy.open("a") as file:
        file.write('{"number": 99')  # the leader was killed while it wrote
    cluster.launch(["a", "b"])
    cluster.launch(["a", "b"])
    assert cluster.lines(copy) == cluster.lines(original)


def test_a_rank_that_moves_between_hosts_leaves_all_its_lines_once(cluster):
    for hosts in (["a", "b"], ["a", "c"], ["a", "a"], ["a", "b"], ["a", "c"], ["a", "b"]):
        cluster.launch(hosts, rounds=2)
    lines = cluster.lines(cluster.run("a").events(1))
    assert len(lines) == len(set(lines)) == 6 * 4
    numbers = [int(line.split(",")[0].split()[-1]) for line in lines]
    assert numbers == sorted(numbers)


def test_a_leader_that_lost_its_disk_gets_it_in_pieces(cluster, monkeypatch):
    monkeypatch.setattr(collect, "PIECE_BYTES", 100)
    cluster.launch(["a", "b"], lines=40)
    copy, original = (cluster.run(host).events(1) for host in "ab")
    assert cluster.lines(copy) == cluster.lines(original)
    copy.unlink()
    cluster.launch(["a", "b"], lines=40)
    assert len(cluster.lines(copy)) == 80
    assert cluster.lines(copy) == cluster.lines(original)


def test_where_all_share_a_disk_nothing_is_exchanged(cluster):
    cluster.launch(["a", "a"])
    lines = cluster.lines(cluster.run("a").events(1))
    assert len(lines) == 2
