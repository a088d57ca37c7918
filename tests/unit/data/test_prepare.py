"""The pipeline as a whole: what it makes, when it makes it again, and what stops it."""

import errno
import gzip
import json
import shutil
from functools import partial

import numpy as np
import pytest

from dragoman.data import corpora, shards
from dragoman.data import prepare as module
from dragoman.data.corpora import HASHES
from dragoman.data.formats import read_chunks
from dragoman.data.prepare import LOCK, fingerprint, prepare
from dragoman.data.rules import FILTER_NAMES
from dragoman.data.tmx import read_tmx
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.files import TEMPORARY

NOUNS = {"dog": "Hund", "tree": "Baum", "table": "Tisch", "ball": "Ball", "key": "Schlüssel", "bird": "Vogel"}
VERBS = {"see": "sehe", "take": "nehme", "find": "finde", "hear": "höre", "carry": "trage", "paint": "male"}
PAIRS = [
    (f"I {verb} the {noun} {n} times.", f"Ich {sehe} den {hund} {n} Mal.")
    for verb, sehe in VERBS.items()
    for noun, hund in NOUNS.items()
    for n in (2, 3, 4)
]
TOO_LONG = " ".join(["see the dog"] * 50), " ".join(["sehe den Hund"] * 50)


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def corpus(tmp_path, recipe_with):
    """A directory with train and dev files, and ``recipe(*overrides)`` that reads them."""

    class Corpus:
        path = tmp_path
        datasets = tmp_path / "datasets"

        def train(self, pairs):
            write(tmp_path / "train.en", [src for src, _ in pairs])
            write(tmp_path / "train.de", [tgt for _, tgt in pairs])

        def recipe(self, *overrides):
            return recipe_with(
                f'data.train=["{tmp_path}/train.en", "{tmp_path}/train.de"]',
                f'data.dev=["{tmp_path}/dev.en", "{tmp_path}/dev.de"]',
                f'data.directory="{self.datasets}"',
                "vocab.size=200",
                "filter.max_other_language=1.0",  # loading the model takes a second
                *overrides,
            )

        def made(self):
            """Return what is in the directory of datasets besides our own books."""
            return {path.name for path in self.datasets.glob("*")} - {LOCK, HASHES}

    corpus = Corpus()
    corpus.train(PAIRS)
    write(tmp_path / "dev.en", ["I  see the\u00a0dog.", "", "Something else."])
    write(tmp_path / "dev.de", [" Ich sehe\u00a0den Hund. ", "Nichts.", "Etwas anderes."])
    return corpus


def make(recipe):
    return prepare(recipe, workers=0, progress=False)


def error_of(recipe):
    with pytest.raises(UserError) as caught:
        make(recipe)
    return str(caught.value)


def lines_of(dataset, split, side):
    tokenizer = Tokenizer.load(dataset.tokenizer_path)
    pairs = dataset.split(split)
    return [tokenizer.decode(ids) for ids in pairs.gather(np.arange(len(pairs)), side)]


def test_a_dataset_holds_the_pairs_in_order(corpus):
    dataset = make(corpus.recipe())
    assert lines_of(dataset, "train", 0) == [src for src, _ in PAIRS]
    assert lines_of(dataset, "train", 1) == [tgt for _, tgt in PAIRS]
    assert dataset.fingerprint == dataset.path.name == fingerprint(corpus.recipe())
    assert dataset.vocab_size == dataset.manifest["vocab"]["size"]
    assert dataset.vocab_size % 8 == 0
    dataset.verify()
    train = dataset.manifest["splits"]["train"]
    assert train["tokens"] == dataset.split("train").lengths.sum(axis=0).tolist()
    assert train["bytes"][1] == sum(len(tgt.encode()) for _, tgt in PAIRS)
    assert corpus.made() == {dataset.fingerprint}
    assert not (dataset.path / module.WORK).exists()


