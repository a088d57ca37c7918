"""The passport of a dataset: where it came from, how large it is, what was dropped and why.

Everything is read from the manifest, so a passport is shown at once however large the dataset is. What a manifest does
not say (one written by an older Dragoman, or kept in an old run) is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.data.shards import SIDES, Dataset

BIN = 8  # subwords in a bin of the length histograms

Facts = dict[str, Any]


def passport(dataset: Dataset) -> Facts:
    """Return all that is known of a dataset but the checksums of its files, as JSON can hold it."""
    manifest = dataset.manifest
    sizes = [facts["bytes"] for facts in manifest["files"].values()]
    return {
        "path": str(dataset.path),
        **{name: value for name, value in manifest.items() if name != "files"},
        "disk": {"files": len(sizes), "bytes": sum(sizes)},
    }


@dataclass(frozen=True)
class Row:
    """A corpus, or all corpora of a split together, with what is known of it."""

    split: str
    label: str
    facts: Facts
    together: bool = False


def rows(passport: Facts) -> Iterator[Row]:
    """Yield the corpora of every split, and their sum where there are several."""
    for split, facts in passport["splits"].items():
        for corpus in facts["corpora"]:
            yield Row(split, corpus.get("name") or "\n".join(corpus["paths"]), corpus)
        if len(facts["corpora"]) > 1:
            yield Row(split, "together", facts, together=True)


def directions(passport: Facts) -> list[tuple[str, str]]:
    """Return the language pairs of the training corpora, each once."""
    found = [_languages(corpus, passport) for corpus in passport["splits"]["train"]["corpora"]]
    return list(dict.fromkeys(found))


def languages(row: Row, passport: Facts) -> tuple[str, str]:
    """Return how the two sides of a row are called: by language, or src and tgt where there are several."""
    if not row.together:
        return _languages(row.facts, passport)
    pairs = {_languages(corpus, passport) for corpus in row.facts["corpora"]}
    return pairs.pop() if len(pairs) == 1 else (SIDES[0], SIDES[1])


def _languages(corpus: Facts, passport: Facts) -> tuple[str, str]:
    told = corpus.get("languages") or passport["languages"]
    return told["src"], told["tgt"]


@dataclass(frozen=True)
class Lengths:
    """A histogram of lengths in subwords: how many there are in each bin of eight, and what the bins are called."""

    counts: Sequence[int]
    names: Sequence[str]

    def below(self, share: float) -> int:
        """Return a length that at least this share of the sentences does not exceed, as exactly as bins tell."""
        wanted, seen = share * sum(self.counts), 0
        for place, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return BIN * (place + 1)
        return BIN * len(self.counts)


def lengths(row: Row) -> list[Lengths]:
    """Return the histograms of a row's two sides, without the bins at the end that both leave empty."""
    told = row.facts.get("lengths")
    if not told:
        return []
    last = len(told[0]) - 1
    names = [*(f"{BIN * place + 1}–{BIN * (place + 1)}" for place in range(last)), f"over {BIN * last}"]
    used = max((place + 1 for counts in told for place, count in enumerate(counts) if count), default=0)
    return [Lengths(counts[:used], names[:used]) for counts in told] if used else []


@dataclass(frozen=True)
class Coverage:
    """How well the vocabulary suits a side of a corpus."""

    tokens_per_word: float
    unknown: int  # tokens that are unknown, or bytes of characters that have no subword
    unknown_share: float


def coverage(row: Row) -> list[Coverage]:
    """Return how the vocabulary covers the two sides of a row."""
    facts = row.facts
    if "words" not in facts or "unknown" not in facts:
        return []
    return [
        Coverage((tokens - facts["pairs"]) / max(words, 1), unknown, unknown / max(tokens, 1))
        for tokens, words, unknown in zip(facts["tokens"], facts["words"], facts["unknown"], strict=True)
    ]


def sources(passport: Facts) -> dict[str, str]:
    """Return licence and source of every corpus that tells them, by its name."""
    told = {
        row.label: ", ".join(row.facts[name] for name in ("licence", "source") if row.facts.get(name))
        for row in rows(passport)
        if not row.together
    }
    return {label: text for label, text in told.items() if text}


def weights(passport: Facts) -> dict[str, float]:
    """Return the weights of the training corpora, if they differ from 1."""
    told = {row.label: row.facts.get("weight", 1) for row in rows(passport) if row.split == "train"}
    return {label: weight for label, weight in told.items() if weight != 1}


def dropped_by_corpus(passport: Facts, rule: str) -> dict[str, int]:
    """Return how many pairs a rule dropped of each training corpus, where there are several."""
    train = passport["splits"]["train"]["corpora"]
    counts = {each["name"]: each.get("dropped", {}).get(rule, 0) for each in train if "name" in each}
    return {name: count for name, count in counts.items() if count} if len(train) > 1 else {}


def rule_notes(passport: Facts) -> list[str]:
    """Return, a sentence each, what rules say of themselves: that they know nothing of a language."""
    return [f"{rule}: {told['note']}" for rule, told in passport["dropped"].items() if told.get("note")]


def overlaps(passport: Facts) -> list[str]:
    """Return, a sentence each, what was found of dev and test in train."""
    told = passport.get("overlap")
    if told is None:
        old = {name: split.get("overlap_with_train") for name, split in passport["splits"].items()}
        return [
            f"{count:,} of {passport['splits'][name]['pairs']:,} pairs of {name} are in train too"
            for name, count in old.items()
            if count
        ]
    sentences = []
    for name, found in told["sets"].items():
        count = sum(found[how] for how in KINDS)
        kinds = ", ".join(f"{found[how]:,} {words}" for how, words in KINDS.items() if found[how])
        share = f" ({count / max(found['pairs'], 1):.1%})"
        sentences.append(
            f"{count:,} of {found['pairs']:,} lines of {name}{share} were in train: {kinds}"
            if count
            else f"none of {found['pairs']:,} lines of {name} was in train"
        )
    return sentences


# How a held-out line may overlap with train, as the manifest calls it and in words.
KINDS = {
    "exact": "word for word",
    "normalised": "but for case and punctuation",
    "ngram": "by 13 words in a row",
}


def gate(passport: Facts) -> str:
    """Return what was done about the overlap of train with dev and test; nothing if it is not known."""
    told = passport.get("overlap")
    if told is None:
        return ""
    if told["gate"]:
        return f"removed from train: {told['removed']:,} pairs that overlap with dev or test"
    return f"the gate is off: {told.get('kept', 0):,} training pairs overlap with dev or test and were kept"


def is_contaminated(passport: Facts) -> bool:
    """Whether train still has something of dev or test."""
    told = passport.get("overlap")
    return bool(overlaps(passport)) if told is None else bool(not told["gate"] and told.get("kept"))
