"""Text of others cannot control a terminal or a workflow, also in the output of real commands."""

from pathlib import Path

import pytest

from tests.support.commands import run
from torchmill.core.plain_text import as_plain_text

CONTROLS = {
    "clipboard": "\x1b]52;c;aGk=\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\\\text",
    "c1": "\x9b31m",
    "bidi": "\u202egpj.exe",
    "isolate": "\u2066x",
    "no width": "a\u200bb",
    "return": "good\rbad",
    "backspace": "a\bb",
}


@pytest.mark.parametrize("name", CONTROLS)
def test_control_characters_are_replaced(name: str) -> None:
    text = as_plain_text(CONTROLS[name], {})
    assert "\ufffd" in text
    assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\u200b\r\b")


def test_tabs_newlines_and_letters_stay() -> None:
    assert as_plain_text("a\tb\r\nc: größer 没有\n", {}) == "a\tb\nc: größer 没有\n"


def test_only_colours_stay_and_only_on_request() -> None:
    assert as_plain_text("\x1b[31mfailure\x1b[0m", {}, colours=True) == "\x1b[31mfailure\x1b[0m"
    assert "\x1b" not in as_plain_text("\x1b[31mfailure\x1b[0m", {})
    assert "\x1b" not in as_plain_text("\x1b[2Jfailure", {}, colours=True)


@pytest.mark.parametrize(
    "line", ["::set-env name=A::b", "  ::add-path::/evil", "##[command]x", "::error::x"]
)
def test_a_workflow_gets_no_commands(line: str) -> None:
    text = as_plain_text(f"output:\n{line}\n", {"GITHUB_ACTIONS": "true"})
    assert not any(line.lstrip().startswith(("::", "##[")) for line in text.splitlines())
    assert as_plain_text(line, {}) == line


def test_a_diagnosis_quotes_a_log_as_text(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"a.cpp:1:2: error: {''.join(CONTROLS.values())}\n", encoding="utf-8")
    done = run("invoke", "diagnose", str(log), home=tmp_path / "home")
    assert "a.cpp:1" in done.stdout
    assert not set(done.stdout + done.stderr) & set("\x1b\x07\x9b\u202e\u2066\u200b\r\b")


def test_a_file_name_with_control_characters_is_shown_without_them(tmp_path: Path) -> None:
    done = run("invoke", "diagnose", "no\x1b]52;c;aGk=\x07such", home=tmp_path / "home")
    assert done.returncode == 2
    assert not set(done.stdout + done.stderr) & set("\x1b\x07")