def test_dev_is_never_filtered_and_its_reference_untouched(corpus):
    src = ["I  see the\u00a0dog.", "", "the dog", "the dog", TOO_LONG[0]]
    ref = [" Ich sehe\u00a0den Hund. ", "Nichts.", "the dog", "the dog", TOO_LONG[1]]
    write(corpus.path / "dev.en", src)
    write(corpus.path / "dev.de", ref)
    dataset = make(corpus.recipe())
    assert dataset.text("dev") == (["I see the dog.", *src[1:]], ref)
    assert lines_of(dataset, "dev", 0) == ["I see the dog.", *src[1:]]
    assert lines_of(dataset, "dev", 1)[0] == "Ich sehe den Hund."
    assert dataset.split("dev").lengths[1, 0] == 1  # nothing but end-of-sentence
    assert dataset.manifest["splits"]["dev"]["lines"] == 5


def test_every_filter_counts_what_it_drops(corpus):
    bad = [
        ("", "leer"), ("same", "same"), PAIRS[3], ("one " * 30 + ".", "eins"), TOO_LONG, ("leer", " "),
        (PAIRS[4][0].upper(), PAIRS[4][1]), ("I <br> see", "Ich sehe"), ("I see the dog.", "Ich sehe den Hund."),
    ]  # fmt: skip
    corpus.train(PAIRS + bad)
    dataset = make(corpus.recipe())
    dropped = dataset.manifest["dropped"]
    counts = {name: facts["pairs"] for name, facts in dropped.items() if facts["pairs"]}
    once = ("ratio", "identical", "html", "overlap", "duplicate", "near_duplicate", "too_long")
    assert counts == {"empty": 2, **dict.fromkeys(once, 1)}
    assert list(dropped) == list(FILTER_NAMES)
    assert [name for name, facts in dropped.items() if facts.get("off")] == ["language"]
    assert dropped["duplicate"]["examples"] == [
        {"where": f"{corpus.path}/train.en:{len(PAIRS) + 3}", "src": PAIRS[3][0], "tgt": PAIRS[3][1]}
    ]
    assert dropped["too_long"]["examples"][0]["src"] == TOO_LONG[0][:200]
    train = dataset.manifest["splits"]["train"]
    assert (train["lines"], train["pairs"], train["dropped"]) == (len(PAIRS) + 9, len(PAIRS), counts)
    assert len(dataset.split("train")) == len(PAIRS)


def test_duplicates_may_stay(corpus):
    corpus.train(PAIRS * 2)
    assert len(make(corpus.recipe()).split("train")) == len(PAIRS)
    assert len(make(corpus.recipe("filter.duplicates=false")).split("train")) == 2 * len(PAIRS)


def test_several_corpora_are_counted_apart_and_deduplicated_together(corpus):
    tsv = corpus.path / "more.tsv.gz"
    tsv.write_bytes(gzip.compress("".join(f"{a}\t{b}\n" for a, b in [PAIRS[0], ("new", "neu")]).encode()))
    files = [[str(corpus.path / "train.en"), str(corpus.path / "train.de")], str(tsv)]
    train = make(corpus.recipe(f"data.train={json.dumps(files)}")).manifest["splits"]["train"]
    first, second = train["corpora"]
    assert (first["lines"], first["pairs"], first["dropped"]) == (len(PAIRS), len(PAIRS), {})
    assert (second["lines"], second["pairs"], second["dropped"]) == (2, 1, {"duplicate": 1})
    assert train["pairs"] == len(PAIRS) + 1


