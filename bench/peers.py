"""Other toolkits that train translation models, each in an environment of its own: what we are compared with.

    peer = PEERS["eole"](environments)        environments: a directory outside of the repository
    peer.install()                            minutes the first time, then nothing; Unavailable says why it cannot be
    command = peer.command(work, training)    writes the peer's own configuration into the directory ``work``
    contest.run(command, …, environment=peer.environment(training))
    peer.steps(work)                          the steps it has made so far, from its own log

All learn from the same text, which ``write_text`` takes from a dataset of ours: filtered, and cut into subwords. All
use the torch that we use, which is installed first. ``peer.differs`` says in what a peer's work differs from ours. A
peer without ``data_parallel`` trains with several processes on GPUs alone: it gets as many threads as others get
workers, and a batch as large as all of theirs. What a peer should do otherwise than is written here, such as
following a recipe of its own documentation, goes into ``Training.extra`` in its own words.
"""

import json
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dragoman.data.shards import SIDES, Dataset
from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.files import read_json_lines

VOCABULARY = "vocabulary.txt"
LOOP = Path(__file__).with_name("huggingface_loop.py")
LOG = "log.txt"  # what a contestant says, in its directory
READY = ".ready"  # in an environment that is complete
NEVER = 10**9  # steps


@dataclass(frozen=True)
class Shape:
    """A Transformer: as many decoder as encoder layers, one matrix for all embeddings, sinusoids as positions."""

    layers: int
    d_model: int
    feed_forward: int
    heads: int


SHAPES = {"small": Shape(3, 256, 1024, 4), "base": Shape(6, 512, 2048, 8)}


@dataclass(frozen=True)
class Training:
    """What every contestant is asked to do, with Adam and in float32."""

    shape: Shape
    text: Path  # a directory of `write_text`
    steps: int
    tokens: int = 2000  # real target tokens with end-of-sentence in a worker's batch
    workers: int = 1
    dropout: float = 0.1  # wherever ours has it
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    learning_rate: float = 0.0005  # the peak; then it falls with the root of the step
    warmup_steps: int = 400
    seed: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)  # in the peer's own words


@dataclass(frozen=True)
class Step:
    """The end of an optimizer update, and the real target tokens with end-of-sentence that went into it."""

    time: float  # Unix seconds
    tokens: int


class Unavailable(Exception):
    """A peer cannot be had on this machine; the message says why."""


def write_text(dataset: Dataset, text: Path) -> Path:
    """Write the training pairs as lines of subwords, and the vocabulary a subword a line; return the directory."""
    pieces, split = Tokenizer.load(dataset.tokenizer_path).pieces(), dataset.split("train")
    text.mkdir(parents=True, exist_ok=True)
    for number, side in enumerate(SIDES):
        sentences = split.gather(np.arange(len(split)), number)
        lines = [" ".join(pieces[id_] for id_ in ids[:-1]) + "\n" for ids in sentences]
        (text / side).write_text("".join(lines), encoding="utf-8")
    # Our first four stand for padding, unknown, begin and end: every peer has its own.
    (text / VOCABULARY).write_text("".join(f"{piece}\n" for piece in pieces[EOS + 1 :]), encoding="utf-8")
    return text


