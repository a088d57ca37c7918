"""What ``dragoman data send`` does: see that the hosts answer, and send the dataset to those that lack it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.cluster.hosts import Host
from dragoman.cluster.send import Delivery, send_dataset
from dragoman.cluster.send_view import View
from dragoman.cluster.survey import Question, require_answers, survey
from dragoman.data.shards import Dataset
from dragoman.errors import UserError, UserErrors


def send_to_hosts(path: Path, hosts: Sequence[Host]) -> list[Delivery]:
    """Send a dataset to hosts; all that failed is raised when the others have theirs."""
    if not hosts:
        raise UserError(
            "there is no host to send the dataset to",
            where=f"dragoman data send {path}",
            fix="name them: --hosts a,b, or --hosts FILE with one a line",
        )
    dataset = Dataset.open(path)
    require_answers(survey(hosts, Question()))
    with View() as view:
        deliveries = send_dataset(dataset, hosts, view)
    problems = [each.problem for each in deliveries if each.problem is not None]
    if problems:
        raise UserErrors(problems)
    return deliveries


def as_json(deliveries: Sequence[Delivery]) -> list[dict[str, Any]]:
    """Return what became of each host."""
    return [
        {
            "host": each.host.name,
            "dataset": str(each.host.place(each.dataset.path)),
            "bytes": each.total_bytes,
            "before_bytes": each.before_bytes,
            "sent_bytes": each.sent_bytes,
            "wire_bytes": each.wire_bytes,
            "seconds": round(each.seconds, 3),
        }
        for each in deliveries
    ]