def test_what_dev_and_test_contain_is_removed_from_train_or_told(corpus):
    write(corpus.path / "dev.en", ["New.", PAIRS[0][0], PAIRS[1][0].upper()])
    write(corpus.path / "dev.de", ["Neu.", PAIRS[0][1], PAIRS[1][1] + "!"])
    test = f'data.test=["{corpus.path}/dev.en", "{corpus.path}/dev.de"]'
    dataset = make(corpus.recipe(test))
    overlap = dataset.manifest["overlap"]
    counts = {"pairs": 3, "exact": 1, "normalised": 1, "ngram": 0}
    removed = 2
    assert (overlap["gate"], overlap["removed"], overlap["sets"]) == (
        True,
        removed,
        {"dev": counts, "test": counts},
    )
    assert "kept" not in overlap
    assert overlap["examples"][0] == {
        "where": f"{corpus.path}/train.en:1", "src": PAIRS[0][0], "tgt": PAIRS[0][1], "how": "exact",
        "held_out": f"dev:2 {PAIRS[0][0]}",
    }  # fmt: skip
    assert len(dataset.split("train")) == len(PAIRS) - removed
    assert dataset.manifest["dropped"]["overlap"]["pairs"] == removed

    left = make(corpus.recipe(test, "filter.overlap=false"))
    assert left.manifest["overlap"] == {**overlap, "gate": False, "removed": 0, "kept": removed}
    assert len(left.split("train")) == len(PAIRS)


def test_the_manifest_counts_what_was_kept(corpus):
    dataset = make(corpus.recipe("filter.max_length=40"))
    train, dev = (dataset.manifest["splits"][name] for name in ("train", "dev"))
    lengths = dataset.split("train").lengths
    for side in (0, 1):
        assert len(train["lengths"][side]) == 5
        assert sum(train["lengths"][side]) == len(PAIRS)
        assert train["lengths"][side][1] == ((lengths[:, side] > 8) & (lengths[:, side] <= 16)).sum()
        assert train["words"][side] == sum(len(pair[side].split()) for pair in PAIRS)
    assert dev["words"] == [6, 7]
    assert train["unknown"] == [0, 0]
    assert dev["unknown"][1] > 0  # letters that train does not have
    assert {**train["corpora"][0], "shards": train["shards"]}.items() >= {
        key: value for key, value in train.items() if key != "corpora"
    }.items()
    vocab = dataset.manifest["vocab"]
    pairs = dataset.split("train")
    used = {
        int(piece) for side in (0, 1) for ids in pairs.gather(np.arange(len(pairs)), side) for piece in ids
    }
    assert vocab["used"] == len(used) < vocab["pieces"]


def test_a_rule_that_cannot_be_applied_says_so(corpus):
    dropped = make(corpus.recipe("data.tgt_lang=tlh")).manifest["dropped"]
    assert dropped["script"]["note"] == "not applied to tlh: its script is not known"
    assert "note" not in dropped["language"]  # it is off


def test_several_target_languages_are_told_apart_by_tags(corpus):
    path = corpus.path
    write(path / "dev.en", ["I see the dog.", "", PAIRS[0][0]])
    write(path / "dev.de", ["Ich sehe den Hund.", "Nichts.", PAIRS[0][1]])
    there, back = (
        json.dumps([f"{path}/{{0}}.{a}", f"{path}/{{0}}.{b}"]) for a, b in (["en", "de"], ["de", "en"])
    )
    languages = ', src_lang="de", tgt_lang="en"'
    sets = {
        name: f"[{{files={there.format(name)}}}, {{files={back.format(name)}{languages}}}]"
        for name in ("train", "dev")
    }
    dataset = make(corpus.recipe(f"data.train={sets['train']}", f"data.dev={sets['dev']}"))
    tokenizer = Tokenizer.load(dataset.tokenizer_path)
    assert tokenizer.tags == ("de", "en")
    assert dataset.manifest["tags"] == ["de", "en"]
    assert dataset.manifest["languages"] == {"src": "de, en", "tgt": "de, en"}
    corpora = dataset.manifest["splits"]["train"]["corpora"]
    assert [each["languages"] for each in corpora] == [{"src": "en", "tgt": "de"}, {"src": "de", "tgt": "en"}]
    train, first = dataset.split("train"), corpora[0]["pairs"]
    assert len(train) == 2 * first == 2 * (len(PAIRS) - 1)  # dev has one of them
    sides = [train.gather(np.arange(len(train)), side) for side in (0, 1)]
    assert [ids[0] for ids in sides[0]] == [4] * first + [5] * first
    assert not any({4, 5} & set(ids.tolist()) for ids in sides[1])
    assert dataset.text("dev")[0] == [
        *("<2de> I see the dog.", "<2de> ", f"<2de> {PAIRS[0][0]}"),
        *("<2en> Ich sehe den Hund.", "<2en> Nichts.", f"<2en> {PAIRS[0][1]}"),
    ]
    dev = dataset.split("dev").gather(np.arange(6), 0)
    assert [ids.tolist() for ids in dev] == tokenizer.encode(dataset.text("dev")[0])
    assert dataset.manifest["overlap"]["sets"]["dev"]["exact"] == 2  # found without the tag


