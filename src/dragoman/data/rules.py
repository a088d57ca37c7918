"""Which training pairs to drop: each rule is a function of one normalised pair, by name."""

from collections.abc import Callable

from dragoman.config import Filter

RATIO_EXEMPT_WORDS = 10  # "Thanks." may well be "Vielen herzlichen Dank an Sie alle."


def is_empty(src: str, tgt: str, settings: Filter) -> bool:
    """One side says nothing."""
    return not src or not tgt


def is_lopsided(src: str, tgt: str, settings: Filter) -> bool:
    """One side has many times the words of the other, and at least ten.

    Words are what spaces part: for a language written without them, raise ``max_ratio``.
    """
    fewer, more = sorted((src.count(" ") + 1, tgt.count(" ") + 1))
    return more >= RATIO_EXEMPT_WORDS and more > settings.max_ratio * fewer


def is_identical(src: str, tgt: str, settings: Filter) -> bool:
    """The translation is the sentence itself."""
    return settings.identical and src == tgt


# Filters that look at the normalised text of one pair, in the order they are applied; True drops it. Two more
# need other knowledge and come after: "duplicate" (all pairs before) and "too_long" (the vocabulary).
FILTERS: dict[str, Callable[[str, str, Filter], bool]] = {
    "empty": is_empty,
    "ratio": is_lopsided,
    "identical": is_identical,
}
DUPLICATE, TOO_LONG = "duplicate", "too_long"
FILTER_NAMES = (*FILTERS, DUPLICATE, TOO_LONG)
