"""A dataset's manifest made by hand, with everything that one can hold, and a dataset that has it."""

from pathlib import Path
from typing import Any

from dragoman.data.shards import FORMAT, Dataset

RULES = {"empty": 12, "ratio": 340, "identical": 77, "language": 1_204, "numbers": 0, "html": 5}


def counts(scale: int, *, dropped: bool = False) -> dict[str, Any]:
    """Return what is counted of a corpus, ``scale`` times as large."""
    lost = {rule: number * scale for rule, number in RULES.items()} if dropped else {}
    src = [10 * scale, 80 * scale, 60 * scale, 20 * scale, 4 * scale, 1, 0, 0]
    pairs = sum(src)
    return {
        "lines": pairs + sum(lost.values()),
        "pairs": pairs,
        "chars": [90 * pairs, 101 * pairs],
        "bytes": [91 * pairs, 104 * pairs],
        "tokens": [20 * pairs, 22 * pairs],
        "words": [15 * pairs, 14 * pairs],
        "unknown": [3, 40 * scale],
        "dropped": lost,
        "lengths": [src, [pairs - 90 * scale, 50 * scale, 30 * scale, 5 * scale, 4 * scale, 0, scale, 0]],
    }


def corpus(name: str, scale: int, **more: Any) -> dict[str, Any]:
    facts = {"name": name, "paths": [f"corpora/{name}.en", f"corpora/{name}.de"], "content": ["0f", "1e"]}
    told = {"languages": {"src": "en", "tgt": "de"}, "weight": 1, "licence": None, "source": None}
    return {**facts, **told, **counts(scale, dropped=more.pop("dropped", False)), **more}


def manifest(text: str = "A line. & more", *, gate: bool = True) -> dict[str, Any]:
    """Return a manifest of two training corpora, dev and test; ``text`` stands wherever a text does."""
    example = {"where": f"europarl:17 {text}", "src": f"{text} src", "tgt": f"{text} tgt"}
    europarl = corpus(
        "europarl" + text, 3, dropped=True, licence=f"CC BY 4.0 {text}", source="https://example.org/e"
    )
    news = corpus("news", 1, dropped=True, weight=2.0, languages={"src": "en", "tgt": "fr"})
    found = {"exact": 2, "normalised": 1, "ngram": 3}
    return {
        "format": FORMAT,
        "fingerprint": "0123456789abcdef",
        "languages": {"src": "en", "tgt": "de"},
        "settings": {"filter": {"max_length": 64}, "vocab": {"size": 8000}},
        "vocab": {"size": 8000, "pieces": 7996, "byte_fallback": True, "sample_pairs": 700, "used": 7001},
        "splits": {
            "train": {**counts(4, dropped=True), "corpora": [europarl, news], "shards": []},
            "dev": {**counts(1), "corpora": [corpus("dev", 1)], "shards": []},
            "test": {**counts(2), "corpora": [corpus("newstest", 2)], "shards": []},
        },
        "dropped": {
            rule: {"pairs": 4 * number, "examples": [example] * 3 if number else []}
            | ({"off": True} if rule == "numbers" else {})
            | ({"note": "not applied to fr: it is not known"} if rule == "language" else {})
            for rule, number in RULES.items()
        },
        "overlap": {
            "gate": gate,
            "removed": 9 if gate else 0,
            "kept": 0 if gate else 9,
            "sets": {"dev": {"pairs": 175, **found}, "test": {"pairs": 350, **dict.fromkeys(found, 0)}},
            "examples": [{**example, "held_out": f"{text} held out", "how": "ngram"}],
        },
        "versions": {"dragoman": "0.1", "sentencepiece": "0.2"},
        "made": {"at": "2026-01-02T03:04:05Z", "host": "vm", "workers": 2, "seconds": {"clean": 2.5, "encode": 3.0}},
        "files": {"sentencepiece.model": {"bytes": 370_000, "sha256": "00"}},
    }  # fmt: skip


def oldest() -> dict[str, Any]:
    """Return what the first format of a manifest said: nothing of names, words, lengths and the gate."""
    facts = manifest()
    newer = ("name", "languages", "weight", "licence", "source", "words", "unknown", "lengths")
    del facts["overlap"], facts["vocab"]["used"]
    for split in facts["splits"].values():
        for part in (split, *split["corpora"]):
            for name in newer:
                part.pop(name, None)
    facts["splits"]["dev"]["overlap_with_train"] = 3
    return facts


def dataset(**more: Any) -> Dataset:
    return Dataset(Path("datasets/0123456789abcdef"), manifest(**more))
