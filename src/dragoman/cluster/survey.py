"""What a host is like: each host tells about itself, and somebody compares.

``python -m dragoman.cluster.survey`` runs on a host, reads a request from its input and prints the facts, so the
same question is asked over ssh, in a lab and here. A host that does not answer has its reason instead.
"""

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import psutil

from dragoman import __version__
from dragoman.cluster.hosts import Host, start_on
from dragoman.cluster.lab.client import LAB, UNREACHABLE
from dragoman.cluster.network import free_port, interfaces
from dragoman.data.shards import MANIFEST, Dataset, bytes_in, unfinished
from dragoman.errors import UserError, UserErrors
from dragoman.files import read_json
from dragoman.machine import usable_cores

MARK = "\x02"  # begins a message, which is not for people
ANSWER_SECONDS = 90  # a cold file system may take long to import torch


@dataclass(frozen=True)
class Question:
    """What to look at on a host."""

    dataset: str | None = None  # directory of the dataset that the run needs
    run: str | None = None  # directory that will be written to
    devices: bool = False  # also load torch and look at the GPUs; takes seconds


@dataclass
class Answer:
    """The facts of one host, or why there are none."""

    host: Host
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    where: str = ""  # the host itself if nothing is said
    fix: str = ""

    @property
    def addresses(self) -> list[str]:
        """All addresses of the host, with their prefix lengths."""
        return [address for each in self.facts["interfaces"].values() for address in each]

    @property
    def lacks_dataset(self) -> bool:
        """Whether the host must be sent the dataset: it has none, or a damaged one."""
        data = self.facts["dataset"]
        return data["fingerprint"] is None or bool(data["damage"])

    @property
    def error(self) -> UserError:
        return UserError(self.problem, where=self.where or f"host {self.host.name}", fix=self.fix)


def facts(question: Question) -> dict[str, Any]:
    """Return what is true of this host."""
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {
        "name": platform.node(),
        "time": time.time(),
        "dragoman": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "cores": usable_cores(),
        "memory_bytes": memory.total,
        "memory_free_bytes": memory.available,
        "interfaces": interfaces(),
        "free_port": free_port(),
    }
    if question.run is not None:
        found["disk_free_bytes"] = shutil.disk_usage(_nearest_existing(Path(question.run))).free
    if question.dataset is not None:
        found["dataset"] = _dataset_facts(Path(question.dataset))
        found["dataset"]["is_on_disk_of_run"] = question.run is not None and _disk(question.run) == _disk(
            question.dataset
        )
    if question.devices:
        found["devices"] = _devices()
    return found


def survey(hosts: Sequence[Host], question: Question) -> list[Answer]:
    """Ask all hosts at once; the answers come in the order of the hosts."""
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        processes = [start_on(host, ["-m", "dragoman.cluster.survey"]) for host in hosts]
        try:
            return list(pool.map(lambda host, process: _ask(host, process, question), hosts, processes))
        finally:
            for process in processes:  # after a Ctrl-C, the threads wait for nobody
                process.kill()


def require_answers(answers: Sequence[Answer]) -> None:
    """Raise all problems at once, if there are any."""
    errors = [answer.error for answer in answers if answer.problem]
    if errors:
        raise UserErrors(errors)


def compare(answers: Sequence[Answer], dataset: Dataset, disk_bytes: int) -> None:
    """Note a problem with every host that cannot train along: other versions, other data, no room."""
    for answer in answers:
        if not answer.problem:
            answer.problem, answer.fix = next(unfit(answer, dataset, disk_bytes), ("", ""))


