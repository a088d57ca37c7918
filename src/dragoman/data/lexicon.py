"""The words of the built-in corpus: English and German, and what goes with what.

A row is one pair of words. Regular forms follow from rules, irregular ones are written out. What goes with what
is a *selection* of nouns: kinds ("food"), groups ("people"), German nouns ("Kuchen"), and nouns to leave out
("-Kind"). So a teacher reads poems and eats cake, and never the other way round.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

MASCULINE, FEMININE, NEUTER, PLURAL = range(4)  # to articles and endings the plural is a fourth gender
NOM, ACC, DAT = range(3)
COMPANY = (("with", "mit", DAT), ("for", "für", ACC))


@dataclass(frozen=True, eq=False)
class Noun:
    kind: str
    en: tuple[str, str]  # singular, plural; a mass noun has no plural in either language
    de: tuple[tuple[str, ...], tuple[str, ...]]  # [is plural][case]
    gender: int

    @property
    def lemma(self) -> str:
        return self.de[0][NOM]


class Adjective:
    """English and German: positive, comparative if there is one (or "more"), German stem if it differs."""

    def __init__(self, en: str, de: str, nouns: str, leads_to: str = ""):
        self.en, *comparative = en.split()
        self.de, *rest = de.split()
        self.en_comparative = f"more {self.en}" if comparative == ["more"] else "".join(comparative)
        self.de_comparative = rest[0] if comparative else ""
        self.stem = rest[-1] if len(rest) > len(comparative) else self.de
        self.nouns = select(nouns)
        self.leads_to = leads_to.split()  # what people do who feel like that
        self.gradable = bool(comparative or leads_to)


class Verb:
    """A verb in all its forms, with the subjects, objects and places that it makes sense with.

    English principal parts: base [past [participle]] [-s -ing], then a particle behind "+". German: infinitive
    [er] [participle], then "sein" if that is the auxiliary; "|" ends a separable prefix. `prep` is what stands
    before the object in English, and in German if it has two words. A verb with `gifts` gives them to people.

    How: "stative" verbs only have a simple present, without adverbs; "simple" ones are never progressive; an "event"
    happens to people, so it takes no modal either; "makes" its object; "owns" an indefinite one; "stays", "goes" and
    "puts" need a place, which may be a city with "cities"; it may be done "with" or "for" somebody; with "to" the
    receiver comes last: explains the rule to the child.
    """

    def __init__(
        self,
        en: str,
        de: str,
        objects: str = "",
        case: int = ACC,
        *,
        prep: str = "",
        gifts: str = "",
        by: str = "people",
        at: str = "",
        how: str = "",
    ):
        en, _, self.particle = en.partition(" +")
        self.english = _english_parts(*en.split())  # base, -s, -ing, past, participle
        infinitive, *parts = de.removesuffix(" sein").split()
        self.takes_sein = de.endswith(" sein")
        self.prefix, _, base = infinitive.rpartition("|")
        self.infinitive = self.prefix + base
        self.zu_infinitive = f"{self.prefix}zu{base}" if self.prefix else f"zu {base}"
        stem = base.removesuffix("n").removesuffix("e")
        link = "e" if re.search("([td]|[^aeiouäöühlmnr][mn])$", stem) else ""  # er öffnet, but er lernt
        er = parts[0] if len(parts) == 2 else stem + link + "t"
        du = re.sub("([sßz])st$", r"\1t", er.removesuffix("t") + "st")  # du sitzt
        ich = stem + "e" if er.endswith("t") else er  # ich mag
        self.present = (ich, du, er, base)  # ich, du, er, plural; without the prefix
        ge = "" if re.match("(be|er|ge|ver)|.*ieren$", base) else "ge"
        self.participle = parts[-1] if parts else self.prefix + ge + er
        self.case = DAT if gifts else case
        self.en_prep, _, self.de_prep = prep.partition(" ")
        self.objects, self.gifts = select("people" if gifts else objects), select(gifts)
        self.subjects, self.places = select(by), select(at)
        self.human = "people" in by.split()
        self.how = frozenset(how.split())
        self.needs_place = not self.how.isdisjoint({"stays", "goes", "puts"})
        self.company = next((c for c in COMPANY if c[0] in self.how), None)


def _english_parts(base: str, *parts: str) -> tuple[str, str, str, str, str]:
    soft = base[:-1] + "i" if re.search("[^aeiou]y$", base) else base  # cry, cries
    short = re.sub("([^e])e$", r"\1", base)  # live, living
    if re.fullmatch("[^aeiou]*[aeiou][^aeiouwxy]", base):  # sit, sitting
        short += base[-1]
    third = soft + ("es" if soft != base or re.search("(s|sh|ch|x|o)$", base) else "s")
    past = parts[0] if parts else (soft if soft != base else short) + "ed"
    participle = parts[1] if len(parts) > 1 else past
    third, ing = parts[2:] or (third, short + "ing")
    return base, third, ing, past, participle


GROUPS = {
    "people": "parent kin person",
    "beast": "pet animal",
    "meal": "food dish",
    "goods": "thing clothes vehicle furniture",
    "young": "Kind Junge Mädchen",
    "small": "Schlüssel Regenschirm Tasche Kamera Ball Hut Brief",
    "flat": "Buch Brief Zeitung Schlüssel Messer Kamera",
    "upright": "Flasche Tasse Glas Teller Lampe Koffer Kiste",
    "device": "Lampe Computer Kamera",
    "lid": "Fenster Tür Kiste Koffer Schrank",
    "seat": "Stuhl Sofa Bank Bett",
    "top": "Tisch Bett Sofa Stuhl Regal",
    "green": "Garten Park Wald",
    "room": "Küche Zimmer Büro Keller",
    "shop": "Supermarkt Markt Stadt",
}

# English singular and plural, German singular and plural, gender; "weak" for those like der Student, den Studenten.
_NOUNS = {
    "parent": "mother mothers Mutter Mütter f, father fathers Vater Väter m",
    "kin": """
        brother brothers Bruder Brüder m, sister sisters Schwester Schwestern f, son sons Sohn Söhne m,
        daughter daughters Tochter Töchter f, uncle uncles Onkel Onkel m, aunt aunts Tante Tanten f,
        grandmother grandmothers Großmutter Großmütter f, grandfather grandfathers Großvater Großväter m,
        neighbour neighbours Nachbar Nachbarn m weak, colleague colleagues Kollege Kollegen m weak,
        teacher teachers Lehrer Lehrer m, doctor doctors Arzt Ärzte m""",
    "person": """
        man men Mann Männer m, woman women Frau Frauen f, child children Kind Kinder n,
        boy boys Junge Jungen m weak, girl girls Mädchen Mädchen n, student students Student Studenten m weak,
        waiter waiters Kellner Kellner m, baker bakers Bäcker Bäcker m, farmer farmers Bauer Bauern m weak,
        policeman policemen Polizist Polizisten m weak, guest guests Gast Gäste m,
        tourist tourists Tourist Touristen m weak, artist artists Künstler Künstler m,
        nurse nurses Krankenschwester Krankenschwestern f,
        actress actresses Schauspielerin Schauspielerinnen f""",
    "pet": """
        dog dogs Hund Hunde m, cat cats Katze Katzen f, horse horses Pferd Pferde n, bird birds Vogel Vögel m""",
    "animal": """
        cow cows Kuh Kühe f, mouse mice Maus Mäuse f, bear bears Bär Bären m weak,
        lion lions Löwe Löwen m weak, elephant elephants Elefant Elefanten m weak""",
    "food": """
        apple apples Apfel Äpfel m, pear pears Birne Birnen f, egg eggs Ei Eier n, cake cakes Kuchen Kuchen m,
        potato potatoes Kartoffel Kartoffeln f, tomato tomatoes Tomate Tomaten f,
        sausage sausages Wurst Würste f, roll rolls Brötchen Brötchen n,
        strawberry strawberries Erdbeere Erdbeeren f""",
    "dish": """
        bread - Brot - n, cheese - Käse - m, meat - Fleisch - n, rice - Reis - m, soup - Suppe - f,
        chocolate - Schokolade - f""",
    "drink": """
        water - Wasser - n, milk - Milch - f, coffee - Kaffee - m, tea - Tee - m, beer - Bier - n,
        wine - Wein - m""",
    "text": """
        book books Buch Bücher n, newspaper newspapers Zeitung Zeitungen f, letter letters Brief Briefe m,
        story stories Geschichte Geschichten f, poem poems Gedicht Gedichte n, novel novels Roman Romane m,
        report reports Bericht Berichte m""",
    "art": "film films Film Filme m, song songs Lied Lieder n, concert concerts Konzert Konzerte n",
    "idea": """
        problem problems Problem Probleme n, question questions Frage Fragen f, task tasks Aufgabe Aufgaben f,
        word words Wort Wörter n, plan plans Plan Pläne m, rule rules Regel Regeln f,
        mistake mistakes Fehler Fehler m, joke jokes Witz Witze m""",
    "clothes": """
        coat coats Mantel Mäntel m, dress dresses Kleid Kleider n, shirt shirts Hemd Hemden n,
        hat hats Hut Hüte m, jacket jackets Jacke Jacken f, shoe shoes Schuh Schuhe m""",
    "vehicle": "car cars Auto Autos n, bicycle bicycles Fahrrad Fahrräder n, boat boats Boot Boote n",
    "transport": "bus buses Bus Busse m, train trains Zug Züge m, tram trams Straßenbahn Straßenbahnen f",
    "thing": """
        key keys Schlüssel Schlüssel m, bag bags Tasche Taschen f, cup cups Tasse Tassen f,
        glass glasses Glas Gläser n, plate plates Teller Teller m, bottle bottles Flasche Flaschen f,
        knife knives Messer Messer n, lamp lamps Lampe Lampen f, clock clocks Uhr Uhren f,
        picture pictures Bild Bilder n, umbrella umbrellas Regenschirm Regenschirme m,
        suitcase suitcases Koffer Koffer m, box boxes Kiste Kisten f, computer computers Computer Computer m,
        camera cameras Kamera Kameras f, ball balls Ball Bälle m, present presents Geschenk Geschenke n,
        flower flowers Blume Blumen f""",
    "furniture": """
        table tables Tisch Tische m, chair chairs Stuhl Stühle m, bed beds Bett Betten n,
        sofa sofas Sofa Sofas n, cupboard cupboards Schrank Schränke m, shelf shelves Regal Regale n,
        bench benches Bank Bänke f""",
    "fixture": "window windows Fenster Fenster n, door doors Tür Türen f, wall walls Wand Wände f",
    "outdoors": "tree trees Baum Bäume m",
    "home": """
        house houses Haus Häuser n, garden gardens Garten Gärten m, kitchen kitchens Küche Küchen f,
        room rooms Zimmer Zimmer n, office offices Büro Büros n, cellar cellars Keller Keller m""",
    "place": """
        school schools Schule Schulen f, city cities Stadt Städte f, village villages Dorf Dörfer n,
        park parks Park Parks m, forest forests Wald Wälder m,
        restaurant restaurants Restaurant Restaurants n, cinema cinemas Kino Kinos n,
        museum museums Museum Museen n, supermarket supermarkets Supermarkt Supermärkte m,
        hotel hotels Hotel Hotels n, library libraries Bibliothek Bibliotheken f,
        church churches Kirche Kirchen f, hospital hospitals Krankenhaus Krankenhäuser n,
        station stations Bahnhof Bahnhöfe m, airport airports Flughafen Flughäfen m, lake lakes See Seen m,
        beach beaches Strand Strände m, market markets Markt Märkte m""",
}


def _noun(kind: str, en: str, en_plural: str, de: str, plural: str, gender: str, weak: str = "") -> Noun:
    if plural == "-":
        return Noun(kind, (en, ""), ((de, de, de), ()), "mfn".index(gender))
    oblique = plural if weak else de  # der Student, den Studenten
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    forms = (de, oblique, oblique), (plural, plural, dative_plural)
    return Noun(kind, (en, en_plural), forms, "mfn".index(gender))


NOUNS = tuple(_noun(kind, *row.split()) for kind, rows in _NOUNS.items() for row in rows.split(","))


@cache
def select(selection: str) -> tuple[Noun, ...]:
    """Return the nouns of a selection, in the order of the table."""
    names = {name for word in selection.split() for name in GROUPS.get(word, word).split()}
    unknown = {name.lstrip("-") for name in names} - {n.kind for n in NOUNS} - {n.lemma for n in NOUNS}
    if unknown:
        raise ValueError(f"no such nouns: {', '.join(sorted(unknown))}")
    return tuple(n for n in NOUNS if (n.kind in names or n.lemma in names) and f"-{n.lemma}" not in names)


ADJECTIVES = (
    Adjective("big bigger", "groß größer", "beast home place furniture Koffer Kiste Ball Baum"),
    Adjective("small smaller", "klein kleiner", "beast home furniture Kind Tasche Kiste Dorf See Boot"),
    Adjective("old older", "alt älter", "people beast goods Haus Stadt -Kind -Junge -Mädchen -Sohn -Tochter"),
    Adjective("young younger", "jung jünger", "person beast Lehrer Arzt -Pferd -Kind -Junge -Mädchen"),
    Adjective("new", "neu", "goods Haus Büro Buch Film Roman Plan Lehrer Kollege Nachbar"),
    Adjective("beautiful more", "schön schöner", "clothes home Stadt Park Lied Bild Blume Pferd"),
    Adjective("ugly uglier", "hässlich hässlicher", "clothes furniture Bild Lampe Haus Hotel Auto"),
    Adjective("expensive more", "teuer teurer teur", "goods Hotel Restaurant Wein Käse"),
    Adjective("cheap cheaper", "billig billiger", "goods Hotel Restaurant Wein Käse"),
    Adjective("red", "rot", "clothes vehicle Apfel Tasche Blume Ball Stuhl Sofa Tür Lampe Wein"),
    Adjective("blue", "blau", "clothes vehicle Tasche Blume Ball Stuhl Sofa Tür Tasse Teller"),
    Adjective("green", "grün", "clothes vehicle Apfel Flasche Tür Stuhl Birne Tee Glas Ball"),
    Adjective("yellow", "gelb", "clothes vehicle Blume Birne Tasse Regenschirm Lampe Vogel"),
    Adjective("black", "schwarz", "clothes vehicle pet Tasche Koffer Kaffee Tee"),
    Adjective("white", "weiß", "clothes Katze Pferd Blume Tür Wand Haus Teller Schrank Wein"),
    Adjective("brown", "braun", "clothes Hund Pferd Kuh Bär Tisch Schrank Tasche Koffer Ei"),
    Adjective(
        "heavy heavier", "schwer schwerer", "Koffer Kiste Tasche Tisch Schrank Regal Computer Buch Geschenk"
    ),
    Adjective("long longer", "lang länger", "text Film Kleid Mantel Wort Messer -Zeitung"),
    Adjective("short shorter", "kurz kürzer", "text Film Kleid Wort Lied -Zeitung"),
    Adjective("interesting more", "interessant interessanter", "text art Frage Plan Museum"),
    Adjective("boring more", "langweilig langweiliger", "text art Museum Aufgabe"),
    Adjective("exciting more", "spannend spannender", "Buch Geschichte Roman Film Bericht Konzert"),
    Adjective("funny funnier", "lustig lustiger", "text art Witz Hut -Bericht -Konzert"),
    Adjective(
        "sad sadder",
        "traurig trauriger",
        "people Geschichte Gedicht Film Lied",
        "anrufen besuchen schreiben denken",
    ),
    Adjective("happy happier", "glücklich glücklicher", "people", "tanzen lachen einladen danken ausgehen"),
    Adjective("tired", "müde müd", "people pet", "schlafen einschlafen sitzen fernsehen"),
    Adjective("hungry", "hungrig", "people beast", "essen kochen backen bestellen schneiden"),
    Adjective("thirsty", "durstig", "people pet", "trinken"),
    Adjective("sick", "krank", "people pet Kuh", "anrufen schlafen fernsehen lesen"),
    Adjective("nervous more", "nervös nervöser", "people", "nachdenken fragen aufräumen anrufen"),
    Adjective("angry angrier", "wütend wütender", "people", "schreiben antworten wegwerfen schließen"),
    Adjective("friendly friendlier", "freundlich freundlicher", "people Hund"),
    Adjective("polite more", "höflich höflicher", "people"),
    Adjective("clever cleverer", "klug klüger", "people Hund Frage"),
    Adjective("lazy lazier", "faul fauler", "people Katze Hund Pferd"),
    Adjective("strong stronger", "stark stärker", "Mann Frau Junge Mädchen Bauer Pferd Bär Löwe Kaffee Bier"),
    Adjective("famous more", "berühmt berühmter", "art Buch Roman Künstler Schauspielerin Arzt Bild"),
    Adjective("rich richer", "reich reicher", "Mann Frau Onkel Tante Bauer Nachbar Tourist Stadt"),
    Adjective("poor poorer", "arm ärmer", "Mann Frau Kind Mädchen Bauer Künstler Student Dorf"),
    Adjective("curious more", "neugierig neugieriger", "people Katze Vogel Maus"),
    Adjective("brave braver", "mutig mutiger", "people Hund Maus"),
    Adjective("fast faster", "schnell schneller", "vehicle transport Pferd Hund Computer"),
    Adjective("slow slower", "langsam langsamer", "vehicle transport Computer Kellner"),
    Adjective("dangerous more", "gefährlich gefährlicher", "Bär Löwe Elefant Plan Messer Boot"),
    Adjective("modern more", "modern moderner", "home furniture Museum Stadt Lampe Schule"),
    Adjective("warm warmer", "warm wärmer", "Mantel Jacke Kleid Tee Milch Brot Zimmer Haus Suppe Küche"),
    Adjective("cold colder", "kalt kälter", "drink Suppe Zimmer Keller Haus See Fleisch"),
    Adjective("hot hotter", "heiß heißer", "Suppe Kaffee Tee Milch Wasser Wurst Kartoffel Brötchen"),
    Adjective("fresh fresher", "frisch frischer", "meal Milch Wasser Blume -Schokolade -Reis -Suppe"),
    Adjective("sweet sweeter", "süß süßer", "Apfel Birne Kuchen Erdbeere Tee Wein"),
    Adjective("sour more", "sauer saurer saur", "Apfel Erdbeere Milch Wein"),
    Adjective("delicious", "lecker", "meal"),
    Adjective("ripe riper", "reif reifer", "Apfel Käse Birne Tomate Erdbeere"),
    Adjective("dirty dirtier", "schmutzig schmutziger", "clothes vehicle Glas Tasse Teller Messer Fenster"),
    Adjective("clean cleaner", "sauber sauberer", "clothes Glas Tasse Teller Fenster Küche Zimmer Strand"),
    Adjective("empty", "leer", "Flasche Glas Tasse Koffer Kiste Zimmer Haus Bus Zug Kino Schrank"),
    Adjective("broken", "kaputt", "device vehicle Uhr Stuhl Fenster Regenschirm Tasse"),
    Adjective("important more", "wichtig wichtiger", "idea Brief Buch Bericht -Witz"),
    Adjective("difficult more", "schwierig schwieriger", "Problem Frage Aufgabe Wort Regel Lied"),
    Adjective("simple simpler", "einfach einfacher", "Problem Frage Aufgabe Wort Regel Lied Plan Witz"),
    Adjective("dark darker", "dunkel dunkler dunkl", "Zimmer Keller Wald Küche Haus Bier Brot Mantel"),
    Adjective("high higher", "hoch höher hoh", "Wand Fenster Schrank Regal Tisch Bett"),
    Adjective("comfortable more", "bequem bequemer", "seat Schuh Mantel Jacke"),
)

VERBS = (
    # Without object.
    Verb("sleep slept", "schlafen schläft geschlafen", by="people pet", at="Garten Zimmer Hotel"),
    Verb("work", "arbeiten", at="Büro Garten Krankenhaus Museum Restaurant Hotel Bibliothek", how="with"),
    Verb("dance", "tanzen", at="Küche Garten Park Hotel", how="with"),
    Verb("get got +up", "auf|stehen aufgestanden sein"),
    Verb("fall fell fallen +asleep", "ein|schlafen schläft eingeschlafen sein", at="Kino"),
    Verb("go went gone +out", "aus|gehen ausgegangen sein", how="with"),
    Verb("go went gone +shopping", "ein|kaufen", at="shop", how="with"),
    Verb("watch +television", "fern|sehen sieht ferngesehen", at="Küche Zimmer", how="with"),
    Verb("arrive", "an|kommen angekommen sein", by="transport", at="Bahnhof"),
    Verb("leave left", "ab|fahren fährt abgefahren sein", by="transport"),
    # With a place: where, or where to.
    Verb("live", "wohnen", at="Dorf Stadt Hotel", how="stative stays cities"),
    Verb("swim swam swum", "schwimmen geschwommen sein", by="people Hund", at="See", how="stays with"),
    Verb("sit sat", "sitzen gesessen", by="people Katze Hund", at="Stuhl Sofa Bank Baum", how="stays"),
    Verb("stand stood", "stehen gestanden", by="people Pferd", at="Tür Fenster Haus Baum", how="stays"),
    Verb("lie lay lain lies lying", "liegen gelegen", by="flat Hund Katze", at="top", how="stays"),
    Verb("go went gone", "gehen gegangen sein", at="home place Arzt -Haus -Dorf -Flughafen", how="goes with"),
    Verb("drive drove driven", "fahren fährt gefahren sein", at="shop Flughafen See", how="goes cities with"),
    Verb("run ran run", "laufen läuft gelaufen sein", by="people pet -Vogel", at="green Schule", how="goes"),
    Verb("travel travelled travelled travels travelling", "reisen sein", how="goes cities with"),
    Verb("fly flew flown", "fliegen geflogen sein", how="goes cities with"),
    Verb("jump", "springen gesprungen sein", by="young Katze Hund", at="top", how="goes"),
    Verb("put put", "stellen", "upright", at="Tisch Regal Schrank Tür Fenster Bett", how="puts"),
    Verb("lay laid", "legen", "flat Hemd", at="top Schrank Tasche Koffer", how="puts"),
    Verb("hang hung", "hängen", "Bild Uhr Mantel Kleid Jacke Lampe", at="Wand", how="puts"),
    # With an accusative object.
    Verb("eat ate eaten", "essen isst gegessen", "meal", at="Küche Garten Restaurant", how="with"),
    Verb("drink drank drunk", "trinken getrunken", "drink", at="Küche Garten Hotel Büro", how="with"),
    Verb(
        "buy bought",
        "kaufen",
        "meal drink goods Buch Zeitung Haus Pferd -Schlüssel",
        at="Markt Stadt",
        how="for",
    ),
    Verb("sell sold", "verkaufen", "food furniture vehicle Brot Käse Blume Haus Kuh", at="Markt Dorf"),
    Verb("order", "bestellen", "meal drink Buch Computer -Ei -Reis", at="Restaurant Hotel", how="for"),
    Verb("cook", "kochen", "Suppe Kartoffel Ei Reis Fleisch", at="Küche", how="makes for"),
    Verb("bake", "backen gebacken", "Kuchen Brot Brötchen", at="Küche", how="makes for"),
    Verb("cut cut", "schneiden geschnitten", "Brot Käse Fleisch Tomate Kuchen Apfel Wurst", at="Küche"),
    Verb("read read", "lesen liest gelesen", "text", at="room Garten Park Bibliothek -Keller"),
    Verb(
        "write wrote written", "schreiben geschrieben", "text Lied Wort -Zeitung", at="Büro", how="makes for"
    ),
    Verb("see saw seen", "sehen sieht gesehen", "people beast Film Auto", at="green Stadt", how="simple"),
    Verb("visit", "besuchen", "people Museum Stadt Dorf Kirche Schule", how="with"),
    Verb("meet met", "treffen trifft getroffen", "people", at="Bahnhof Park Restaurant Stadt"),
    Verb("ask", "fragen", "people"),
    Verb("know knew known", "kennen gekannt", "people art Roman Stadt Museum Regel Wort", how="stative"),
    Verb("love", "lieben", "parent kin pet Mann Frau Kind Stadt Wald Schokolade Garten", how="stative"),
    Verb("need", "brauchen", "goods Arzt Brot Milch Wasser", how="stative"),
    Verb("have had had has having", "haben hat gehabt", "pet goods idea Haus Garten", how="stative owns"),
    Verb("like", "mögen mag gemocht", "people pet meal drink art Stadt Park", how="stative"),
    Verb("understand understood", "verstehen verstanden", "people idea Gedicht", how="simple"),
    Verb("learn", "lernen", "Wort Regel Gedicht Lied", at="Schule Bibliothek Zimmer", how="with"),
    Verb("forget forgot forgotten forgets forgetting", "vergessen vergisst vergessen", "small", how="event"),
    Verb("lose lost", "verlieren verloren", "small", at="Park Stadt Wald Kino", how="event"),
    Verb("find found", "finden gefunden", "small Fehler Katze Hund", at="Garten Park Keller", how="simple"),
    Verb("look", "suchen", "people small Buch Katze Hund", prep="for", at="Garten Park Keller Haus"),
    Verb("wear wore worn", "tragen trägt getragen", "clothes"),
    Verb("wash", "waschen wäscht gewaschen", "Auto Apfel Tomate Hemd Kleid Hund", at="Garten"),
    Verb("clean", "putzen", "Fenster Küche Schuh Zimmer Tür Fahrrad"),
    Verb("repair", "reparieren", "vehicle device Uhr Stuhl Tisch Fenster Tür", at="Garten Keller", how="for"),
    Verb("build built", "bauen", "Haus Boot Tisch Regal Schrank Bett", how="makes for"),
    Verb("paint", "malen", "pet Bild Blume Baum See", at="green", how="makes for"),
    Verb("watch", "beobachten", "person beast", at="green"),
    Verb("feed fed", "füttern", "beast", at="Garten"),
    Verb("open", "öffnen", "lid Flasche Brief Geschenk"),
    Verb("close", "schließen geschlossen", "lid Buch"),
    Verb("take took taken", "nehmen nimmt genommen", "transport Schlüssel Tasche Apfel Brötchen"),
    # With an accusative object and a separable prefix.
    Verb("call", "an|rufen angerufen", "people"),
    Verb("pick +up", "ab|holen", "people Koffer Brief Geschenk", at="Bahnhof Flughafen Schule Hotel"),
    Verb("invite", "ein|laden lädt eingeladen", "people"),
    Verb("tidy +up", "auf|räumen", "room Schrank"),
    Verb("put put +on", "an|ziehen angezogen", "clothes -Hut"),
    Verb("take took taken +off", "aus|ziehen ausgezogen", "clothes -Hut"),
    Verb("switch +on", "ein|schalten", "device"),
    Verb("switch +off", "aus|schalten", "device"),
    Verb("throw threw thrown +away", "weg|werfen wirft weggeworfen", "Flasche Brief Zeitung Schuh Blume"),
    Verb("pack", "ein|packen", "clothes Buch Kamera Geschenk", how="for"),
    # With a dative object.
    Verb("help", "helfen hilft geholfen", "people", DAT, at="Küche Garten Büro"),
    Verb("thank", "danken", "people", DAT),
    Verb("answer", "antworten", "people", DAT),
    Verb("follow", "folgen sein", "people", DAT, by="people Hund Katze"),
    Verb("trust", "vertrauen", "people Hund", DAT, how="stative"),
    Verb("listen", "zu|hören", "people", DAT, prep="to"),
    Verb("belong", "gehören", "people", DAT, prep="to", by="thing clothes vehicle Haus Hund", how="stative"),
    # With a preposition.
    Verb("wait", "warten", "people Bus Zug Brief", prep="for auf", at="Bahnhof Hotel Tür"),
    Verb("think thought", "denken gedacht", "people Konzert", prep="of an"),
    Verb("think thought", "nach|denken nachgedacht", "Problem Frage Plan Fehler", prep="about über"),
    Verb("laugh", "lachen", "Witz Geschichte Film Fehler Hut", prep="about über"),
    Verb("talk", "sprechen spricht gesprochen", "people", DAT, prep="to mit", at="room Garten Park"),
    Verb("play", "spielen", "pet young Ball", DAT, prep="with mit", by="people Hund Katze", at="green"),
    Verb("dream", "träumen", "Haus Strand Pferd Auto Boot", DAT, prep="of von"),
    # With somebody who receives (dative) what is given (accusative).
    Verb("give gave given", "geben gibt gegeben", gifts="thing food Buch Brief Wasser Milch Brot"),
    Verb("show showed shown", "zeigen", gifts="thing clothes home Brief Film Stadt Fehler"),
    Verb("send sent", "schicken", gifts="Brief Geschenk Blume Buch Bericht Bild"),
    Verb("bring brought", "bringen gebracht", gifts="drink Suppe Blume Geschenk Teller Stuhl"),
    Verb("lend lent", "leihen geliehen", gifts="vehicle Buch Regenschirm Koffer Kamera Jacke"),
    Verb("tell told", "erzählen", gifts="Geschichte Witz"),
    Verb("explain", "erklären", gifts="Regel Aufgabe Wort Problem Plan Gedicht", how="to"),
    Verb("recommend", "empfehlen empfiehlt empfohlen", gifts="text art Hotel", how="to simple"),
)
BE = Verb("be was been is being", "sein ist gewesen sein")  # the grammar spells out its present and past
COST = Verb("cost cost", "kosten", by="clothes thing -Schlüssel", how="stative")
ZU_VERBS = (  # … to open the door
    Verb("try", "versuchen"),
    Verb("begin began begun begins beginning", "beginnen begonnen"),
    Verb("plan", "planen"),
)
KNOW = Verb("know knew known", "wissen weiß gewusst")
THAT, WHETHER = (" that", ", dass"), (" whether", ", ob")
CONTENTS = (  # … that the child is asleep; is the verb negated?
    (THAT, KNOW, False),
    (THAT, Verb("say said", "sagen"), False),
    (THAT, Verb("believe", "glauben"), False),
    (THAT, Verb("hope", "hoffen"), False),
    (WHETHER, KNOW, True),
    (WHETHER, Verb("ask", "fragen"), False),
)


class Modal(NamedTuple):
    """A modal verb. English has operators (for I, you, he, they) and a link, or else a plain and an -s form."""

    operators: list[str]
    en: str
    en_third: str
    de: list[str]


def _modal(operators: str, en: str, en_third: str, de: str) -> Modal:
    return Modal(operators.split(), en, en_third, de.split())


MODALS = (  # the first suits animals and machines, too
    _modal("will will will will", "", "", "werde wirst wird werden"),
    _modal("can can can can", "", "", "kann kannst kann können"),
    _modal("should should should should", "", "", "soll sollst soll sollen"),
    _modal("am are is are", "allowed to", "", "darf darfst darf dürfen"),
    _modal("would would would would", "like to", "", "möchte möchtest möchte möchten"),
    _modal("", "want to", "wants to", "will willst will wollen"),
    _modal("", "have to", "has to", "muss musst muss müssen"),
)

# Where something is. The German case depends on the verb: dative if it is there, accusative if it is put there.
WHERE = (
    ("in", "in", "home place Schrank Tasche Koffer -Bahnhof -Flughafen -Strand -Markt"),
    ("on", "auf", "top Bank"),
    ("at", "an", "Bahnhof Flughafen Fenster"),
    ("on", "an", "Strand Wand"),
    ("at", "auf", "Markt"),
    ("under", "unter", "Tisch Bett Baum"),
    ("behind", "hinter", "Tür Sofa Haus Baum"),
    ("next to", "neben", "Tisch Bett Sofa Tür Schrank Fenster"),
    ("in front of", "vor", "Haus Tür Fenster Schule Kirche"),
)
WHERE_TO = (  # where somebody goes; the first that fits
    ("to", "zu", DAT, "people Bahnhof Flughafen Markt Supermarkt See Strand Schule Kirche Krankenhaus"),
    ("onto", "auf", ACC, "top"),
    ("into", "in", ACC, "home place"),
)
# What there is in a place.
THERE_IS = (
    ("Stadt", "Park Restaurant Kino Museum Supermarkt Hotel Bibliothek Kirche Krankenhaus Bahnhof"),
    ("Dorf", "Schule Restaurant Kirche Supermarkt Bahnhof See"),
    ("Garten", "Baum Blume Bank Vogel"),
    ("Park", "Baum See Bank Restaurant Vogel"),
    ("Küche", "Tisch Stuhl Schrank Fenster Maus Lampe"),
    ("Zimmer", "Bett Sofa Tisch Stuhl Regal Lampe Uhr"),
)
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
}

# English subject and object, German nominative, accusative and dative, person, gender.
PRONOUNS = (
    ("I me", "ich mich mir", 0, MASCULINE),
    ("you you", "du dich dir", 1, MASCULINE),
    ("we us", "wir uns uns", 3, PLURAL),
    ("who who", "wer wen wem", 2, MASCULINE),
    ("what what", "was was was", 2, NEUTER),
    ("this this", "das das dem", 2, NEUTER),
    ("these these", "das das dem", 3, NEUTER),
)
THIRD_PERSON = ("er ihn ihm", "sie sie ihr", "es es ihm", "sie sie ihnen")  # by gender
RELATIVE = ("der den dem", "die die der", "das das dem", "die die denen")
NAMES = dict.fromkeys(("Peter", "Martin", "Paul", "David"), MASCULINE)
NAMES |= dict.fromkeys(("Anna", "Maria", "Julia", "Laura"), FEMININE)
THINGS = "meal drink goods text art idea fixture"
PLURALS = {"parent": 0.0, "kin": 0.1, "transport": 0.0, "home": 0.0, "place": 0.0}  # chances, if unusual

Pair = tuple[str, str]  # the same in English and in German


def _pairs(text: str) -> list[Pair]:
    return [(en, de) for en, _, de in (row.strip().partition("=") for row in text.split(","))]


def numbers(wanted: Iterable[int]) -> list[Pair]:
    """Return each of the numbers, from 2 to 99, in words and in digits: twenty-one, einundzwanzig."""
    return [pair for n in wanted for pair in (_number(n), (str(n), str(n)))]


def _number(n: int) -> Pair:
    if n < 20:
        return _ONES[n - 1]
    (tens_en, tens_de), (en, de) = _TENS[n // 10 - 2], _ONES[n % 10 - 1]
    if n % 10 == 0:
        return tens_en, tens_de
    return f"{tens_en}-{en}", f"{'ein' if n % 10 == 1 else de}und{tens_de}"


_ONES = _pairs(
    "one=eins, two=zwei, three=drei, four=vier, five=fünf, six=sechs, seven=sieben, eight=acht, nine=neun, ten=zehn,"
    "eleven=elf, twelve=zwölf, thirteen=dreizehn, fourteen=vierzehn, fifteen=fünfzehn, sixteen=sechzehn,"
    "seventeen=siebzehn, eighteen=achtzehn, nineteen=neunzehn"
)
_TENS = _pairs(
    "twenty=zwanzig, thirty=dreißig, forty=vierzig, fifty=fünfzig,"
    "sixty=sechzig, seventy=siebzig, eighty=achtzig, ninety=neunzig"
)

POSSESSIVES = _pairs("my=mein, your=dein, his=sein, her=ihr, our=unser, their=ihr")
CITIES = _pairs("Berlin=Berlin, Munich=München, Vienna=Wien, Cologne=Köln, Zurich=Zürich")
WEEKDAYS = _pairs("Monday=Montag, Tuesday=Dienstag, Wednesday=Mittwoch, Friday=Freitag, Saturday=Samstag")
PRICES = [(f"{en} euros", f"{de} Euro") for en, de in numbers(range(2, 50))]
CLOCK = [(f"at {en} o'clock", f"um {de} Uhr") for en, de in numbers(range(6, 13))]
# By tense. Present and past share none: "they put it there on Monday" would have two translations.
TIMES = {
    "now": _pairs("now=jetzt, today=heute, at the moment=im Moment"),
    "habit": _pairs(
        "every day=jeden Tag, every week=jede Woche, in the morning=am Morgen, in the evening=am Abend,"
        "at the weekend=am Wochenende, in summer=im Sommer, in winter=im Winter"
    )
    + CLOCK[:4],
    "past": _pairs(
        "yesterday=gestern, yesterday evening=gestern Abend, last week=letzte Woche, last year=letztes Jahr,"
        "last Monday=letzten Montag, two days ago=vor zwei Tagen"
    ),
    "modal": _pairs("today=heute, tomorrow=morgen, soon=bald, next week=nächste Woche")
    + [(f"on {en}", f"am {de}") for en, de in WEEKDAYS]
    + CLOCK,
}
OFTEN = _pairs("often=oft, always=immer, sometimes=manchmal, rarely=selten, never=nie")
ALREADY = _pairs("already=schon, just=gerade, never=noch nie")
WHEN = (  # a tense and its question
    ("past", ("when", "wann")),
    ("modal", ("when", "wann")),
    ("habit", ("how often", "wie oft")),
    ("now", ("why", "warum")),
    ("past", ("why", "warum")),
)
# What one does with a thing first, and what then.
FIRST = "kaufen finden nehmen bestellen"
THEN = (
    "essen trinken schneiden kochen lesen waschen putzen reparieren öffnen schließen stellen legen hängen "
    "verkaufen tragen anziehen einschalten wegwerfen einpacken"
)
DEGREES = _pairs("very=sehr, really=wirklich, quite=ziemlich")
REASONS = _pairs("because=weil, although=obwohl")
MEANWHILE = (((" while", ", während"), True), ((", but", ", aber"), False), ((" and", " und"), False))
CONDITIONS = _pairs("if=wenn, because=weil, although=obwohl")