def test_what_is_only_said_of_a_corpus_is_said_anew_without_preparing_again(corpus, monkeypatch):
    files = json.dumps([f"{corpus.path}/train.en", f"{corpus.path}/train.de"])
    first = make(corpus.recipe())
    monkeypatch.setattr(module, "_build", None)
    said = make(
        corpus.recipe(f'data.train=[{{files={files}, name="mine", weight=2, licence="CC0", source="here"}}]')
    )
    assert said.path == first.path
    (facts,) = said.manifest["splits"]["train"]["corpora"]
    assert facts.items() >= {"name": "mine", "weight": 2.0, "licence": "CC0", "source": "here"}.items()
    assert shards.Dataset.open(first.path).manifest == said.manifest
    said.verify()


def test_a_dataset_is_made_once(corpus, monkeypatch, capsys):
    first = prepare(corpus.recipe(), workers=0)
    assert "clean: " in capsys.readouterr().err
    monkeypatch.setattr(module, "_build", None)
    again = prepare(corpus.recipe("train.steps=7", "filter.max_length=128"), workers=0)
    assert again == first
    assert "is there already" in capsys.readouterr().err


def test_silence_is_possible(corpus, capfd):
    prepare(corpus.recipe(), workers=0, progress=False)
    assert capfd.readouterr() == ("", "")


def test_the_fingerprint_is_that_of_content_and_settings(corpus):
    recipe = corpus.recipe()
    name = fingerprint(recipe)
    assert len(name) == 16
    assert int(name, 16)
    assert fingerprint(corpus.recipe("train.seed=3", "model.layers=2", "vocab.dropout=0.1")) == name
    for change in ("filter.max_length=99", "vocab.size=208", "data.tgt_lang=nl", 'data.test="builtin:9"'):
        assert fingerprint(corpus.recipe(change)) != name
    shutil.copy(corpus.path / "train.en", corpus.path / "moved.en")
    moved = json.dumps([str(corpus.path / "moved.en"), str(corpus.path / "train.de")])
    assert fingerprint(corpus.recipe(f"data.train={moved}")) == name
    corpus.train([*PAIRS, ("more", "mehr")])
    assert fingerprint(recipe) != name


def test_the_number_of_workers_changes_nothing(corpus, monkeypatch):
    corpus.train(PAIRS * 100)
    monkeypatch.setattr(corpora, "read_chunks", partial(read_chunks, chunk_bytes=20_000))
    datasets = []
    for workers in (0, 1, 2):
        datasets.append(prepare(corpus.recipe(), workers=workers, progress=False))
        shutil.rmtree(corpus.datasets)
    zero, one, two = ({**dataset.manifest, "made": None} for dataset in datasets)
    assert zero == one == two
    assert len(zero["files"]) == 9