def unfit(answer: Answer, dataset: Dataset | None, disk_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield each reason why a host cannot train along, and its fix; without a dataset its data does not matter."""
    name, found = answer.host.name, answer.facts
    for package, ours in (("dragoman", __version__), ("torch", version("torch"))):
        theirs = str(found[package])
        if theirs.partition("+")[0] != ours.partition("+")[0]:
            yield (
                f"host {name} has {package} {theirs}, here it is {ours}",
                f"on {name}: pip install {package}=={ours.partition('+')[0]}",
            )
    needs = f"its checkpoints need about {disk_bytes / 1e6:,.0f} MB"
    if dataset is not None:
        data = found["dataset"]
        fix = f"on {name}: remove {answer.host.place(dataset.path)} if nobody needs it, and ours will be sent"
        if data["fingerprint"] not in (None, dataset.fingerprint):
            yield f"host {name} has another dataset ({data['fingerprint']}, not {dataset.fingerprint})", fix
        elif not answer.lacks_dataset and data["content"] != dataset.content:
            yield f"the dataset {dataset.fingerprint} of host {name} has other files than the one here", fix
        elif answer.lacks_dataset and data["is_on_disk_of_run"]:
            missing = max(0, dataset.num_bytes - data["arrived_bytes"])
            disk_bytes += missing
            needs += f", the dataset {missing / 1e6:,.0f} MB"
    if found["disk_free_bytes"] < disk_bytes:
        yield (
            f"host {name} has {found['disk_free_bytes'] / 1e6:,.0f} MB free where the run is written, and {needs}",
            "make room there, lower checkpoint.keep_last and keep_best, or choose another directory with --run",
        )


def _ask(host: Host, process: "Popen[bytes]", question: Question) -> Answer:
    sent = time.time()
    try:
        output, _ = process.communicate(json.dumps(question.__dict__).encode(), timeout=ANSWER_SECONDS)
    except TimeoutExpired:
        process.kill()
        process.communicate()
        return Answer(
            host,
            problem=f"host {host.name} did not answer within {ANSWER_SECONDS} s",
            fix=f"try `ssh {host.name} true`; is the host overloaded, or its disk?",
        )
    received = time.time()
    lines = output.decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith(MARK):
            found = json.loads(line.removeprefix(MARK))
            # The clock was read at some moment between sending and receiving; half of that is the doubt.
            found["clock_offset_seconds"] = found["time"] - (sent + received) / 2
            found["clock_doubt_seconds"] = (received - sent) / 2
            return Answer(host, found)
    said = " / ".join(lines[-3:]) or f"exit code {process.returncode}"
    if process.returncode == UNREACHABLE:
        fix = (
            f"dragoman lab restore {host.name}"
            if LAB in os.environ
            else f"make `ssh {host.name} true` work without a password: name, port, keys, firewall"
        )
        return Answer(host, problem=f"host {host.name} cannot be reached: {said}", fix=fix)
    python = host.python or sys.executable
    return Answer(
        host,
        problem=f"host {host.name} cannot run dragoman: {said}",
        fix=f"install it there for {python} and work in {host.directory or os.getcwd()}, or name another "
        "python= and directory= in a hosts file",
    )


def _nearest_existing(path: Path) -> Path:
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _disk(path: str) -> int:
    return _nearest_existing(Path(path)).stat().st_dev


def _dataset_facts(path: Path) -> dict[str, Any]:
    """Return the fingerprint and the content of the dataset at ``path``, and what is wrong with it."""
    found: dict[str, Any] = {"fingerprint": None, "content": None, "damage": ""}
    found["arrived_bytes"] = bytes_in(unfinished(path)) + bytes_in(path)  # of which a sending can make use
    if (path / MANIFEST).is_file():
        try:
            found["fingerprint"] = read_json(path / MANIFEST)["fingerprint"]
            found["content"] = Dataset.open(path).content
        except (UserError, ValueError, LookupError, TypeError) as error:
            found["damage"] = str(getattr(error, "what", error))
            found["fingerprint"] = found["fingerprint"] or path.name
    return found


def _devices() -> list[dict[str, Any]]:
    import torch

    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": each.name, "memory_bytes": each.total_memory} for each in properties]


def say(message: dict[str, Any]) -> None:
    """Say something to the process that started this one, in one piece: others may write to the same pipe."""
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def heard(line: str) -> tuple[dict[str, Any] | None, str]:
    """Return the message of a line, if it has one, and the words for people that were written around it."""
    before, mark, after = line.partition(MARK)
    if not mark:
        return None, line
    message, end = json.JSONDecoder().raw_decode(after)
    return message, before + after[end:]


if __name__ == "__main__":
    say(facts(Question(**json.load(sys.stdin))))
