"""The evaluation lane: a process beside the trainer that scores each checkpoint as it appears.

Training never stops to translate. For every new checkpoint the lane exports the model, translates dev with
it, appends a line to ``scores.jsonl``, and keeps the link ``best`` and the best models current. What it did
is in the files, so a lane that was killed goes on where the last one stopped, and scores nothing twice.

It obeys its standard input: ``finish`` means that training is over (score what is left, then test, then end);
end of file means that the trainer is gone, however it died, and the lane ends at once. What it has to say
goes to ``lane.log``.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.data import overlap
from dragoman.data.shards import Dataset
from dragoman.decode.confidence import certainty, fit
from dragoman.decode.export import DamagedCheckpoint, checkpoint_hash, export_model
from dragoman.decode.score import score, score_pairs
from dragoman.decode.translator import CARD, Translator
from dragoman.errors import ExitCode, UserError
from dragoman.files import (
    append_json_line,
    beside,
    fsync_file,
    open_json_lines,
    read_json,
    read_json_lines,
    remove_unfinished,
    write_json,
    write_text,
)
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir, best_first, step_directories

POLL_SECONDS = 0.5
STOP_SECONDS = 5.0  # the lane ends on end of file, wherever it is; this is for a machine that hardly breathes
MOST_WAITING = 4  # with more checkpoints waiting, the lane goes to the newest
NICENESS = 10
FINISH = "finish"
# CTranslate2's tools for export load torch where it is installed. The lane has no use for it, and does without
# the seconds and the memory that this takes.
PROGRAM = "import sys; sys.modules['torch'] = None; from dragoman.decode.lane import main; sys.exit(main(sys.argv[1]))"
LAST_LINES = 20  # of the log, shown when the lane has died


class Lane:
    """The trainer's hold on its lane."""

    def __init__(self, run: RunDir, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        self._run, self._process, self._stdin = run, process, process.stdin

    @classmethod
    def start(cls, run: RunDir) -> "Lane":
        """Start the lane of ``run`` in a session of its own, so that Ctrl-C reaches the trainer alone."""
        with open(run.lane_log, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(run.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # the translator uses cores by batches
                start_new_session=True,
                text=True,
            )
        return cls(run, process)

    def finish(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Say that training is over and wait until all is scored, calling ``on_wait`` twice a second.

        Whether the lane got there, ``poll_failure`` says.
        """
        self._tell(FINISH + "\n")
        while True:
            try:
                self._process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                on_wait()
        self._close()

    def stop(self) -> None:
        """End the lane now; what it has not finished, the next one does again."""
        self._close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def poll_failure(self) -> str | None:
        """Return the exit code and the last words of a lane that died, or None."""
        code = self._process.poll()
        if code in (None, ExitCode.DONE):
            return None
        lines = self._run.lane_log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
        return "\n".join([f"the lane ended with exit code {code}; the end of {self._run.lane_log}:", *lines])

    def _tell(self, command: str) -> None:
        with suppress(BrokenPipeError):  # it has died; poll_failure tells
            self._stdin.write(command)
            self._stdin.flush()

    def _close(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()


class Evaluator:
    """Scores the checkpoints of a run. All that it knows about the past it reads from the run's files."""

    def __init__(self, run: RunDir, finished: threading.Event) -> None:
        self._run, self._finished = run, finished
        self._recipe = load_recipe(str(run.recipe))
        self._dataset = Dataset.open(Path(read_json(run.facts)["dataset"]))
        self._seen: set[str] = set()  # hashes of checkpoints that were taken or passed over
        for directory in (run.models, run.hypotheses):
            directory.mkdir(exist_ok=True)
            remove_unfinished(directory)
        self._tidy()

    def next_checkpoint(self) -> Path | None:
        """Return the oldest checkpoint that waits, or the newest if too many do; none is returned twice."""
        waiting = {}
        for path in step_directories(self._run.checkpoints).values():
            try:
                identity = checkpoint_hash([path])
            except FileNotFoundError:  # pruned since the listing
                continue
            if identity in self._seen or self._is_scored("dev", self._run.models / path.name, identity):
                continue
            waiting[path] = identity
        if not waiting:
            return None
        chosen = next(iter(waiting))
        if len(waiting) > MOST_WAITING:
            *passed, chosen = waiting
            self._seen |= {waiting[path] for path in passed}
            say(f"{len(waiting)} checkpoints wait: skipped {', '.join(path.name for path in passed)}")
        self._seen.add(waiting[chosen])
        return chosen

    def score_dev(self, checkpoints: Sequence[Path]) -> None:
        """Export a checkpoint, or the mean of several, score it on dev, and see whether it is the best."""
        model = self._run.models / mean_name(checkpoints)
        try:
            export_model(
                checkpoints,
                self._recipe,
                self._dataset.tokenizer_path,
                model,
                extra={"dataset": self._dataset.fingerprint},
            )
        except DamagedCheckpoint as error:
            say(f"{model.name}: skipped\n{error}")
            return
        except FileNotFoundError:
            if all(checkpoint.exists() for checkpoint in checkpoints):
                raise
            say(f"{model.name}: skipped, its checkpoint was removed before it could be read")
            return
        self._score("dev", model)
        self._tidy()

    def score_mean(self) -> None:
        """Score the mean of the last checkpoints on dev, if that is what the recipe exports."""
        train = self._recipe.train
        last = list(step_directories(self._run.checkpoints).values())[-train.average_last :]
        if train.average != "checkpoints" or len(last) < 2:
            return
        if not self._is_scored("dev", self._run.models / mean_name(last), checkpoint_hash(last)):
            self.score_dev(last)

    def score_test(self) -> None:
        """Score the best model on test, if the recipe has one."""
        if self._recipe.data.test is None or not self._run.best.exists():
            return
        model = self._run.models / self._run.best.readlink().name
        if not self._is_scored("test", model, read_json(model / CARD)["checkpoint"]):
            self._score("test", model)

    def _score(self, set_name: str, model: Path) -> None:
        began = time.monotonic()
        cfg, card = self._recipe.evaluate, read_json(model / CARD)
        sources, references = self._dataset.text(set_name)
        translator = Translator(model, threads=None if self._finished.is_set() else 1)
        translations = list(translator.translate(sources, beam=cfg.beam, length_penalty=cfg.length_penalty))
        hypotheses = [translation.text for translation in translations]
        hypotheses_path = self._run.hypotheses / f"{set_name}-{model.name}.txt"
        write_text(hypotheses_path, "".join(f"{hypothesis}\n" for hypothesis in hypotheses))
        scores = score(hypotheses, references, tgt_lang=self._recipe.data.tgt_languages)
        corpora = self._dataset.manifest["splits"][set_name]["corpora"]
        by_pair = score_pairs(hypotheses, references, corpora)
        if set_name == "dev":
            best = [translation.hypotheses[0] for translation in translations]
            sure = [certainty(each.log_probability, each.num_tokens) for each in best]
            write_json(model / CARD, {**card, "confidence": fit(sure, hypotheses, references)})
        line = {
            "set": set_name,
            "step": card["steps"][-1],
            **({"averaged": card["steps"]} if len(card["steps"]) > 1 else {}),
            **scores,
            **({"by_pair": by_pair} if by_pair else {}),
            "checkpoint": card["checkpoint"],
            "model": self._relative(model),
            "hypotheses": self._relative(hypotheses_path),
            "seconds": round(time.monotonic() - began, 3),
            "dataset": self._dataset.fingerprint,
            "overlap": overlap.of_set(self._dataset.manifest.get("overlap"), set_name),
            "beam": cfg.beam,
            "length_penalty": cfg.length_penalty,
            "time": time.time(),
        }
        with open_json_lines(self._run.scores) as file:
            append_json_line(file, line)
            fsync_file(file)
        say(f"{model.name}: {set_name} BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}")

    def _tidy(self) -> None:
        """Let ``best`` point at the best model, and remove the models that are not among the best."""
        ranked = [line for line in best_first(read_json_lines(self._run.scores)) if self._is_there(line)]
        if not ranked:
            return
        # Made among the models, where a killed lane's leftovers are removed; it points nowhere from there.
        link = beside(self._run.models / self._run.best.name)
        link.symlink_to(ranked[0]["model"])
        os.replace(link, self._run.best)
        keep = {self._run.path / line["model"] for line in ranked[: self._recipe.checkpoint.keep_best]}
        for model in set(self._run.models.iterdir()) - keep:
            if (model / CARD).is_file():
                doomed = beside(model)
                model.rename(doomed)  # first, so that no half-removed model looks whole
                shutil.rmtree(doomed)

    def _is_there(self, line: dict[str, Any]) -> bool:
        """Whether the model that was scored still exists, and was not exported again since."""
        card = self._run.path / line["model"] / CARD
        return card.is_file() and bool(read_json(card)["checkpoint"] == line["checkpoint"])

    def _is_scored(self, set_name: str, model: Path, identity: str) -> bool:
        key = (set_name, self._relative(model), identity)
        scores = read_json_lines(self._run.scores)
        return any((line["set"], line["model"], line["checkpoint"]) == key for line in scores)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._run.path).as_posix()


def mean_name(checkpoints: Sequence[Path]) -> str:
    """Name the model of a checkpoint as the checkpoint, and a mean after its last one and their number."""
    last = checkpoints[-1].name
    return last if len(checkpoints) == 1 else f"{last}-mean{len(checkpoints)}"


def evaluate_run(run: RunDir, finished: threading.Event) -> None:
    """Score checkpoints as they appear; once ``finished``, score what is left, then test, and return."""
    evaluator = Evaluator(run, finished)
    while True:
        was_finished = finished.is_set()  # asked before looking: what was written by then is found
        if checkpoint := evaluator.next_checkpoint():
            evaluator.score_dev([checkpoint])
        elif was_finished:
            break
        else:
            finished.wait(POLL_SECONDS)
    evaluator.score_mean()
    evaluator.score_test()


def say(message: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), message, flush=True)


def _listen(finished: threading.Event) -> None:
    # Unbuffered: Python cannot shut down while a thread waits in a buffered read.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as commands:
        for command in commands:
            if command.decode().strip() == FINISH:
                finished.set()
    os._exit(ExitCode.DONE)  # in the middle of anything: every file is whole or hidden


def main(path: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides
    os.nice(NICENESS)
    finished = threading.Event()
    threading.Thread(target=_listen, args=(finished,), daemon=True).start()
    try:
        evaluate_run(RunDir.open(Path(path)), finished)
    except UserError as error:
        say(str(error))
        return ExitCode.USER
    return ExitCode.DONE