def test_a_translation_memory_is_prepared_alike_by_any_number_of_workers(corpus, monkeypatch):
    units = [
        f'<tu><tuv xml:lang="en"><seg>{src}</seg></tuv><tuv xml:lang="de"><seg>{tgt}</seg></tuv></tu>\n'
        for src, tgt in PAIRS
    ]
    units[3] = '<tu><tuv xml:lang="en"><seg>no German</seg></tuv></tu>\n'
    path = corpus.path / "a.tmx"
    path.write_text("<tmx><body>" + "".join(units) + "</body></tmx>")
    monkeypatch.setattr(corpora, "read_tmx", partial(read_tmx, chunk_bytes=2000))
    recipe = corpus.recipe(f'data.train="{path}"', f'data.dev="{path}"', "filter.overlap=false")
    made = [make(recipe)]
    assert len(lines_of(made[0], "train", 0)) == len(PAIRS) - 1
    files = made[0].manifest["files"]
    shutil.rmtree(made[0].path)
    assert prepare(recipe, workers=2, progress=False).manifest["files"] == files
    splits = made[0].manifest["splits"]
    assert (splits["train"]["lines"], splits["train"]["dropped"]) == (len(PAIRS), {"empty": 1})
    assert splits["dev"]["pairs"] == len(PAIRS) - 1  # which has no rules, and no use for half a pair
    assert made[0].manifest["dropped"]["empty"]["examples"] == [
        {"where": f"{path}:4", "src": "no German", "tgt": ""}
    ]


def test_a_damaged_dataset_is_made_again(corpus, capsys):
    first = make(corpus.recipe())
    (first.path / "train" / "00000.src.npy").unlink()
    again = prepare(corpus.recipe(), workers=0)
    assert again.manifest["files"] == first.manifest["files"]
    again.verify()
    assert "is damaged: making it again" in capsys.readouterr().err


def test_what_processes_left_that_made_other_datasets_is_removed(corpus):
    leftover = corpus.datasets / f"{TEMPORARY}0123456789abcdef-1" / "train"
    leftover.mkdir(parents=True)
    dataset = make(corpus.recipe())
    assert corpus.made() == {dataset.fingerprint}


@pytest.fixture
def many_chunks(corpus, monkeypatch):
    """Text of several corpora, of many chunks each, and of many shards."""
    first = [
        (f"{src} {word}", f"{tgt} {word}") for word in ("red", "green", "blue", "grey") for src, tgt in PAIRS
    ]
    corpus.train(first + PAIRS)
    more = corpus.path / "more.tsv"
    more.write_text("".join(f"{src} again\t{tgt} wieder\n" for src, tgt in [*first, ("", ""), *PAIRS]))
    files = json.dumps([[str(corpus.path / "train.en"), str(corpus.path / "train.de")], str(more)])
    monkeypatch.setattr(corpora, "read_chunks", partial(read_chunks, chunk_bytes=1_000))
    monkeypatch.setattr(shards, "SHARD_PAIRS", 200)
    write(corpus.path / "dev.en", [PAIRS[5][0], "I see the red dog."])
    write(corpus.path / "dev.de", [PAIRS[5][1], "Ich sehe den roten Hund."])
    return corpus, f"data.train={files}"


class Interrupting:
    """A function that works so many times, and is then interrupted."""

    def __init__(self, function, calls):
        self.function, self.calls = function, calls

    def __call__(self, *arguments, **options):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return self.function(*arguments, **options)


@pytest.mark.parametrize("stage", ["clean", "encode"])
@pytest.mark.parametrize("calls", [[3], [1, 2, 7], [30]])
def test_an_interrupted_one_goes_on_where_it_was(many_chunks, monkeypatch, capsys, stage, calls):
    corpus, files = many_chunks
    undisturbed = make(corpus.recipe(files)).manifest
    shutil.rmtree(corpus.datasets)
    for number in calls:
        with monkeypatch.context() as patch:
            patch.setattr(module, stage, Interrupting(getattr(module, stage), number))
            with pytest.raises(KeyboardInterrupt):
                prepare(corpus.recipe(files), workers=0)
        assert "stopped: the same command goes on from here" in capsys.readouterr().err
        assert [name for name in corpus.made() if not name.startswith(TEMPORARY)] == []
    again = prepare(corpus.recipe(files), workers=0)
    errors = capsys.readouterr().err
    assert "going on after " in errors
    assert ("vocabulary: " in errors) == (stage == "clean")
    assert {**again.manifest, "made": None} == {**undisturbed, "made": None}
    again.verify()
    assert corpus.made() == {again.fingerprint}


