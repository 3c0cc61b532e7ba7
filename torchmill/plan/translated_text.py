"""Lines of logs in the English words of GCC, GNU ld, glibc, bash and make, whatever their language.

translations.toml has the messages, as the catalogues of these programs have them. Tools without
catalogues of their own here (clang, CMake and nvcc speak English only; Visual Studio's are in its
installation) are translated by `wordings` of log_words.toml.
"""

import re
from functools import cache
from typing import Any, NamedTuple

from torchmill.core.package_data import read_table_beside
from torchmill.plan.line_patterns import LinePattern, PatternIndex, bounded_pattern

_WORD = re.compile("[a-z]{3,}")

# A place in a message for a name or a number: "%qD", "%2$s", "%q#T", "%pT", "%<", "%>".
_DIRECTIVE = re.compile(r"%(?P<quote>[<>])|%(?:\d+\$)?(?P<kind>q?[#+]*p?[A-Za-z])")
# What a linker's message begins with: the program and the place, before a colon of any width.
_PREFIX = re.compile("^(?:%X|%F|(?:%P|%pB|%C|%H|%B)(?:: |\N{FULLWIDTH COLON}))+")
# Quotation marks of many languages, as escapes: linters take them for mistakes.
_OPEN_QUOTES = "'\"`\u2018\u201c\u201e\u201a\u00ab\u00bb\u300c\u300e"
_CLOSE_QUOTES = "'\"\u2019\u201d\u2018\u201c\u00ab\u00bb\u300d\u300f"
_FULL_COLON = "\N{FULLWIDTH COLON}"
_ANY_QUOTE = f"[{_OPEN_QUOTES}{_CLOSE_QUOTES}]"
# What GCC and others put around names in UTF-8 in English, too.
_USUAL = str.maketrans(dict.fromkeys("\u2018\u2019\u201c\u201d`\u2026", "'"))
_SHORTEST = 3  # characters of a message without its places


class _Translation(NamedTuple):
    """A pattern for a message in another language, and the message in English."""

    source: str  # of the pattern
    english: str


class _Translations(NamedTuple):
    """All translations, and what finds those that a line may have."""

    items: list[_Translation]
    by_literal: PatternIndex


@cache
def _catalogue() -> dict[str, Any]:
    """Return translations.toml. It is read when a log is, as every session imports this module."""
    return read_table_beside(__file__, "translations.toml")


@cache
def _ascii_words() -> frozenset[str]:
    """Return words of messages that have no other letters than English.

    A line of such letters without one of these is English.
    """
    return frozenset(_catalogue()["ascii_words"])


@cache
def _translations() -> _Translations:
    """Return the translations of translations.toml; longer messages go before shorter ones."""
    sources: dict[str, str] = {}  # pattern -> English
    for message, languages in _catalogue()["message"].items():
        english = _english_form(message)
        for text in languages.values():
            source = _pattern_source(text)
            if source:
                sources.setdefault(source, english)
    ordered = sorted(sources, key=len, reverse=True)
    items = [_Translation(source, sources[source]) for source in ordered]
    return _Translations(items, PatternIndex([LinePattern(source) for source in ordered]))


def _english_form(message: str) -> str:
    r"""Return an English message with "\1" for its first name: "'\1' does not name a type"."""
    text = _PREFIX.sub("", message.strip("\n"))
    places = 0

    def place(match: re.Match[str]) -> str:
        nonlocal places
        if match["quote"]:
            return "'"
        places += 1
        name = "\\1" if places == 1 else "…"
        return f"'{name}'" if match["kind"].startswith("q") else name

    return _DIRECTIVE.sub(place, text).replace("`", "'")


def _pattern_source(text: str) -> str:
    """Return the pattern of a message in another language; "" if it has hardly any words."""
    text = _PREFIX.sub("", text.strip("\n")).replace("\n", " ").lstrip()
    source = ""
    words = 0
    end = 0
    is_first = True
    for match in _DIRECTIVE.finditer(text):
        piece = text[end : match.start()]
        source += _literal(piece)
        words += len(piece.strip())
        end = match.end()
        if match["quote"]:
            source += f"{_ANY_QUOTE}*"
            continue
        is_quoted = match["kind"].startswith("q")
        name = f"[^{_CLOSE_QUOTES}]{{1,200}}" if is_quoted else r"\S{1,200}"
        group = f"({name}?)" if is_first else f"{name}?"
        source += f"{_ANY_QUOTE}*{group}{_ANY_QUOTE}*"
        is_first = False
    source += _literal(text[end:])
    words += len(text[end:].strip())
    return source if words >= _SHORTEST or not text.isascii() else ""


def _literal(text: str) -> str:
    """Return the pattern of a piece of a message: any quotes, any white space."""
    pieces: list[str] = []
    for character in text:
        if character in _OPEN_QUOTES + _CLOSE_QUOTES:
            pieces.append(f"{_ANY_QUOTE}*")
        elif character.isspace():
            pieces.append(r"\s*")
        elif character in f":{_FULL_COLON}":
            pieces.append(rf"\s*[:{_FULL_COLON}]")
        else:
            pieces.append(re.escape(character))
    return "".join(pieces)


def in_english(text: str) -> str:
    """Return a line with the words of its tools in English; a line in English as it is."""
    is_latin = text.isascii() or text.translate(_USUAL).isascii()
    if is_latin and _ascii_words().isdisjoint(_WORD.findall(text.lower())):
        return text
    translations = _translations()
    for number in translations.by_literal.candidates(text):
        translation = translations.items[number]
        pattern = _compile(translation.source)
        english = translation.english
        text = pattern.sub(english if pattern.groups else english.replace("\\1", ""), text)
    return text.replace(_FULL_COLON, ": ")


@cache
def _compile(source: str) -> re.Pattern[str]:
    """Return a pattern; few of all are ever needed."""
    return bounded_pattern(source)
