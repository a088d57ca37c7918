"""``dragoman evaluate``: test sets and the systems that translate them, brought together to be compared.

A system is a model that translates the set here, or the hypotheses that another system left in a file. Imports without
torch.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.corpus import COMPRESSIONS, holds_both
from dragoman.data import overlap
from dragoman.data.catalogue import CORPORA
from dragoman.data.corpora import SPLITS, About, FileCorpus, Hashes
from dragoman.data.formats import open_lines
from dragoman.data.shards import Dataset
from dragoman.decode.comet import comet_command
from dragoman.decode.compare import COMET, Comparison, System, require_metrics
from dragoman.decode.score import score
from dragoman.decode.translator import CARD, Translator, resolve_model
from dragoman.errors import UserError
from dragoman.files import read_json, read_json_lines
from dragoman.recipe import load_recipe
from dragoman.rundir import RunDir


def evaluate(
    models: Sequence[Path],
    *,
    src: Path | None = None,
    ref: Path | None = None,
    set_name: str | None = None,
    hyps: Sequence[Path] = (),
    metrics: Sequence[str] = ("bleu", "chrf"),
    to: str | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> Comparison:
    """Translate a test set with every model, or the best model of every run, and read what others made of it.

    The set is a source and its reference, in any format of a corpus, one file that holds both sides given as both; or
    it has a name in the catalogue. References are compared as they are. Multilingual models have to be told the
    language to translate ``to``.
    """
    metrics = require_metrics(metrics)
    if COMET in metrics:
        comet_command()  # whether it is there, before anything takes long
    if not models and not hyps:
        raise UserError(
            "there is nothing to evaluate",
            where="dragoman evaluate",
            fix="name a model, a run, or with --hyp a file of translations",
        )
    resolved = [resolve_model(model) for model in models]
    languages = _languages(read_json(resolved[0] / CARD), to) if resolved else None
    if set_name is not None:
        src, ref = _find_set(set_name, languages)
    if src is None or ref is None:
        raise UserError(
            "the test set is missing",
            where="dragoman evaluate",
            fix="give its two sides with --src and --ref, or its name with --set",
        )
    languages = languages or (_ending(src), _ending(ref))
    sources, references = _read_test_set(src, ref, languages)
    theirs = [System(str(hyp), _read_hypotheses(hyp, len(references))) for hyp in hyps]
    ours = [
        _translate(name, Translator(model, device=device, threads=threads), sources, to, beam, length_penalty)
        for model, name in zip(resolved, _names(models), strict=True)
    ]
    for system, model in zip(ours, resolved, strict=True):
        system.facts["overlap"] = known_overlap(model, src, ref)
    return Comparison.of([*ours, *theirs], sources, references, metrics, languages[1])


def known_overlap(model: Path, src: Path, ref: Path) -> dict[str, Any] | None:
    """Return what the run of a model knows of its training text's overlap with a set; None if it knows nothing.

    It knows of its own dev and test, which are recognised by their content wherever the files lie.
    """
    run = RunDir(model.parent.parent)
    if not run.facts.is_file():
        return None
    passport, hashes = read_json(run.facts).get("passport") or {}, Hashes(model)
    content = [hashes.of(str(path)) for path in dict.fromkeys((src, ref))]
    for name in SPLITS:
        held_out = passport.get("splits", {}).get(name, {}).get("corpora", [])
        if [corpus["content"] for corpus in held_out] == [content]:
            return overlap.of_set(passport.get("overlap"), name)
    return None


def rescore(run: RunDir) -> list[dict[str, Any]]:
    """Score again what a run has stored: for each file of hypotheses what comes out now, and what has ``changed``.

    A model that was scored twice has left one file, which belongs to its last score.
    """
    dataset = Dataset.open(Path(read_json(run.facts)["dataset"]))
    tgt_lang = load_recipe(str(run.recipe)).data.tgt_languages
    last = {line["hypotheses"]: line for line in read_json_lines(run.scores)}
    if not last:
        raise UserError(
            "this run has no scores yet", where=str(run.scores), fix="wait for its first evaluation"
        )
    results = []
    for path, line in last.items():
        hypotheses = (run.path / path).read_bytes().decode().removesuffix("\n").split("\n")
        _, references = dataset.text(line["set"])
        again: dict[str, Any] = {**score(hypotheses, references, tgt_lang=tgt_lang)}
        changed = {name: [line[name], value] for name, value in again.items() if line[name] != value}
        results.append(
            {"set": line["set"], "step": line["step"], "hypotheses": path, **again, "changed": changed}
        )
    return results


def require_unchanged(run: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse scores that do not come out as they were recorded."""
    for line in lines:
        for name, (then, now) in line["changed"].items():
            raise UserError(
                f"{name} of the stored hypotheses is {now}, and was {then} when the run was scored",
                where=str(run / line["hypotheses"]),
                fix="see whether this file, the dataset or the version of sacreBLEU has changed since",
            )


