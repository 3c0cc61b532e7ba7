"""Commands in messages are those that work in the user's shell."""

import os
from pathlib import Path

import pytest

from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import (
    find_program,
    install_command,
    name_programs,
    record_programs,
    started_program,
)
from torchmill.core.task_lines import STAGES, TASK_LINES, list_tasks

INSTALLED = {"TORCHMILL_INVOKE": "torchmill", "TORCHMILL_NOX": "torchmill nox"}
UNACTIVATED = {"TORCHMILL_INVOKE": ".venv/bin/invoke", "TORCHMILL_NOX": "/a/venv/bin/python -m nox"}
COMMANDS = {
    "run `invoke fetch --tag v2.4.1` first": "run `torchmill fetch --tag v2.4.1` first",
    "invoke clean needs a filter": "torchmill clean needs a filter",
    "`invoke --list` shows the tasks, `invoke --help bisect` one": (
        "`torchmill --list` shows the tasks, `torchmill --help bisect` one"
    ),
    "nox -s wheel-3.10-cpu -- --jobs 2": "torchmill nox -s wheel-3.10-cpu -- --jobs 2",
    "TORCHMILL_TAG=v2.4.1 nox -s wheel-3.12-cpu": "TORCHMILL_TAG=v2.4.1 torchmill nox -s wheel-3.12-cpu",
    "`nox -l` lists them; nox -s gpu -- WHEEL": "`torchmill nox -l` lists them; torchmill nox -s gpu -- WHEEL",
    "nox -s wheel-3.10-cpu 2>&1 | invoke diagnose -": "torchmill nox -s wheel-3.10-cpu 2>&1 | torchmill diagnose -",
    '{"cure": "invoke toolkit --cuda 12.1"}': '{"cure": "torchmill toolkit --cuda 12.1"}',
    r'{"text": "to do:\ninvoke deps"}': r'{"text": "to do:\ntorchmill deps"}',
}
OTHERS = (
    "whoever runs `nox` or `invoke` in this folder runs them",
    "nox > Running session wheel-3.10-cpu",
    "the scripts invoke nvcc, and invoke planning",
    "/opt/venv/bin/python -m nox -s wheel-3.10-cpu",
    "/opt/venv/bin/nox -l",
    "docker run --rm --volume torchmill:/home builder:1 nox --list",
    "see pages/invoke build.md",
)


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_name_the_installed_program(text: str) -> None:
    assert as_plain_text(text, INSTALLED) == COMMANDS[text]
    assert as_plain_text(text, {}) == text


@pytest.mark.parametrize("text", OTHERS)
def test_text_that_is_no_command_of_torchmill_stays(text: str) -> None:
    assert name_programs(text, INSTALLED) == text


@pytest.mark.parametrize("environ", [INSTALLED, UNACTIVATED], ids=["installed", "unactivated"])
@pytest.mark.parametrize("text", [*COMMANDS, *OTHERS])
def test_a_rewritten_text_is_not_rewritten_again(text: str, environ: dict[str, str]) -> None:
    rewritten = name_programs(text, environ)
    assert name_programs(rewritten, environ) == rewritten


def program(folder: Path, name: str) -> Path:
    """Write a program of an environment."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_is_named_as_the_shell_finds_it(tmp_path: Path) -> None:
    python = program(tmp_path / ".venv" / "bin", "python")
    assert (
        find_program("nox", python, {"PATH": "", "PWD": str(tmp_path)}) == ".venv/bin/python -m nox"
    )
    script = program(python.parent, "nox")
    assert find_program("nox", python, {"PATH": str(script.parent)}) == "nox"
    assert find_program("nox", python, {"PATH": "", "PWD": str(tmp_path)}) == ".venv/bin/nox"
    assert find_program("nox", python, {"PATH": "", "PWD": "/"}) == str(script).lstrip("/")
    assert find_program("nox", python, {"PATH": ""}) == str(script)
    # The nox of another environment lacks the requirements of torchmill.
    other_folder = program(tmp_path / "others", "nox").parent
    assert find_program("nox", python, {"PATH": str(other_folder)}) == str(script)
    # A shim of pyenv starts the script.
    shims = program(tmp_path / "shims", "nox").parent
    assert find_program("nox", python, {"PATH": str(shims)}) == "nox"


def test_a_path_that_json_would_escape_is_not_named(tmp_path: Path) -> None:
    script = program(tmp_path / 'it\'s "here"', "nox")
    assert find_program("nox", script.parent / "python", {"PATH": ""}) == "nox"


def test_an_installed_program_is_named_as_it_was_started(tmp_path: Path) -> None:
    script = program(tmp_path / "tools" / "bin", "torchmill")
    python = script.with_name("python")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "torchmill"
    link.symlink_to(script)
    assert started_program(str(link), python, {"PATH": str(link.parent)}) == "torchmill"
    assert started_program(str(script), python, {"PATH": ""}) == str(script)
    assert (
        started_program(str(script), python, {"PATH": "", "PWD": str(tmp_path)})
        == "tools/bin/torchmill"
    )
    module = tmp_path / "torchmill_suite" / "__main__.py"
    assert started_program(str(module), python, {"PATH": ""}) == f"{python} -m torchmill_suite"


@pytest.mark.parametrize(
    ("pip", "path", "command"),
    [
        (True, "{bin}", "python -m pip install 'boto3>=1'"),
        (True, "", "{bin}/python -m pip install 'boto3>=1'"),
        (
            False,
            "",
            "{bin}/python -m uv pip install --python {bin}/python 'boto3>=1'",
        ),  # as `uv tool install` has it
    ],
)
def test_a_package_is_installed_into_the_running_environment(
    pip: bool, path: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path, "python")
    monkeypatch.setattr("torchmill.core.programs.has_pip", lambda: pip)
    actual = install_command(["boto3>=1"], python, {"PATH": path.format(bin=tmp_path)})
    assert actual == command.format(bin=tmp_path)


def test_the_first_record_of_programs_stays_in_child_processes() -> None:
    environ = {"PATH": os.environ["PATH"]}
    record_programs(environ, "torchmill")
    record_programs(environ)
    assert {name: environ[name] for name in INSTALLED} == INSTALLED


def test_the_list_of_tasks_has_a_line_for_each_by_stage() -> None:
    lines = list_tasks().splitlines()
    assert max(map(len, lines[1:])) <= 80
    titles = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert titles[: len(STAGES)] == [*STAGES]
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert names >= TASK_LINES.keys()
