"""The grammar of the built-in corpus: phrases and clauses that can be said in English and in German.

A clause holds its parts once; each language has its own forms for them and its own order. Here lies what makes German
hard: gender, case, endings, and where the verb goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.data import lexicon
from dragoman.data.lexicon import ACC, BE, DAT, NOM, PLURAL, Adjective, Modal, Noun, Pair, Verb

NOTHING: Pair = ("", "")


# Noun phrases. Tables of endings are [case][gender].


def _table(*rows: str) -> list[list[str]]:
    return [row.replace("-", "").split(" ") for row in rows]


STRONG = _table("er e es e", "en e es e", "em er em en")
WEAK = _table("e e e en", "en e e en", "en en en en")
MIXED = _table("er e es en", "en e es en", "en en en en")
DER = _table("der die das die", "den die das die", "dem der dem den")
EIN = _table("- e - e", "en e - e", "em er em en")
NONE = _table("- - - -", "- - - -", "- - - -")


class Determiner(NamedTuple):
    en: str
    stem: str
    own: list[list[str]]
    adjective: list[list[str]]  # the endings of an adjective behind it
    definite: bool = False


THE = Determiner("the", "", DER, WEAK, definite=True)
THIS, THESE, WHICH = (
    Determiner(en, de, STRONG, WEAK, definite=True)
    for en, de in (("this", "dies"), ("these", "dies"), ("which", "welch"))
)
POSSESSIVES = [Determiner(en, de, EIN, MIXED, definite=True) for en, de in lexicon.POSSESSIVES]
OWNERS = [Determiner(f"{name}'s", f"{name}s", NONE, STRONG, definite=True) for name in lexicon.NAMES]
A, NOT_A, NOT_ANY = (Determiner(en, de, EIN, MIXED) for en, de in (("a", "ein"), ("a", "kein"), ("", "kein")))
MANY, SOME, HOW_MANY = (
    Determiner(en, de, STRONG, STRONG)
    for en, de in (("many", "viel"), ("some", "einig"), ("how many", "wie viel"))
)
BARE = Determiner("", "", NONE, STRONG)
NUMBERS = [Determiner(en, de, NONE, STRONG) for en, de in lexicon.numbers(range(2, 13))]


class Pronoun(NamedTuple):
    """What stands for a noun phrase and is listed, not inflected: a pronoun, a name, a sum of money."""

    en: Sequence[str]  # as subject, as object
    de: Sequence[str]  # by case
    person: int  # 0 I, 1 you, 2 he she it, 3 plural: all that the verb wants to know, in both languages
    gender: int
    light: bool = True  # in German it keeps close to the verb

    def english(self, case: int) -> str:
        return self.en[case != NOM]

    def german(self, case: int) -> str:
        return self.de[case]


@dataclass(slots=True)
class Phrase:
    determiner: Determiner
    noun: Noun
    plural: bool = False
    adjective: Adjective | None = None
    relative: Clause | None = None

    light = False

    @property
    def person(self) -> int:
        return 3 if self.plural else 2

    @property
    def gender(self) -> int:
        return PLURAL if self.plural else self.noun.gender

    def english(self, case: int) -> str:
        text = self.noun.en[self.plural]
        if self.adjective:
            text = f"{self.adjective.en} {text}"
        article = "an" if self.determiner.en == "a" and text[0] in "aeiou" else self.determiner.en
        if article:
            text = f"{article} {text}"
        return f"{text} {english(self.relative)}" if self.relative else text

    def german(self, case: int) -> str:
        determiner, gender, text = self.determiner, self.gender, self.noun.de[self.plural][case]
        if self.adjective:
            text = f"{self.adjective.stem}{determiner.adjective[case][gender]} {text}"
        if determiner is not BARE:
            text = f"{determiner.stem}{determiner.own[case][gender]} {text}"
        return f"{text}, {german(self.relative)}," if self.relative else text


Nominal = Pronoun | Phrase


def with_preposition(preposition: str, nominal: Nominal, case: int) -> str:
    """Return the German prepositional phrase, contracted as usual: im, ins, zum."""
    text = nominal.german(case)
    if isinstance(nominal, Phrase) and nominal.determiner is THE and not nominal.relative:
        article = DER[case][nominal.gender]
        if short := lexicon.CONTRACTIONS.get(f"{preposition} {article}"):
            return short + text.removeprefix(article)
    return f"{preposition} {text}"


# Clauses: the same parts, in the order of either language.

AM, WAS = ("am", "are", "is", "are"), ("was", "were", "was", "were")  # by person
BIN, WAR, HABE = (
    ("bin", "bist", "ist", "sind"),
    ("war", "warst", "war", "waren"),
    ("habe", "hast", "hat", "haben"),
)


@dataclass(slots=True)
class Clause:
    subject: Nominal
    verb: Verb
    tense: str  # habit, state: reads; now: is reading; past; perfect; modal; infinitive
    modal: Modal | None = None
    object: Nominal | None = None
    receiver: Nominal | None = None  # in the dative, beside an accusative object
    predicate: Pair = NOTHING
    place: Pair = NOTHING
    company: Pair = NOTHING
    time: Pair = NOTHING
    often: Pair = NOTHING
    mark: Pair = NOTHING  # nicht, and what stands in its place
    negated: bool = False
    question: bool = False
    front: str = "subject"  # the part that comes first; none if empty
    last: bool = False  # the German verb comes last
    silent: bool = False  # the subject is not said again


def _english_verb(c: Clause) -> Pair:
    """Return the operator, without which there is no question and no negation, and the rest of the verb."""
    person = c.subject.person
    base, third, ing, past, participle = c.verb.english
    if c.verb is BE:
        return (WAS if c.tense == "past" else AM)[person], ""
    if c.tense == "now":
        return AM[person], ing
    if c.tense == "perfect":
        return "has" if person == 2 else "have", participle
    if c.tense == "infinitive":
        return "", f"to {base}"
    if c.modal and c.modal.operators:
        return c.modal.operators[person], f"{c.modal.en} {base}".lstrip()
    if c.modal:
        base, third = f"{c.modal.en} {base}", f"{c.modal.en_third} {base}"
    if c.negated or (c.question and c.front != "subject"):
        return "did" if c.tense == "past" else "does" if person == 2 else "do", base
    return "", past if c.tense == "past" else third if person == 2 else base


def english(c: Clause) -> str:
    operator, verb = _english_verb(c)
    parts = {"subject": "" if c.silent else c.subject.english(NOM), "place": c.place[0], "time": c.time[0]}
    parts["object"] = c.object.english(ACC) if c.object else ""
    words = [parts.get(c.front, "")]
    parts[c.front] = ""
    words += [operator, parts["subject"]] if c.question else [parts["subject"], operator]
    words += ["not" if c.negated else "", c.often[0], c.mark[0], verb]
    receiver = c.receiver.english(ACC) if c.receiver else ""
    if "to" in c.verb.how:
        words += [parts["object"], "to", receiver]
    elif c.object and c.object.light:  # picks her up, but picks up the woman
        words += [receiver, c.verb.en_prep, parts["object"], c.verb.particle]
    else:
        words += [receiver, c.verb.particle, c.verb.en_prep, parts["object"]]
    words += [c.predicate[0], parts["place"], c.company[0], parts["time"]]
    return " ".join(filter(None, words)).replace("can not", "cannot")


def _german_verb(c: Clause) -> tuple[str, str, str]:
    """Return the finite verb and the end of a main clause, and the end of a subordinate one."""
    person, verb = c.subject.person, c.verb
    if c.tense == "infinitive":
        return "", verb.zu_infinitive, ""
    if c.modal:
        finite, end = c.modal.de[person], verb.infinitive
    elif verb is BE:
        finite, end = (WAR if c.tense == "past" else BIN)[person], ""
    elif c.tense in ("past", "perfect"):
        finite, end = (BIN if verb.takes_sein else HABE)[person], verb.participle
    else:
        return verb.present[person], verb.prefix, verb.prefix + verb.present[person]
    return finite, end, f"{end} {finite}".lstrip()


def german(c: Clause) -> str:
    finite, end, end_of_subordinate = _german_verb(c)
    parts = {"subject": "" if c.silent else c.subject.german(NOM), "place": c.place[1], "time": c.time[1]}
    parts["object"], slot = "", "definite"
    if c.object and c.verb.de_prep:
        parts["object"], slot = with_preposition(c.verb.de_prep, c.object, c.verb.case), "prepositional"
    elif c.object:
        parts["object"] = c.object.german(ACC if c.receiver else c.verb.case)
        if c.object.light:
            slot = "light"
        elif isinstance(c.object, Phrase) and not c.object.determiner.definite:
            slot = "put" if "puts" in c.verb.how else "indefinite"
    front = parts.get(c.front, "")
    parts[c.front] = ""
    object_at = {slot: parts["object"]}.get
    receiver = c.receiver.german(DAT) if c.receiver else ""
    opening = [object_at("light", "")]
    if c.receiver and c.receiver.light:
        opening, receiver = [receiver], ""
    # Heute hilft er ihm, but: heute hilft ihm der Mann.
    opening.insert(0 if c.last or c.subject.light else 1, parts["subject"])
    words = [*opening, parts["time"], c.often[1], receiver, object_at("definite", ""), c.mark[1]]
    words += [object_at("put", ""), c.company[1], parts["place"], object_at("indefinite", "")]
    words += [object_at("prepositional", ""), c.predicate[1]]
    words = [front, *words, end_of_subordinate] if c.last else [front, finite, *words, end]
    return " ".join(filter(None, words))
