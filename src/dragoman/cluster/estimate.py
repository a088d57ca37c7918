"""What a way to stay one model costs on a network: bytes, and seconds that no computing hides. Needs no torch.

``auto`` chooses by it while it trains, ``plan`` before, and ``explain`` afterwards.
"""

from dataclasses import dataclass

BYTES = {"float32": 4, "bf16": 2, "fp16": 2}  # of a number
LEVELS = {"int8": 127, "int4": 7}  # the largest whole number; the scale belongs to it
# Of the embedding's rows, those that a step looks up; with few bits only the source's half of them travels last.
LOOKED_UP = 0.2
BLOCK = 64  # numbers that share a scale: a quarter bit for each, and one large number coarsens only its block

ALLOWED = 0.10  # of a step's time spent on the exchange, when choosing
OTHER_LINK = 1.5  # a link this much faster or slower is another link


@dataclass(frozen=True)
class Mode:
    """One way to stay one model; the settings that no choice is made about are the recipe's."""

    sync: str
    wire: str
    inner_steps: int = 1

    def __str__(self) -> str:
        every = f", each weight every {self.inner_steps} steps" if self.sync == "local" else ""
        return f"{self.sync}, {self.wire}{every}"


# From mild to strong: docs/decisions/0005. PowerSGD and the longest gaps cost more than they save here.
GRADIENTS = [Mode("every-step", "float32"), Mode("every-step", "bf16"), Mode("compressed", "int8"),
             Mode("compressed", "int4")]  # fmt: skip
WEIGHTS = [Mode("local", "int4", steps) for steps in (2, 4, 8, 16, 32, 64)]


def all_reduce_bytes(size: int, members: int) -> int:
    """Return what one member sends to sum ``size`` bytes in a ring: a share to its neighbour, twice round."""
    return 2 * (members - 1) * size // members


def all_gather_bytes(size: int, members: int) -> int:
    """Return what one member sends for all to hold everybody's ``size`` bytes."""
    return (members - 1) * size


def wire_bytes(numbers: int, wire: str) -> int:
    """Return the bytes of one member's numbers as they travel."""
    if wire in BYTES:
        return numbers * BYTES[wire]
    blocks = -(-numbers // BLOCK)
    return blocks * (BLOCK // (2 if wire == "int4" else 1) + BYTES["bf16"])


@dataclass(frozen=True)
class Link:
    """What travelling takes: an exchange of almost nothing, and each byte that a worker sends."""

    latency_seconds: float
    bytes_per_second: float

    def __str__(self) -> str:
        return f"{self.bytes_per_second * 8 / 1e6:,.0f} Mbit/s, {self.latency_seconds * 1e3:.1f} ms"

    def seconds(self, bytes_sent: float) -> float:
        return self.latency_seconds + bytes_sent / self.bytes_per_second

    def differs(self, other: "Link") -> bool:
        ratio = self.bytes_per_second / other.bytes_per_second
        return not 1 / OTHER_LINK < ratio < OTHER_LINK


@dataclass(frozen=True)
class Measured:
    """What the workers agree on: the slowest one's computing, the waiting that none escapes, the link, rounding."""

    compute_seconds: float
    exposed_seconds: float
    link: Link
    rounding_seconds: float  # to round and restore every weight once
    hidden_seconds: float = 0.0  # of an exchange, at most: the backward pass after its first gradients

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    def rounding_in(self, mode: Mode) -> float:
        return self.rounding_seconds / mode.inner_steps if mode.wire in LEVELS else 0.0

    def lost_in(self, mode: Mode) -> float:
        """Return the share of a step that the exchange took in ``mode``, which was in use: waiting and rounding."""
        rounding = self.rounding_in(mode)
        return share_of(self.exposed_seconds + rounding, self.compute_seconds - rounding)


@dataclass(frozen=True)
class Shape:
    """What estimates need to know of model and cluster."""

    weights: int
    last: int  # the embedding's weights, whose gradient is there only when the backward pass ends
    workers: int
    hosts: int


@dataclass(frozen=True)
class Estimate:
    """How one mode would do."""

    mode: Mode
    bytes_per_step: float
    exposed_seconds: float
    share: float  # of a step that is spent on the exchange: waiting, and rounding


def share_of(lost_seconds: float, compute_seconds: float) -> float:
    return lost_seconds / (lost_seconds + compute_seconds)


def bytes_per_step(mode: Mode, shape: Shape) -> float:
    """Return what one worker sends to others in a step, on average."""
    if mode.wire not in LEVELS:
        return all_reduce_bytes(wire_bytes(shape.weights, mode.wire), shape.workers)
    rows = 0 if mode.sync == "local" else round(shape.last * LOOKED_UP)
    return all_gather_bytes(wire_bytes(shape.weights + rows, mode.wire), shape.hosts) / mode.inner_steps


def estimate(mode: Mode, shape: Shape, measured: Measured, hidden_seconds: float) -> Estimate:
    """Return how long a step waits in ``mode``.

    Gradients hide behind ``hidden_seconds`` of the backward pass, except those that are there only at its end: the
    embedding's, or the source's rows where these travel by themselves. Weights hide behind a whole step's computing.
    Rounding hides behind nothing: it counts as if it were waited for.
    """
    sent = bytes_per_step(mode, shape)
    seconds = measured.link.seconds(sent)
    if mode.sync == "local":
        exposed = max(0.0, seconds - measured.compute_seconds)
    else:
        last = shape.last * (LOOKED_UP / 2 if mode.wire in LEVELS else 1)
        exposed = max(seconds - hidden_seconds, measured.link.seconds(sent * last / shape.weights))
    lost = exposed + measured.rounding_in(mode)
    return Estimate(mode, sent, exposed, share_of(lost, measured.compute_seconds))


def choose(estimates: list[Estimate]) -> Estimate:
    """Return the first, hence mildest, that waits little enough; if none does, the one that waits least."""
    fine = [each for each in estimates if each.share < ALLOWED]
    return fine[0] if fine else min(estimates, key=lambda each: each.share)
