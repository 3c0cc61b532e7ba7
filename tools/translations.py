"""Write what compilers, linkers and the C library say in other languages, out of their catalogues.

`python -m tools.translations FOLDER VERSION…` writes torchmill/plan/translations.toml. FOLDER is a
folder of locales (`/usr/share/locale`, or one that was unpacked from packages): each language has
its catalogues (https://www.gnu.org/software/gettext/manual/html_node/MO-Files.html) in
LC_MESSAGES/. VERSION names the packages that they are from: "gcc-12-locales 12.2.0-14".
"""

import argparse
import gettext
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.paths import CHECKOUT

_WORD = re.compile("[a-z]{3,}")
_QUOTES = str.maketrans(dict.fromkeys("\u2018\u2019\u201c\u201d\u201e\xab\xbb\xa0", " "))
FILE = CHECKOUT / "torchmill" / "plan" / "translations.toml"
# Catalogue -> the messages that causes of failures are recognized by.
MESSAGES: Mapping[str, tuple[str, ...]] = {
    "gcc-12": (
        "fatal error: ",
        "internal compiler error: ",
        "error: ",
        "warning: ",
        "note: ",
        "%qD was not declared in this scope",
        "%qE was not declared in this scope",
        "%qE does not name a type",
        "%qD is not a member of %qT",
        "%qD is not a member of %qD",
        "%<%D::%D%> is not a member of %qT",
        "%qT has no member named %qE",
        "%q#T has no member named %qE",
        "no matching function for call to %<%D(%A)%>",
        "%s signal terminated program %s",
        "unrecognized command-line option %qs",
        "unrecognized command-line option %<-%s%>",
    ),
    "ld": (
        "%X%P: %C: undefined reference to `%pT'\n",
        "%X%P: %pB: undefined reference to `%pT'\n",
        "%X%C: undefined reference to `%T'\n",
        "%P: cannot find %s\n",
        "%P: cannot find %s: %E\n",
    ),
    "libc": (
        "No such file or directory",
        "No space left on device",
        "Cannot allocate memory",
        "Permission denied",
        "Killed",
        "Segmentation fault",
        "Illegal instruction",
        "Bus error",
        "Disk quota exceeded",
        "Too many open files",
        "Read-only file system",
        "cannot open shared object file",
        "undefined symbol",
        "symbol lookup error",
    ),
    "bash": ("%s: command not found",),
    "make": ("%sNo rule to make target '%s', needed by '%s'%s", "%sNo rule to make target '%s'%s"),
}


def read_translations(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each message, a language, and the message in that language."""
    for language in sorted(path for path in folder.iterdir() if path.is_dir()):
        for catalogue, messages in MESSAGES.items():
            file = language / "LC_MESSAGES" / f"{catalogue}.mo"
            if language.name.startswith("en") or not file.is_file():
                continue
            with file.open("rb") as stream:
                translations = gettext.GNUTranslations(stream)
            for message in messages:
                text = translations.gettext(message)
                if text != message:
                    yield message, language.name, text


def write_translations(folder: Path, versions: list[str]) -> str:
    """Return the text of the file."""
    by_message: dict[str, dict[str, str]] = {}
    for message, language, text in read_translations(folder):
        by_message.setdefault(message, {})[language] = text
    words = sorted(_ascii_words(by_message))
    lines = [
        "# What compilers, linkers, shells and the C library say in other languages.",
        "#",
        "# Written by `python -m tools.translations` out of the catalogues that these packages of",
        f"# Debian ship: {', '.join(versions)}.",
        "# A message is keyed by its English form, as its catalogue has it; %… stands for a name.",
        "# `ascii_words` are the words of those with no other letters than English.",
        f"ascii_words = {json.dumps(words)}",
    ]
    for message, languages in by_message.items():
        lines += ["", f"[message.{json.dumps(message)}]"]
        for language, text in languages.items():
            lines.append(f"{json.dumps(language)} = {json.dumps(text, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _ascii_words(by_message: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the words of messages in other languages that have no other letters than English."""
    english = set(_WORD.findall(" ".join(by_message).lower())) | {"element", "accessible"}
    words: set[str] = set()
    for languages in by_message.values():
        for text in languages.values():
            if text.isascii() or text.translate(_QUOTES).isascii():
                words.update(_WORD.findall(text.lower()))
    return words - english


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    arguments = parser.parse_args()
    FILE.write_text(write_translations(arguments.folder, arguments.versions), encoding="utf-8")


if __name__ == "__main__":
    main()