def test_what_other_versions_began_is_not_taken_over(many_chunks, monkeypatch, capsys):
    corpus, files = many_chunks
    with monkeypatch.context() as patch:
        patch.setattr(module, "encode", Interrupting(None, 0))
        patch.setattr(module, "__version__", "0.0.1")
        with pytest.raises(KeyboardInterrupt):
            make(corpus.recipe(files))
    prepare(corpus.recipe(files), workers=0)
    assert "going on" not in capsys.readouterr().err
    assert len(corpus.made()) == 1


def test_nothing_left_after_filtering_is_an_error(corpus):
    corpus.train([("same", "same")] * 3 + [("", "leer")])
    error = error_of(corpus.recipe())
    assert "no training pair is left after filtering (dropped: identical 3, empty 1)" in error
    assert "relax [filter]" in error
    corpus.train([TOO_LONG])
    assert "too_long 1" in error_of(corpus.recipe())
    assert corpus.made() == set()


def test_a_vocabulary_that_cannot_be_learned_is_an_error(corpus):
    corpus.train([("".join(map(chr, range(0x100, 0x180))), "b")])
    assert "SentencePiece cannot learn a vocabulary of 64 pieces" in error_of(corpus.recipe("vocab.size=64"))
    assert corpus.made() == set()


def test_errors_in_the_text_leave_nothing_behind(corpus):
    write(corpus.path / "dev.de", ["just one line"])
    assert "dev.en has 3 lines" in error_of(corpus.recipe())
    write(corpus.path / "dev.de", ["three", "lines", "now"])
    (corpus.path / "train.de").write_bytes(b"caf\xe9\n" * len(PAIRS))
    assert "train.de, line 1\n" in error_of(corpus.recipe())
    (corpus.path / "train.de").unlink()
    assert "there is no such file" in error_of(corpus.recipe())
    assert corpus.made() == set()


def test_a_file_that_changes_meanwhile_is_an_error(corpus, monkeypatch):
    write_files = module._write_files

    def meanwhile(*arguments):
        corpus.train([*PAIRS, ("more", "mehr")])
        return write_files(*arguments)

    monkeypatch.setattr(module, "_write_files", meanwhile)
    error = error_of(corpus.recipe())
    assert "a file changed while it was being prepared" in error
    assert str(corpus.path / "train.en") in error
    assert corpus.made() == set()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_directory_that_cannot_be_written_to_is_an_error(corpus, below):
    file = write(corpus.path / "file", ["in the way"])
    corpus.datasets = corpus.path / "file" / below
    error = error_of(corpus.recipe())
    assert "cannot write here" in error
    assert file in error


def test_a_full_disk_leaves_nothing_behind(corpus, monkeypatch):
    def full(path, array):
        path.write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "_write_array", full)
    error = error_of(corpus.recipe())
    assert "the disk is full" in error
    assert str(corpus.datasets) in error
    assert corpus.made() == set()


def test_the_built_in_corpus_needs_no_files(tmp_path, recipe_with):
    directory = json.dumps(str(tmp_path / "datasets"))
    sizes = ('data.train="builtin:300"', 'data.dev="builtin:20"', 'data.test="builtin:30"')
    dataset = make(recipe_with(*sizes, f"data.directory={directory}", "vocab.size=300"))
    assert len(dataset.split("dev")) == 20
    assert len(dataset.split("test")) == 30
    assert dataset.manifest["splits"]["train"]["lines"] == 300
    assert dataset.manifest["splits"]["train"]["corpora"][0]["paths"] == ["builtin/train"]