class Peer(ABC):
    """A toolkit at a fixed version, with its environment."""

    name: ClassVar[str]
    release: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]  # to install beside torch
    alone: ClassVar[tuple[str, ...]] = ()  # to install without what they ask for
    differs: ClassVar[str]
    data_parallel: ClassVar[bool] = False

    def __init__(self, environments: Path) -> None:
        self.torch = f"torch=={version('torch').partition('+')[0]}"
        name = f"{self.name}-{self.release}-{self.torch.replace('==', '-')}"
        self.directory = environments.expanduser().absolute() / name
        self.bin = self.directory / "bin"

    def install(self) -> None:
        """Make the environment if there is none; what an interrupted installation left is made anew."""
        if (self.directory / READY).exists():
            return
        print(f"installing {self.name} {self.release} in {self.directory}", file=sys.stderr, flush=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._call([sys.executable, "-m", "venv", str(self.directory)])
        pip = [str(self.bin / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        self._call([*pip, self.torch])
        for package in self.alone:
            self._call([*pip, "--no-deps", package])
        self._call([*pip, self.torch, *self.packages])
        self._call(self.check())
        (self.directory / READY).touch()

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(
                f"{self.name} {self.release}: `{' '.join(command)}` failed: {done.stderr.strip()[-600:]}"
            )

    def environment(self, training: Training) -> dict[str, str]:
        """Return what to add to the environment of the command."""
        return {"OMP_NUM_THREADS": str(1 if self.data_parallel else training.workers)}

    @abstractmethod
    def check(self) -> list[str]:
        """Return a command that succeeds where the peer can start."""

    @abstractmethod
    def command(self, work: Path, training: Training) -> list[str]:
        """Write what the peer needs into ``work``, and return the command that trains."""

    @abstractmethod
    def steps(self, work: Path) -> list[Step]:
        """Return the steps that were made so far, in order."""


class Logged(Peer):
    """OpenNMT-py and what came after it: a log with a line a step, and batches by their longest sentence."""

    differs = (
        "batches of pairs sorted by source length, as many real target tokens as ours on average but with its padding; "
        "no end-of-sentence on the source side; several processes on GPUs alone, so on two cores one with two threads"
    )
    # Data is made in the training process: on as many cores as workers, other processes would only take turns with it.
    bucket_pairs: ClassVar[int] = 8192

    def steps(self, work: Path) -> list[Step]:
        log = work / LOG
        return parse_log(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else []

    def budget(self, training: Training) -> int:
        """Return the limit of a batch, in sentences × longest side, at which batches hold the tokens asked for."""
        texts = [(training.text / side).read_text(encoding="utf-8") for side in SIDES]
        lengths = [[len(line.split()) for line in text.removesuffix("\n").split("\n")] for text in texts]
        # Targets have a token for begin and one for end; pairs are sorted by source, then target.
        pairs = sorted((src, tgt + 2) for src, tgt in zip(*lengths, strict=True))
        tokens, total = training.tokens * training.workers, sum(tgt - 1 for _, tgt in pairs)
        limit = float(tokens)
        for _ in range(5):
            limit *= tokens * count_batches(pairs, limit) / total
        return round(limit)

    def rate(self, training: Training) -> float:
        """Return the factor before noam's formula that gives the peak asked for."""
        return training.learning_rate * float(np.sqrt(training.shape.d_model * training.warmup_steps))


def count_batches(pairs: list[tuple[int, int]], limit: float) -> int:
    """Return how many batches sorted pairs fill whose sentences × longest side stay within ``limit``."""
    batches, sentences, longest = 1, 0, 0
    for pair in pairs:
        sentences, longest = sentences + 1, max(longest, *pair)
        if sentences * longest > limit:
            batches, sentences, longest = batches + 1, 1, max(pair)
    return batches


def parse_log(text: str) -> list[Step]:
    """Return the steps of a log that reports each one, whose batch sizes are then those of the step."""
    line = re.compile(r"^\[(\S+ \S+) INFO\] Step +\d+/.*?; bsz: +\d+/ *(\d+)/", re.MULTILINE)
    form = "%Y-%m-%d %H:%M:%S,%f"
    return [
        Step(datetime.strptime(time, form).timestamp(), int(tokens)) for time, tokens in line.findall(text)
    ]


class Eole(Logged):
    name, release = "eole", "0.6.4"
    packages = ("eole==0.6.4", "aiohttp==3.14.5")  # imported, and not asked for

    def check(self) -> list[str]:
        return [str(self.bin / "eole"), "train", "--help"]

    def command(self, work: Path, training: Training) -> list[str]:
        shape, text = training.shape, training.text
        config = {
            "data": {
                "train": {"path_src": str(text / "src"), "path_tgt": str(text / "tgt"), "transforms": []}
            },
            "src_vocab": str(text / VOCABULARY),
            "share_vocab": True,
            "seed": training.seed,
            "report_every": 1,
            "model": {
                "architecture": "transformer",
                "layers": shape.layers,
                "hidden_size": shape.d_model,
                "heads": shape.heads,
                "transformer_ff": shape.feed_forward,
                "embeddings": {
                    "word_vec_size": shape.d_model,
                    "position_encoding": True,
                    "position_encoding_type": "SinusoidalInterleaved",
                },
                "share_embeddings": True,
                "share_decoder_embeddings": True,
                "add_qkvbias": True,
                "add_ffnbias": True,
            },
            "training": {
                "model_path": str(work / "model"),
                "world_size": 1,
                "gpu_ranks": [],
                "train_steps": training.steps,
                "valid_steps": NEVER,
                "save_checkpoint_steps": NEVER,
                "batch_type": "tokens",
                "normalization": "tokens",
                "batch_size": self.budget(training),
                "bucket_size": self.bucket_pairs,
                "num_workers": 0,
                "optim": "adam",
                "adam_beta1": training.betas[0],
                "adam_beta2": training.betas[1],
                "decay_method": "noam",
                "warmup_steps": training.warmup_steps,
                "learning_rate": self.rate(training),
                "max_grad_norm": training.clip_norm,
                "label_smoothing": training.label_smoothing,
                "dropout": [training.dropout],
                "attention_dropout": [training.dropout],
                "param_init_method": "xavier_uniform",
                "log_attention_entropy": False,
                "compute_dtype": "fp32",
            },
        }
        path = write_config(work, config, training.extra)
        return [str(self.bin / "eole"), "train", "--config", str(path)]


def write_config(work: Path, config: dict[str, Any], extra: Mapping[str, Any]) -> Path:
    """Write a configuration with what is asked for in addition, and return its path. JSON is YAML, too."""
    for name, value in extra.items():
        config[name] = {**config.get(name, {}), **value} if isinstance(value, Mapping) else value
    path = work / "config.yaml"
    path.write_text(json.dumps(config, indent=1) + "\n")
    return path


class OpenNMT(Logged):
    name, release = "opennmt", "3.5.1"
    alone = ("OpenNMT-py==3.5.1",)  # which asks for a torch below 2.3, and works with ours
    packages = (
        "configargparse==1.9.0", "ctranslate2==4.8.4", "fasttext-wheel==0.9.2", "numpy==1.26.4", "pyahocorasick==2.3.1",
        "pyonmttok==1.38.1", "pyyaml==6.0.3", "rapidfuzz==3.14.6", "sacrebleu==2.6.0", "setuptools==84.2.1",
        "six==1.17.0", "spacy==3.8.18", "tensorboard==2.21.0",
    )  # fmt: skip

    def check(self) -> list[str]:
        return [str(self.bin / "onmt_train"), "--help"]

    def command(self, work: Path, training: Training) -> list[str]:
        shape, text = training.shape, training.text
        config = {
            "data": {
                "train": {"path_src": str(text / "src"), "path_tgt": str(text / "tgt"), "transforms": []}
            },
            "src_vocab": str(text / VOCABULARY),
            "share_vocab": True,
            "seed": training.seed,
            "report_every": 1,
            "save_model": str(work / "model"),
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "enc_layers": shape.layers,
            "dec_layers": shape.layers,
            "hidden_size": shape.d_model,
            "word_vec_size": shape.d_model,
            "heads": shape.heads,
            "transformer_ff": shape.feed_forward,
            "position_encoding": True,
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "add_qkvbias": True,
            "add_ffnbias": True,
            "world_size": 1,
            "train_steps": training.steps,
            "valid_steps": NEVER,
            "save_checkpoint_steps": NEVER,
            "batch_type": "tokens",
            "normalization": "tokens",
            "batch_size": self.budget(training),
            "bucket_size": self.bucket_pairs,
            "num_workers": 0,
            "optim": "adam",
            "adam_beta1": training.betas[0],
            "adam_beta2": training.betas[1],
            "decay_method": "noam",
            "warmup_steps": training.warmup_steps,
            "learning_rate": self.rate(training),
            "max_grad_norm": training.clip_norm,
            "label_smoothing": training.label_smoothing,
            "dropout": [training.dropout],
            "attention_dropout": [training.dropout],
            "param_init": 0.0,
            "param_init_glorot": True,
            "model_dtype": "fp32",
        }
        path = write_config(work, config, training.extra)
        return [str(self.bin / "onmt_train"), "--config", str(path)]


class HuggingFace(Peer):
    """A plain loop around MarianMTModel, as one writes it: `huggingface_loop.py`."""

    name, release = "huggingface", "5.22.2"
    packages = ("transformers==5.22.2",)
    data_parallel = True
    differs = (
        "a plain loop around MarianMTModel, which is post-norm; batches by real target tokens and sorted, like ours; "
        "padding goes through all layers and the output; several workers are DistributedDataParallel over Gloo"
    )

    def check(self) -> list[str]:
        return [str(self.bin / "python"), "-c", "from transformers import MarianMTModel"]

    def command(self, work: Path, training: Training, launch: Sequence[str] = ("--standalone",)) -> list[str]:
        """``launch`` are torchrun's options for where the workers meet; ``Training.workers`` are those of this host."""
        config = {**asdict(training), "text": str(training.text), "work": str(work), **training.extra}
        path = work / "config.json"
        path.write_text(json.dumps(config, indent=1) + "\n")
        python = str(self.bin / "python")
        if training.workers == 1 and launch == ("--standalone",):
            return [python, str(LOOP), str(path)]
        options = [*launch, f"--nproc-per-node={training.workers}"]
        return [python, "-m", "torch.distributed.run", *options, str(LOOP), str(path)]

    def steps(self, work: Path) -> list[Step]:
        """Add up what the workers of a step told: it is over when the last of them is."""
        told = [read_json_lines(path) for path in sorted(work.glob("steps-*.jsonl"))]
        return [
            Step(max(line["time"] for line in lines), sum(line["tokens"] for line in lines))
            for lines in zip(*told, strict=False)
        ]


PEERS: dict[str, type[Peer]] = {each.name: each for each in (Eole, OpenNMT, HuggingFace)}
