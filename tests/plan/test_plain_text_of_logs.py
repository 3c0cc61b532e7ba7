"""Logs in other languages, wrapped or with bars before their lines, are read like plain ones."""

import gettext
from pathlib import Path

import pytest

from torchmill.config import facts_reader
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import CHECKOUT
from torchmill.plan import causes, translated_text
from torchmill.plan.log_lines import plain_lines
from torchmill.plan.translated_text import in_english

CATALOGUE = facts_reader.read_facts(CHECKOUT / "build_configs").causes
MESSAGES = read_table_beside(translated_text.__file__, "translations.toml")["message"]
NO_FILE = "No such file or directory"
# The English line, and the messages of the catalogues that are in it.
ERRORS = {
    "a.cu:1:10: fatal error: cuda_runtime_api.h: No such file or directory": (
        "fatal error: ",
        NO_FILE,
    ),
    "a.cpp:3:1: error: 'uint32_t' does not name a type": ("error: ", "%qE does not name a type"),
    "a.cpp:3:1: error: 'AT_CHECK' was not declared in this scope": (
        "error: ",
        "%qD was not declared in this scope",
    ),
    "/usr/bin/ld: cannot find -lcudart": ("%P: cannot find %s\n",),
    "c++: fatal error: Killed signal terminated program cc1plus": (
        "fatal error: ",
        "%s signal terminated program %s",
    ),
    "bash: nvcc: command not found": ("%s: command not found",),
    "fatal error: error writing to /x.s: No space left on device": ("No space left on device",),
    "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory": (
        "cannot open shared object file",
    ),
}
LANGUAGES = ("de", "es", "fr", "ja", "ru", "sv", "uk", "zh_CN")


def cause_name(*lines: str) -> str | None:
    match = causes.diagnose(CATALOGUE, lines).match
    return match.cause.name if match else None


def translated(line: str, messages: tuple[str, ...], language: str) -> str:
    """Return a line as a tool of another language prints it; "" if it has no translation."""
    for message in messages:
        text = MESSAGES.get(message, {}).get(language)
        if text is None:
            return ""
        if message.endswith(": "):
            line = line.replace(message, text)
        elif message.startswith("%q"):
            english = message[3:]
            head, _, rest = line.partition(english)
            place, _, name = head.rpartition("'")[0].rpartition("'")
            line = place + text.replace("%qD", f"«{name}»").replace("%qE", f"«{name}»") + rest
        elif message == "%P: cannot find %s\n":
            line = "/usr/bin/ld: " + text.strip().replace("%P: ", "").replace("%s", "-lcudart")
        elif message == "%s signal terminated program %s":
            prefix = line.partition("Killed")[0]
            killed = MESSAGES["Killed"].get(language, "Killed")
            filled = text.replace("%1$s", killed).replace("%2$s", "cc1plus")
            line = prefix + filled.replace("%s", killed, 1).replace("%s", "cc1plus", 1)
        elif message == "%s: command not found":
            line = "bash: " + text.replace("%s", "nvcc")
        else:
            line = line.replace(message, text)
    return line


def test_eight_errors_in_eight_languages_have_the_causes_of_their_english_forms() -> None:
    tried: list[tuple[str, str, str]] = []
    failed: list[tuple[str, str, str]] = []
    for english, messages in ERRORS.items():
        name = cause_name(english)
        assert name is not None, english
        for language in LANGUAGES:
            line = translated(english, messages, language)
            if not line:
                continue  # the catalogue of this language lacks the message: the tool says English
            tried.append((english, language, line))
            if cause_name(line) != name:
                failed.append((english, language, line))
    assert len(tried) >= 50
    assert len(failed) <= 0.1 * len(tried), failed


@pytest.mark.parametrize("line", ERRORS)
def test_a_line_in_english_stays(line: str) -> None:
    assert in_english(line) == line
    quoted = line.replace("'", "\u2018", 1).replace("'", "\u2019", 1)
    assert in_english(quoted) == quoted


def test_the_catalogues_of_this_machine_agree_with_the_recorded_ones() -> None:
    file = Path("/usr/share/locale/de/LC_MESSAGES/libc.mo")
    if not file.is_file():
        assert MESSAGES[NO_FILE]["de"]
        return
    with file.open("rb") as stream:
        assert gettext.GNUTranslations(stream).gettext(NO_FILE) == MESSAGES[NO_FILE]["de"]


def test_the_bars_of_bitbake_are_taken_away() -> None:
    log = [
        "| DEBUG: Executing shell function do_compile",
        "| NOTE: make -j 8",
        "| a.cpp:3:1: error: 'uint32_t' does not name a type",
        "| make: *** [Makefile:2: a.o] Error 1",
    ]
    assert cause_name(*log) == "missing-cstdint"


def test_a_quoted_line_of_source_keeps_its_bar() -> None:
    lines = ["a.cpp:1:2: error: x", "  12 |   throw Killed;", "      |   ^~~~~", "| x"]
    assert [line.text for line in plain_lines(lines)] == lines


def test_lines_that_a_terminal_has_wrapped_are_joined() -> None:
    text = (
        "/home/user/project/src/kernels/interface.cpp:17:10: fatal error: cuda_runtime_api.h: "
        "No such file or directory while compiling the extension of this project"
    )
    lines = [text[start : start + 70] for start in range(0, len(text), 70)]
    lines += [line.replace("interface", "quadratic") for line in lines]
    joined = [line.text for line in plain_lines(lines)]
    assert joined[0] == text
    assert cause_name(*lines) == cause_name(text) is not None


def test_lines_of_the_same_length_are_not_joined_at_words() -> None:
    lines = [f"{number:3} {'word ' * 15}".ljust(79, "x") + ":" for number in range(20)]
    assert [line.text for line in plain_lines(lines)] == lines
