"""Names of languages, and which one a text is in."""

import threading
from collections.abc import Collection
from typing import TypedDict

from py3langid.langid import MODEL_FILE, LanguageIdentifier

NAMES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer",
    "kn": "Kannada", "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lo": "Lao",
    "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål", "ne": "Nepali", "nl": "Dutch",
    "nn": "Norwegian Nynorsk", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "xh": "Xhosa",
    "yi": "Yiddish", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip
LOOKED_AT = 2000  # characters: enough to know, and no more work for a long text


class Detection(TypedDict):
    confidence: float  # percent
    language: str


def base(code: str) -> str:
    """Return the language of a code that may also name a country or a script."""
    return code.replace("_", "-").partition("-")[0].lower()


def name(code: str) -> str:
    """Return the English name of a language, or the code itself where we know none."""
    plain = NAMES.get(base(code))
    if plain is None:
        return code
    return plain if base(code) == code else f"{plain} ({code})"


class Detector:
    """Knows a hundred languages, and answers only with those that were asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def detect(self, text: str, among: Collection[str]) -> list[Detection]:
        """Return the languages of ``among``, the likeliest first, at least one.

        The confidence is the probability among all that we know: a text in a language that is not asked for gets
        a low one.
        """
        with self._lock:
            found: dict[str, float] = dict(self._identifier.rank(text[:LOOKED_AT]))
        known = {base(code): round(100 * found.get(base(code), 0.0), 1) for code in among}
        ranked = sorted(among, key=lambda code: -known[base(code)])
        return [Detection(confidence=known[base(code)], language=code) for code in ranked]
