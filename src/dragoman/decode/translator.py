"""Exported models at work: lines of text in, translations out. Imports without torch.

A model is the directory that ``export.py`` writes. Translation is a stream: a window of lines is read, its sentences
are sorted into batches of similar length, translated and put back in order with the white space that was around them,
so a file of any size takes constant memory. Every line gives exactly one line, whatever is in it, and does not depend
on its neighbours.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import ctranslate2
import numpy as np

from dragoman.data.text import normalise
from dragoman.data.tokenizer import Tokenizer, language_of, tag
from dragoman.decode.alignment import Attention, texts_of
from dragoman.decode.document import put_back, split_line
from dragoman.errors import UserError
from dragoman.files import read_json
from dragoman.machine import usable_cores
from dragoman.rundir import RunDir

CARD = "dragoman.json"  # what the model is and where it came from
CARD_VERSION = 1
TOKENIZER = "sentencepiece.model"
WEIGHTS = "model.bin"

WINDOW_LINES = 4096  # read before the first of them is translated
WINDOW_CHARACTERS = 2_000_000  # a window of very long lines ends here
BATCH_TOKENS = 1024  # source subwords that one core translates at once
STRETCH = 2  # times the longest training sentence is what a model is trusted with in one piece
LENGTH_STEP = 32  # lengths are rounded up to a multiple of this to set the longest translation
LENGTH_FACTOR = 3  # the longest translation of a line, in multiples of its own rounded length
UNSPACED = ("zh", "ja", "th", "km", "lo", "my")  # languages that put no space between sentences

# Where a line that is too long is cut, best first: after a sentence, after a clause, between words.
CUTS = (r"(?<=[.!?…])\s+|(?<=[。！？])\s*", r"(?<=[,;:])\s+|(?<=[，；：、])\s*", r"\s+")


class Sampling(NamedTuple):
    """Draw each word at random instead of searching for the best sentence."""

    temperature: float = 1.0  # below 1 likely words become likelier, above 1 less so
    topk: int = 0  # draw from the k likeliest; 0: from all


class Hypothesis(NamedTuple):
    text: str
    log_probability: float  # of the whole text, natural logarithm
    num_tokens: int  # that this is the sum of, end-of-sentence included
    attention: Attention | None = None  # if asked for, of a sentence that was translated in one piece


class _Line(NamedTuple):
    """A line taken apart."""

    sentences: list[str]  # with their tag
    spaces: list[str]  # around them, one more
    language: str  # to translate into


class Translation(NamedTuple):
    """The translation of one line: its hypotheses, best first, at least one."""

    hypotheses: tuple[Hypothesis, ...]

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def log_probability(self) -> float:
        return self.hypotheses[0].log_probability


def resolve_model(path: Path) -> Path:
    """Return the model directory that ``path`` means: itself, or the best model of the run it is."""
    if (path / CARD).is_file() and (path / WEIGHTS).is_file():
        return path.resolve()
    if (path / CARD).is_file() and read_json(path / CARD).get("format") == "huggingface":
        raise UserError(
            "this model was exported for Hugging Face's transformers",
            where=str(path),
            fix="load it with transformers (its README.md tells how), or export the run with --format ctranslate2",
        )
    run = RunDir(path)
    if not run.recipe.is_file():
        raise UserError(
            "there is no model here" if path.exists() else "there is no such directory",
            where=str(path),
            fix="give a run such as runs/NAME, or a directory that `dragoman export` wrote",
        )
    if not (run.best / CARD).is_file():
        raise UserError(
            "this run has no scored model yet",
            where=str(path),
            fix="wait for its first evaluation, or export a checkpoint with `dragoman export`",
        )
    return run.best.resolve()


class Translator:
    """A loaded model. It uses all cores if ``threads`` is not given; ``card`` says which model it is."""

    def __init__(
        self, model: Path, *, device: str = "cpu", threads: int | None = None, compute_type: str = "default"
    ) -> None:
        self.path = model
        self.card: dict[str, Any] = read_json(model / CARD)
        if self.card["version"] != CARD_VERSION:
            raise UserError(
                f"this model has format {self.card['version']}, this Dragoman reads format {CARD_VERSION}",
                where=str(model / CARD),
                fix="export the model again with this version of Dragoman",
            )
        self._tokenizer = Tokenizer.load(model / TOKENIZER)
        self._pieces = self._tokenizer.pieces()
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}
        try:
            self._engine = ctranslate2.Translator(
                str(model),
                device=device,
                compute_type=compute_type,
                # A batch per core: several cores on one batch wait for each other at every layer, and on a
                # machine that has other work as well this is slower than one core (measured: five times).
                inter_threads=threads or (usable_cores() if device == "cpu" else 1),
                intra_threads=1,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"CTranslate2 cannot load this model: {error}",
                where=str(model),
                fix="check the device and the compute type, or export the model again",
            ) from error

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int = 1,
        sampling: Sampling | None = None,
        to: str | None = None,
        attention: bool = False,
        window_lines: int = WINDOW_LINES,
    ) -> Iterator[Translation]:
        """Return the translation of every line, in order; an empty line gives an empty one.

        A multilingual model has to be told the language to translate ``to``, unless a line itself begins with a
        tag, such as ``<2de>``, which then holds for that line.
        Beam and length penalty are those the model was scored with if not given; an n-best list widens the
        beam to n. The sentences of a line are translated one by one, unless the model's recipe says otherwise, and put
        back with the white space between them. A sentence over twice as long as any the model was trained on is cut
        at the ends of clauses, or between words. The unknown subword is never used.
        """
        options: dict[str, Any] = {
            "beam_size": max(nbest, self.card["beam"] if beam is None else beam),
            "length_penalty": self.card["length_penalty"] if length_penalty is None else length_penalty,
            "num_hypotheses": nbest,
            "return_attention": attention,
        }
        if sampling:
            drawn = {"sampling_temperature": sampling.temperature, "sampling_topk": sampling.topk}
            options |= {"beam_size": 1, **drawn}
        self._require_language(to)
        windows = map(partial(self._take_apart, to=to), _windows(lines, window_lines))
        return self._translate_windows(windows, options, nbest)

    def _require_language(self, to: str | None) -> None:
        """Refuse a language that this model does not translate into."""
        choices = self._tokenizer.tags or (self.card["tgt_lang"],)
        if to is not None and to not in choices:
            raise UserError(
                f'this model does not translate into "{to}"',
                where=str(self.path),
                fix=f"it translates into {', '.join(choices)}",
            )

    def _take_apart(self, window: list[str], to: str | None) -> list["_Line"]:
        """Take lines apart into sentences, each of which gets the tag of its line, if the model has tags."""
        into_sentences = self.card.get("split_sentences", True)
        if not self._tokenizer.tags:
            return [
                _Line(*split_line(line, into_sentences=into_sentences), self.card["tgt_lang"])
                for line in window
            ]
        apart = []
        for line in window:
            text = line.lstrip()
            word, rest = self._tokenizer.split_tag(text)
            sentences, spaces = split_line(
                line[: len(line) - len(text)] + rest, into_sentences=into_sentences
            )
            if sentences:
                word = word or self._tag(to)
                sentences = [f"{word} {sentence}" for sentence in sentences]
            apart.append(_Line(sentences, spaces, language_of(word)))
        return apart

    def _tag(self, to: str | None) -> str:
        if to is None:
            raise UserError(
                f"this model translates into several languages ({', '.join(self._tokenizer.tags)}): which one?",
                where=str(self.path),
                fix=f"name it, for example with --to {self._tokenizer.tags[0]}",
            )
        return tag(to)

    def _translate_windows(
        self, windows: Iterator[list["_Line"]], options: dict[str, Any], nbest: int
    ) -> Iterator[Translation]:
        for window in windows:
            encoded = self._encode(list(chain.from_iterable(line.sentences for line in window)))
            translated = iter(self._translate_parts(list(chain.from_iterable(encoded)), options))
            numbers = iter([len(parts) for parts in encoded])
            for line in window:
                sentences = [
                    self._join(list(islice(translated, number)), line.language, nbest)
                    for number in islice(numbers, len(line.sentences))
                ]
                yield self._put_back(line, sentences, nbest)

    def _encode(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Return each sentence in parts, as ids: none of an empty one, one of most."""
        # Counts end-of-sentence, as encode() does.
        longest = min(STRETCH * self.card["max_length"], self.card["positions"])

        encoded = []
        # A lone surrogate stands for a byte that was not UTF-8, and nothing can encode it.
        texts = [normalise(text.encode("utf-8", "replace").decode("utf-8")) for text in sentences]
        for text, ids in zip(texts, self._tokenizer.encode(texts), strict=True):
            parts = [ids] if len(ids) <= longest else self._encode_parts(text, longest)
            empty = 2 if self._tokenizer.split_tag(text)[0] else 1  # the length of a part without text
            # The engine adds end-of-sentence. A single character may still be too long, in bytes.
            encoded.append([part[:-1][: longest - 1] for part in parts if len(part) > empty])
        return encoded

    def _encode_parts(self, line: str, longest: int) -> list[list[int]]:
        """Cut a line that is too long; each part gets the line's tag."""
        word, text = self._tokenizer.split_tag(line)
        begin = f"{word} " if word else ""

        def size(part: str) -> int:
            return len(self._tokenizer.encode([begin + part])[0])

        return self._tokenizer.encode([begin + part for part in split_long(text, size, longest)])

    def _translate_parts(
        self, parts: list[list[int]], options: dict[str, Any]
    ) -> list[tuple[Hypothesis, ...]]:
        def longest_target(index: int) -> int:
            rounded = -(-len(parts[index]) // LENGTH_STEP) * LENGTH_STEP
            return min(LENGTH_FACTOR * rounded, int(self.card["positions"]))

        by_length = sorted(range(len(parts)), key=lambda index: len(parts[index]))
        running = []
        for limit, group in groupby(by_length, longest_target):
            indices = list(group)
            results = self._engine.translate_batch(
                # By id: text that happens to read like the end-of-sentence piece must not become it.
                [[self._pieces[id_] for id_ in parts[index]] for index in indices],
                max_batch_size=BATCH_TOKENS,
                batch_type="tokens",
                max_input_length=0,
                max_decoding_length=limit,
                disable_unk=True,
                return_scores=True,
                asynchronous=True,  # so that no core waits for the end of a group
                **options,
            )
            running += [(index, limit, result) for index, result in zip(indices, results, strict=True)]
        done: list[tuple[Hypothesis, ...]] = [()] * len(parts)
        for index, limit, pending in running:
            result = pending.result()
            done[index] = tuple(
                self._hypothesis(tokens, score, limit, options["length_penalty"])
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            )
            if options["return_attention"]:
                done[index] = self._with_attention(done[index], parts[index], result)
        return done

    def _with_attention(
        self, hypotheses: tuple[Hypothesis, ...], ids: list[int], result: Any
    ) -> tuple[Hypothesis, ...]:
        source = texts_of([self._pieces[id_] for id_ in ids], skipped=1 if self._tokenizer.tags else 0)
        return tuple(
            hypothesis._replace(attention=Attention(source, texts_of(tokens), np.array(weights, np.float32)))
            for hypothesis, tokens, weights in zip(
                hypotheses, result.hypotheses, result.attention, strict=True
            )
        )

    def _hypothesis(self, tokens: list[str], score: float, limit: int, length_penalty: float) -> Hypothesis:
        # The engine divides by length^penalty, counting end-of-sentence, which only comes before the limit.
        length = len(tokens) + (len(tokens) < limit)
        # Normalised, for bytes can spell a line end or worse.
        text = normalise(self._tokenizer.decode([self._ids[token] for token in tokens]))
        return Hypothesis(text, score * length**length_penalty, length)

    def _put_back(self, line: "_Line", sentences: list[Translation], nbest: int) -> Translation:
        """Put the sentences of a line together: the best of each, then the second of each, and so on."""
        if len(sentences) == 1 and not any(line.spaces):
            return sentences[0]
        number = min((len(sentence.hypotheses) for sentence in sentences), default=nbest)
        spaced = line.language not in UNSPACED
        columns = [[sentence.hypotheses[rank] for sentence in sentences] for rank in range(number)]
        return Translation(
            tuple(
                _together(put_back([h.text for h in column], line.spaces, spaced=spaced), column)
                for column in columns
            )
        )

    def _join(self, parts: list[tuple[Hypothesis, ...]], language: str, nbest: int) -> Translation:
        """Put the parts of a sentence together: the best of each, then the second of each, and so on."""
        if not parts:
            return Translation((Hypothesis("", 0.0, 0),) * nbest)
        if len(parts) == 1:
            return Translation(parts[0])
        space = "" if language in UNSPACED else " "
        return Translation(
            tuple(
                _together(space.join(h.text for h in hypotheses), hypotheses)
                for hypotheses in zip(*parts, strict=False)  # a short search may find fewer
            )
        )


def split_long(text: str, size: Callable[[str], int], longest: int) -> list[str]:
    """Cut ``text`` near its middle, where it hurts least, until no part's ``size`` is over ``longest``."""
    if size(text) <= longest or len(text) < 2:
        return [text]
    middle = len(text) / 2
    for pattern in CUTS:
        cuts = [cut.span() for cut in re.finditer(pattern, text) if abs(cut.start() - middle) <= middle / 2]
        if cuts:
            start, end = min(cuts, key=lambda span: abs(span[0] - middle))
            break
    else:
        start = end = len(text) // 2
    return split_long(text[:start], size, longest) + split_long(text[end:], size, longest)


def _together(text: str, parts: Sequence[Hypothesis]) -> Hypothesis:
    return Hypothesis(text, sum((h.log_probability for h in parts), 0.0), sum(h.num_tokens for h in parts))


def _windows(lines: Iterable[str], most_lines: int) -> Iterator[list[str]]:
    window: list[str] = []
    characters = 0
    for line in lines:
        window.append(line)
        characters += len(line)
        if len(window) >= most_lines or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
