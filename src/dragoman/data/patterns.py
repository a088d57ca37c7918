"""What the built-in corpus says: the patterns of its sentences, and the random choices that fill them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from dragoman.data import lexicon
from dragoman.data.grammar import (
    BARE,
    HOW_MANY,
    MANY,
    NOT_A,
    NOT_ANY,
    NOTHING,
    NUMBERS,
    OWNERS,
    POSSESSIVES,
    SOME,
    THE,
    THESE,
    THIS,
    WHICH,
    A,
    Clause,
    Determiner,
    Nominal,
    Phrase,
    Pronoun,
    with_preposition,
)
from dragoman.data.lexicon import ACC, BE, DAT, NOM, PLURAL, Adjective, Noun, Pair, Verb, select

T = TypeVar("T")


def _by_gender(english: Sequence[str], german: Sequence[str]) -> list[Pronoun]:
    rows = zip(english, german, strict=True)
    return [Pronoun(en.split(), de.split(), 2 + (g == PLURAL), g) for g, (en, de) in enumerate(rows)]


ME, YOU, US, WHO, WHAT, THIS_ONE, THESE_ONES = (
    Pronoun(en.split(), de.split(), p, g) for en, de, p, g in lexicon.PRONOUNS
)
HE, SHE, _, THEY = _by_gender(("he him", "she her", "it it", "they them"), lexicon.THIRD_PERSON)
IT = _by_gender(("it it", "it it", "it it", "they them"), lexicon.THIRD_PERSON)
RELATIVE_WHO = _by_gender(["who whom"] * 4, lexicon.RELATIVE)
RELATIVE_THAT = _by_gender(["that that"] * 4, lexicon.RELATIVE)
PERSONAL = (ME, YOU, ME, YOU, HE, SHE, US, THEY)
NAMES = [Pronoun((n, n), (n, n, n), 2, gender, light=False) for n, gender in lexicon.NAMES.items()]
PEOPLE = select("people")
ADULTS = select("people -Kind -Mädchen")  # whom grammatical gender makes a he or a she
PRESENT = ("state", "habit", "now", "now", "perfect", "modal")
TENSES = (*PRESENT, "habit", "now", "past", "past", "modal")
UNFIT = {"now": {"simple", "event"}, "modal": {"event"}, "infinitive": {"simple", "event"}}
ADJECTIVES = {n: [a for a in lexicon.ADJECTIVES if n in a.nouns] for n in lexicon.NOUNS}
DESCRIBED = [n for n in lexicon.NOUNS if ADJECTIVES[n]]
FEELINGS = [a for a in lexicon.ADJECTIVES if a.leads_to]
GENDERED = [(a, [n for n in a.nouns if n.gender == g]) for a in lexicon.ADJECTIVES for g in range(3)]
COMPARED = [  # for each adjective: what, and with what
    (a, [(n, others) for n in a.nouns if (others := [m for m in a.nouns if m.kind == n.kind and m is not n])])
    for a in lexicon.ADJECTIVES
    if a.en_comparative
]
THINGS = {v: [n for n in v.objects if n in select(lexicon.THINGS) and ADJECTIVES[n]] for v in lexicon.VERBS}
SPOTS = {n: [(en, de) for en, de, nouns in lexicon.WHERE if n in select(nouns)] for n in lexicon.NOUNS}
GOALS = {n: (en, de, case) for en, de, case, nouns in reversed(lexicon.WHERE_TO) for n in select(nouns)}
VERB_KINDS: dict[str, Callable[[Verb], bool]] = {
    "any": lambda v: True,
    "human": lambda v: v.human,
    "whom": lambda v: v.human and PEOPLE[0] in v.objects and not v.gifts,
    "thing": lambda v: v.human and bool(THINGS[v]) and not v.en_prep,
    "judged": lambda v: VERB_KINDS["thing"](v) and not v.how & {"puts", "makes"},
    "unbracketed": lambda v: v.human and not (v.prefix or v.gifts or "puts" in v.how),
    "extended": lambda v: v.human and bool(v.objects or v.needs_place),
    "place": lambda v: bool(v.places) and not v.how & {"goes", "puts"},
    "where": lambda v: bool(v.places),
}


@cache
def _verbs(tense: str, kind: str, noun: Noun | None = None) -> Sequence[Verb]:
    """Return the verbs of a kind that have this tense and, if given, this noun as object."""
    verbs = [v for v in lexicon.VERBS if ("stative" in v.how) == (tense == "state") and VERB_KINDS[kind](v)]
    verbs = [v for v in verbs if not v.how & UNFIT.get(tense, set()) and (not noun or noun in v.objects)]
    return [v for v in verbs for _ in range(2 if v.prefix else 1)]  # more forms, so more often


@cache
def _consequences(tense: str, feeling: Adjective) -> Sequence[Verb]:
    return [v for v in _verbs(tense, "human") if v.infinitive in feeling.leads_to]


@cache
def _actions(tense: str) -> Sequence[tuple[Verb, Noun, Verb]]:
    """Return what people may do with a thing, and what they may do with it then."""
    verbs = _verbs(tense, "thing")
    first, then = ([v for v in verbs if v.infinitive in w.split()] for w in (lexicon.FIRST, lexicon.THEN))
    return [(v, n, w) for v in first for n in THINGS[v] for w in then if n in w.objects]


@cache
def _determiners(kind: str, role: str, plural: bool) -> Sequence[Sequence[Determiner]]:
    """Return groups of determiners for a kind of noun: pick a group, then one of it."""
    the, these, own, bare = (THE,), (THESE if plural else THIS,), POSSESSIVES, (BARE,)
    few = [NUMBERS, (MANY,), (SOME,)] if plural else [(A,), (A,)]
    nobodys = kind in ("person", "transport", "animal", "place", "outdoors")
    if role == "place":
        return [the, the, own] if kind == "home" else [the]
    if kind in ("dish", "drink"):
        mass = {"negated": NOT_ANY, "object": BARE, "indirect": BARE, "new": BARE}.get(role, THE)
        return [(mass,), own, bare if role == "new" else the]
    if role == "owned":
        return few
    if role == "new":
        return [bare if plural else (A,), *([] if nobodys else [own])]
    if kind in ("parent", "kin"):
        return [own] if plural else [the, own, own]
    if nobodys:
        return [the, the, the, these, *(few if role in ("subject", "object", "indirect") else [])]
    if role == "negated":
        return [[NOT_ANY if plural else NOT_A]] * 3 + [the, own]
    if role == "object":
        return [the, the, own, these, OWNERS, *few, *few, bare if plural else the]
    return [the, the, own, these, *{"known": [], "indirect": few}.get(role, [OWNERS])]


class Draw:
    """The random choices behind one sentence, and the combinations of words that they make.

    A noun phrase has a role. A "subject" or an "object" may be anything; a "topic" is known to the listener, "plain"
    is a topic without adjective, "asked" is not the speaker, and "adult" is a plain he or she. What is "new" or "owned"
    was not known before, what is "negated" may be kein, a "place" is mostly the only one; "indirect" objects, "known"
    ones if negated, are in the dative or behind a preposition.
    """

    def __init__(self, uniform: Callable[[], float]) -> None:
        self.uniform = uniform
        self.combinations: list[Pair] = []

    def pick(self, options: Sequence[T]) -> T:
        # Of all of `random`, only random() promises the same numbers in every version of Python.
        return options[int(self.uniform() * len(options))]

    def adverb(self, options: Sequence[Pair], chance: float) -> Pair:
        return self.pick(options) if self.uniform() < chance else NOTHING

    def phrase(self, nouns: Sequence[Noun], role: str = "topic", other: Nominal | None = None) -> Phrase:
        noun = self.pick(nouns)
        while isinstance(other, Phrase) and other.noun is noun:
            noun = self.pick(nouns)
        chance = lexicon.PLURALS.get(noun.kind, 0.25) if noun.en[1] and role != "place" else 0
        plural = self.uniform() < chance
        determiners = _determiners(noun.kind, role, plural)
        phrase = Phrase(self.pick(self.pick(determiners)), noun, plural)
        while isinstance(other, Pronoun) and phrase.determiner.en == f"{other.en[0]}'s":
            phrase.determiner = self.pick(self.pick(determiners))
        chance = 0 if role in ("plain", "new", "adult") else 0.2 if role == "place" else 0.4
        if self.uniform() < chance and ADJECTIVES[noun]:
            phrase.adjective = self.pick(ADJECTIVES[noun])
            self.combinations.append((phrase.adjective.de, noun.lemma))
        return phrase

    def somebody(self, role: str = "topic", other: Nominal | None = None) -> Nominal:
        """Return a pronoun, a name or a phrase for somebody, and not for the `other` one."""
        choice = self.uniform()
        if choice > 0.55:
            return self.phrase(ADULTS if role == "adult" else PEOPLE, role, other)
        options = PERSONAL if choice < 0.45 else NAMES
        while (one := self.pick(options)) is other or (one in (ME, US) and other in (ME, US)):
            pass
        return one

    def place(self, verb: Verb) -> Pair:
        if "cities" in verb.how and (not verb.places or self.uniform() < 0.5):
            en, de = self.pick(lexicon.CITIES)
            return (f"to {en}", f"nach {de}") if "goes" in verb.how else (f"in {en}", f"in {de}")
        phrase = self.phrase(verb.places, "place")
        self.combinations.append((verb.infinitive, phrase.noun.lemma))
        if "goes" in verb.how:
            en, de, case = GOALS[phrase.noun]
        else:
            (en, de), case = self.pick(SPOTS[phrase.noun]), ACC if "puts" in verb.how else DAT
        return f"{en} {phrase.english(case)}", with_preposition(de, phrase, case)

    def predicate(
        self, subject: Nominal, adjective: Adjective, degrees: Sequence[Pair] = lexicon.DEGREES
    ) -> Pair:
        """Return what a subject is: very old, sehr alt."""
        if isinstance(subject, Phrase):
            self.combinations.append((adjective.de, subject.noun.lemma))
        en, de = self.adverb(degrees, 0.5 if adjective.gradable else 0)
        return f"{en} {adjective.en}".lstrip(), f"{de} {adjective.de}".lstrip()

    def judgement(self, phrase: Phrase, *, again: bool = False, last: bool = False) -> Clause:
        """Return a clause on what something is like, and call it "it" if it is named again."""
        predicate = self.predicate(phrase, self.pick(ADJECTIVES[phrase.noun]))
        return Clause(IT[phrase.gender] if again else phrase, BE, "state", predicate=predicate, last=last)

    def object(self, c: Clause) -> Nominal:
        verb = c.verb
        if PEOPLE[0] in verb.objects and not verb.gifts and self.uniform() < 0.6:
            return self.somebody("topic" if c.negated else "object", c.subject)
        role = "owned" if "owns" in verb.how else "object"
        if verb.case == DAT or verb.de_prep:
            role = "indirect"
        if c.negated:
            role = "known" if role == "indirect" and not verb.gifts else "negated"
        return self.phrase(verb.gifts or verb.objects, role, c.subject)

    def clause(
        self,
        tenses: Sequence[str] = TENSES,
        kind: str = "any",
        *,
        verb: Verb | None = None,
        subject: Nominal | None = None,
        object: Nominal | None = None,
        place: Pair | None = None,
        time: Pair | None = None,
        role: str = "topic",
        negated: bool = False,
        brief: bool = False,
    ) -> Clause:
        """Draw a clause around the given parts; a brief one has no more than it needs."""
        tense = self.pick(tenses)
        verb = verb or self.pick(_verbs(tense, kind))
        if subject is None and verb.human and (len(verb.subjects) == len(PEOPLE) or self.uniform() < 0.8):
            subject = self.somebody(role, ME if role == "asked" else None)
        c = Clause(subject or self.phrase(verb.subjects, role), verb, tense, object=object, negated=negated)
        if tense == "modal":
            person = isinstance(c.subject, Pronoun) or c.subject.noun in PEOPLE
            c.modal = self.pick(lexicon.MODALS if person else lexicon.MODALS[:1])
        if verb.gifts:
            while (receiver := self.somebody(other=c.subject)) is SHE:
                pass  # "gives her apples" would have two readings
            c.receiver = receiver
        if verb.objects and not object:
            c.object = self.object(c)
        for nominal in (c.subject, c.object, c.receiver):
            if isinstance(nominal, Phrase):
                self.combinations.append((verb.infinitive, nominal.noun.lemma))
        # The last adverb of each list is "never", which does not go with "some apples".
        never = -1 if isinstance(c.object, Phrase) and c.object.plural else None
        if negated and not (isinstance(c.object, Phrase) and c.object.determiner in (NOT_A, NOT_ANY)):
            c.mark = ("", "nicht")
        elif tense == "perfect" and not brief and not negated:
            c.mark = self.adverb(lexicon.ALREADY[:never], 0.8)
        plain = brief or c.mark != NOTHING
        if place:
            c.place = place
        elif verb.needs_place or (verb.places and not plain and self.uniform() < 0.35):
            c.place = self.place(verb)
        elif verb.company and not plain and self.uniform() < 0.3:
            en, de, case = verb.company
            companion = self.somebody(other=c.subject)
            c.company = f"{en} {companion.english(case)}", with_preposition(de, companion, case)
        if time is not None:
            c.time = time
        elif tense == "past":
            c.time = self.pick(lexicon.TIMES[tense])
        elif tense in lexicon.TIMES and not (brief or "simple" in verb.how or (negated and tense == "habit")):
            c.time = self.adverb(lexicon.TIMES[tense], 0.35)
            if tense == "habit" and c.time is NOTHING:
                c.often = self.adverb(lexicon.OFTEN[:never], 0.5)
        return c


# Patterns. A plan is an English and a German frame, and the clauses that fill both.

Plan = tuple[str, str, list[Clause]]


def _say(c: Clause, front: str = "subject") -> Plan:
    c.front = front
    return "{}.", "{}.", [c]


def _ask(c: Clause, front: str) -> Plan:
    c.question, c.front = True, front
    return "{}?", "{}?", [c]


def _join(one: Clause, conjunction: Pair, two: Clause) -> Plan:
    en, de = conjunction
    return f"{{}}{en} {{}}.", f"{{}}{de} {{}}.", [one, two]


def _time_first(d: Draw) -> Plan:
    tense = d.pick(("habit", "now", "past", "past", "modal"))
    return _say(d.clause((tense,), time=d.pick(lexicon.TIMES[tense])), "time")


def _place_first(d: Draw) -> Plan:
    c = d.clause(("habit", "now", "now", "past", "modal"), "place", brief=True)
    if c.place is NOTHING:
        c.place = d.place(c.verb)
    return _say(c, "place")


def _negation(d: Draw) -> Plan:
    c = d.clause(negated=True)
    return _say(c, "subject" if c.time is NOTHING else "time")


def _object_question(d: Draw) -> Plan:
    kind, word = d.pick((("thing", WHAT), ("thing", WHAT), ("whom", WHO)))
    return _ask(d.clause(PRESENT, kind, object=word, role="asked"), "object")


def _which_question(d: Draw) -> Plan:
    tense = d.pick(PRESENT)
    verb = d.pick(_verbs(tense, "thing"))
    thing = d.phrase(THINGS[verb])
    thing.determiner = HOW_MANY if thing.plural else WHICH
    return _ask(d.clause((tense,), verb=verb, object=thing, role="asked"), "object")


def _where_question(d: Draw) -> Plan:
    tense = d.pick(("habit", "now", "past", "modal"))
    verb = d.pick(_verbs(tense, "where"))
    word = ("where", "wohin" if verb.how & {"goes", "puts"} else "wo")
    return _ask(d.clause((tense,), verb=verb, place=word, time=NOTHING, role="asked"), "place")


def _when_question(d: Draw) -> Plan:
    tense, word = d.pick(lexicon.WHEN)
    return _ask(d.clause((tense,), "human", time=word, role="asked"), "time")


def _predicate(d: Draw) -> Plan:
    subject, negated = d.phrase(DESCRIBED, "plain"), d.uniform() < 0.2
    degrees = lexicon.DEGREES[:1] if negated else lexicon.DEGREES  # not very old, but hardly not quite old
    predicate = d.predicate(subject, d.pick(ADJECTIVES[subject.noun]), degrees)
    tense, mark = d.pick(("state", "state", "past")), ("", "nicht" if negated else "")
    return _say(Clause(subject, BE, tense, predicate=predicate, negated=negated, mark=mark))


def _this_is(d: Draw) -> Plan:
    adjective, nouns = d.pick(GENDERED)  # each adjective with each gender: the nominative is rare elsewhere
    phrase = d.phrase(nouns or adjective.nouns, "new")
    phrase.adjective = adjective
    d.combinations.append((adjective.de, phrase.noun.lemma))
    subject = THESE_ONES if phrase.plural else THIS_ONE
    c = Clause(subject, BE, "state", predicate=(phrase.english(NOM), phrase.german(NOM)))
    return _ask(c, "") if d.uniform() < 0.2 else _say(c)


def _comparison(d: Draw) -> Plan:
    adjective, choices = d.pick(COMPARED)
    noun, others = d.pick(choices)
    one, two = d.phrase([noun], "plain"), d.phrase(others, "plain")
    d.combinations += [(adjective.de, noun.lemma), (adjective.de, two.noun.lemma)]
    more = f"{adjective.en_comparative} than", f"{adjective.de_comparative} als"
    en, de = d.pick((more, (f"as {adjective.en} as", f"so {adjective.de} wie")))
    predicate = f"{en} {two.english(NOM)}", f"{de} {two.german(NOM)}"
    return _say(Clause(one, BE, "state", predicate=predicate))


def _again(person: Nominal) -> Pronoun:
    """Return the pronoun for somebody who was named before."""
    return person if isinstance(person, Pronoun) and person.light else (HE, SHE, HE, THEY)[person.gender]


def _consequence(d: Draw, person: Nominal, feeling: Adjective, conjunction: str) -> Clause:
    """Return what somebody does because of a feeling, or although there is one."""
    tense = d.pick(("habit", "modal") if conjunction == "if" else ("habit", "now", "modal"))
    verbs = _verbs(tense, "human") if conjunction == "although" else _consequences(tense, feeling)
    return d.clause((tense,), verb=d.pick(verbs), subject=person, brief=True)


def _reason(d: Draw) -> Plan:
    person, feeling, (en, de) = d.somebody("adult"), d.pick(FEELINGS), d.pick(lexicon.REASONS)
    main = _consequence(d, person, feeling, en)
    again = _again(person)
    reason = Clause(again, BE, "state", predicate=d.predicate(again, feeling), last=True)
    return _join(main, (f" {en}", f", {de}"), reason)


def _reason_first(d: Draw) -> Plan:
    person, feeling, (en, de) = d.somebody("adult"), d.pick(FEELINGS), d.pick(lexicon.CONDITIONS)
    main = _consequence(d, _again(person), feeling, en)
    main.front = ""
    reason = Clause(person, BE, "state", predicate=d.predicate(person, feeling), last=True)
    return f"{en} {{}}, {{}}.", f"{de} {{}}, {{}}.", [reason, main]


def _content(d: Draw) -> Plan:
    conjunction, verb, negated = d.pick(lexicon.CONTENTS)
    outer = d.clause(("state",), verb=verb, negated=negated)
    subject = d.somebody(other=outer.subject)
    inner = d.clause(("habit", "now", "now", "past", "perfect", "modal"), "human", subject=subject)
    inner.last = True
    return _join(outer, conjunction, inner)


def _two_people(d: Draw) -> Plan:
    one = d.clause(("now",), "human", brief=True)
    two = d.clause(("now",), "human", subject=d.somebody(other=one.subject), brief=True)
    conjunction, two.last = d.pick(lexicon.MEANWHILE)
    return _join(one, conjunction, two)


def _two_actions(d: Draw) -> Plan:
    tense = d.pick(("habit", "now", "perfect"))
    first, noun, then = d.pick(_actions(tense))
    thing = d.phrase([noun], "object")
    one = d.clause((tense,), verb=first, object=thing, brief=True)
    two = d.clause((tense,), verb=then, subject=one.subject, object=IT[thing.gender], brief=True)
    two.silent = True
    d.combinations.append((then.infinitive, noun.lemma))
    return _join(one, (" and", " und"), two)


def _reason_with_it(d: Draw) -> Plan:
    tense = d.pick(PRESENT)
    # In "puts the cup on the table because it is old", what is old? Such verbs are not "judged".
    verb = d.pick(_verbs(tense, "judged"))
    thing = d.phrase(THINGS[verb], "plain")
    main = d.clause((tense,), verb=verb, object=thing, negated=d.uniform() < 0.3, brief=True)
    en, de = d.pick(lexicon.REASONS)
    return _join(main, (f" {en}", f", {de}"), d.judgement(thing, again=True, last=True))


def _relative(d: Draw) -> Plan:
    kind, tense = d.pick(("human", "whom", "thing", "thing")), d.pick(PRESENT)
    verb = d.pick(_verbs(tense, kind))
    head = d.phrase(THINGS[verb] if kind == "thing" else PEOPLE, "plain")
    head.determiner = THE
    d.combinations.append((verb.infinitive, head.noun.lemma))
    pronoun = (RELATIVE_THAT if kind == "thing" else RELATIVE_WHO)[head.gender]
    if kind == "human":
        head.relative = d.clause((tense,), verb=verb, subject=pronoun, brief=True)
    else:
        head.relative = d.clause((tense,), verb=verb, object=pronoun, brief=True)
        head.relative.front = "object"
    head.relative.last = True
    tense = d.pick(("state", "habit", "now"))
    others = _verbs(tense, "unbracketed", head.noun)
    if not others or (other := d.pick(others)) is verb or d.uniform() < 0.5:
        return _say(d.judgement(head))
    return _say(d.clause((tense,), verb=other, subject=d.pick(PERSONAL), object=head, brief=True))


def _infinitive(d: Draw) -> Plan:
    outer = d.clause(("habit", "now", "past"), verb=d.pick(lexicon.ZU_VERBS), brief=True)
    outer.front = "time" if outer.tense == "past" else "subject"
    inner = d.clause(("infinitive",), "extended", subject=outer.subject, brief=True)
    inner.silent = True
    return "{} {}.", "{}, {}.", [outer, inner]


def _price(d: Draw) -> Plan:
    en, de = d.pick(lexicon.PRICES)
    amount = Pronoun((en, en), (de, de), 3, PLURAL, light=False)
    return _say(d.clause(("state",), verb=lexicon.COST, object=amount))


def _there_is(d: Draw) -> Plan:
    place, nouns = d.pick(lexicon.THERE_IS)
    where, thing = d.phrase(select(place), "place"), d.phrase(select(nouns), "owned")
    d.combinations.append((place, thing.noun.lemma))
    en, de = f"in {where.english(DAT)}", with_preposition("in", where, DAT)
    be = "are" if thing.plural else "is"
    if d.uniform() < 0.3:
        return f"{be} there {thing.english(ACC)} {en}?", f"gibt es {de} {thing.german(ACC)}?", []
    return f"{en} there {be} {thing.english(ACC)}.", f"{de} gibt es {thing.german(ACC)}.", []


PATTERNS: dict[str, tuple[int, Callable[[Draw], Plan]]] = {  # with their weights
    "statement": (12, lambda d: _say(d.clause(role="subject"))),
    "time first": (9, _time_first),
    "place first": (4, _place_first),
    "modal": (7, lambda d: _say(d.clause(("modal",)))),
    "perfect": (5, lambda d: _say(d.clause(("perfect",)))),
    "negation": (8, _negation),
    "yes-no question": (5, lambda d: _ask(d.clause(role="asked"), "")),
    "who question": (3, lambda d: _ask(d.clause(kind="human", subject=WHO), "subject")),
    "object question": (3, _object_question),
    "which question": (3, _which_question),
    "where question": (2, _where_question),
    "when question": (3, _when_question),
    "predicate": (4, _predicate),
    "this is": (5, _this_is),
    "comparison": (4, _comparison),
    "reason": (5, _reason),
    "reason first": (5, _reason_first),
    "content": (10, _content),
    "two people": (5, _two_people),
    "two actions": (4, _two_actions),
    "reason with it": (5, _reason_with_it),
    "relative": (8, _relative),
    "infinitive": (4, _infinitive),
    "price": (4, _price),
    "there is": (3, _there_is),
}
WHEEL = [draw for weight, draw in PATTERNS.values() for _ in range(weight)]