def _translate(
    name: str,
    translator: Translator,
    sources: list[str],
    to: str | None,
    beam: int | None,
    length_penalty: float | None,
) -> System:
    card = translator.card
    began = time.monotonic()
    translations = list(translator.translate(sources, beam=beam, length_penalty=length_penalty, to=to))
    facts = {
        "model": str(translator.path),
        "checkpoint": card["checkpoint"],
        "quantization": card["quantization"],
        "beam": card["beam"] if beam is None else beam,
        "length_penalty": card["length_penalty"] if length_penalty is None else length_penalty,
        "seconds": round(time.monotonic() - began, 3),
    }
    texts = [translation.text for translation in translations]
    return System(name, texts, [translation.log_probability for translation in translations], facts)


def _names(models: Sequence[Path]) -> list[str]:
    """Name systems as the user did; one that was named before gets its number."""
    names = list(map(str, models))
    return [
        f"{name} ({number})" if name in names[: number - 1] else name for number, name in enumerate(names, 1)
    ]


def _find_set(name: str, languages: tuple[str, str] | None) -> tuple[Path, Path]:
    """Return the files of a set by its name in the catalogue, CORPUS/SET, or below this directory."""
    if languages is None:
        raise UserError(
            "which way round is this set?", where=f"--set {name}", fix="without a model, give --src and --ref"
        )
    for directory in (Path(CORPORA), Path()):
        src, ref = (directory / f"{name}.{language}" for language in languages)
        if src.is_file() and ref.is_file():
            return src, ref
    corpus = name.rpartition("/")[0]
    there = (
        sorted({path.stem for path in (Path(CORPORA) / corpus).glob(f"*.{languages[1]}")}) if corpus else []
    )
    if there:
        fix = f"choose from {', '.join(f'{corpus}/{each}' for each in there)}"
    else:
        fix = f"get it with `dragoman data get {corpus or 'NAME'}`, which puts it into {CORPORA}/"
    raise UserError(
        f'there is no test set "{name}" here from {languages[0]} to {languages[1]}',
        where=f"--set {name}",
        fix=fix,
    )


def _languages(card: Mapping[str, Any], to: str | None) -> tuple[str, str]:
    """Return the languages to look for in a set: those of a pair the model was trained on."""
    for src, tgt in card.get("pairs", ()):
        if tgt == to:
            return src, tgt
    return card["src_lang"], to or card["tgt_lang"]


def _ending(path: Path) -> str:
    """Return what a file's name ends with, which is a language in most corpora."""
    plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return plain.suffix.removeprefix(".")


def _read_test_set(src: Path, ref: Path, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    for path, option in ((src, "--src"), (ref, "--ref")):
        _require_file(path, option)
    paths: tuple[str, ...] = (str(src), str(ref))
    if src == ref and holds_both(paths[0]):
        paths = paths[:1]
    sources: list[str] = []
    references: list[str] = []
    for chunk in FileCorpus(paths, About("evaluated", *languages)).chunks():
        src_lines, ref_lines = chunk.decode()
        sources += src_lines
        references += ref_lines
    return sources, references


def _read_hypotheses(path: Path, number: int) -> list[str]:
    _require_file(path, "--hyp")
    lines = list(open_lines(path))
    if len(lines) != number:
        raise UserError(
            f"the test set has {number:,} lines, this translation of it {len(lines):,}",
            where=f"--hyp {path}",
            fix="give the translation of this test set, line by line",
        )
    return lines


def _require_file(path: Path, option: str) -> None:
    if not path.is_file():
        raise UserError("there is no such file", where=f"{option} {path}", fix="correct the path")
