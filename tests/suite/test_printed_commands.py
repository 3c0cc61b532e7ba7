"""Commands that messages, facts and pages tell users to run: their tasks and options exist."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.suite.test_docs import pages
from tests.support.task_options import task_options
from torchmill.core.task_lines import TASK_LINES
from torchmill.deliver import products
from torchmill.plan.options import HELP

ROOT = Path(__file__).parents[2]
CODE = ("torchmill", "packages/millguard/src", "packages/millpress/src")
FACTS = ("build_configs", "torchmill", "sample/build_configs")
# Beside those with a help text of their own in `HELP`: of builds, of containers, of what wheels are made into.
NOX_OPTIONS = {
    "--network",
    "--no-guard",
    "--engine",
    "--image",
    products.BUILD_NUMBER_OPTION,
    products.LIBTORCH_OPTION,
    products.PUBLISHED_OPTION,
    products.TESTS_OPTION,
}
# A command is a whole text, or the part of one that stands in backquotes or after a prompt. Values
# that are put in when a message is made are "VALUE" here, so that the name of a task may be one.
_BEGIN = r"(?:\A|`|\$ |; |&& |\n\s*)(?:[A-Z_]+=\S* )*"
_INVOKE = re.compile(rf"{_BEGIN}invoke ([a-z]+)\b([^`#|;&\n]*)")
# Users add `-- --set …` to the command that they know.
_NOX = re.compile(rf"(?:{_BEGIN}nox -s \S+|`)(?: |(?<=`))-- ([^`#|;&\n]*)")
_LONG = re.compile(r"(?<!\S)--[a-z][a-z-]*")
_SHORT = re.compile(r"(?<!\S)-[a-zA-Z](?![\w-])")


def texts_of_code(file: Path) -> Iterator[str]:
    """Yield the texts in a module, those with values put in as one."""
    tree = ast.parse(file.read_text("utf-8"))
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = []
            for value in node.values:
                parts.add(id(value))
                words.append(str(value.value) if isinstance(value, ast.Constant) else "VALUE")
            yield "".join(words)
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            yield str(node.value)


def texts_of_facts(value: Any) -> Iterator[str]:
    """Yield the texts in the values of a TOML file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_of_facts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of_facts(item)


def texts() -> Iterator[tuple[str, str]]:
    """Yield what the suite may print and what its pages say, each with the file that has it."""
    for folder in CODE:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for text in texts_of_code(file):
                yield str(file.relative_to(ROOT)), text
    for folder in FACTS:
        for file in sorted((ROOT / folder).rglob("*.toml")):
            for text in texts_of_facts(tomllib.loads(file.read_text("utf-8"))):
                yield str(file.relative_to(ROOT)), text
    for page in pages():
        yield str(page.relative_to(ROOT)), page.read_text("utf-8")


@cache
def flags_of_task(task: str) -> frozenset[str]:
    """Return the options of a task as they are written: "--arch-list", "-t"."""
    flags = {"-h", "--help"}
    for argument in task_options(task):
        for name in argument.names:
            written = name.replace("_", "-")
            flags.add(f"--{written}" if len(written) > 1 else f"-{written}")
    return frozenset(flags)


def flags_in(words: str) -> set[str]:
    return {*_LONG.findall(words), *_SHORT.findall(words)}


def test_each_invoke_that_somebody_is_told_to_run_has_its_options() -> None:
    wrong = []
    count = 0
    for place, text in texts():
        for match in _INVOKE.finditer(text):
            task, words = match[1], match[2].partition(" -- ")[0]
            count += 1
            if task not in TASK_LINES:
                wrong.append(f"{place}: invoke {task}")
                continue
            unknown = flags_in(words) - flags_of_task(task)
            wrong += [f"{place}: invoke {task} {flag}" for flag in sorted(unknown)]
    assert count > 500
    assert wrong == []


def test_each_nox_that_somebody_is_told_to_run_has_its_options() -> None:
    flags = {f"--{name.strip('_').replace('_', '-')}" for name in HELP} | NOX_OPTIONS
    wrong = []
    count = 0
    for place, text in texts():
        for match in _NOX.finditer(text):
            count += 1
            words = match[1].partition("$(")[0]  # what stands there is of another program
            unknown = set(_LONG.findall(words)) - flags
            wrong += [f"{place}: nox -s … -- {flag}" for flag in sorted(unknown)]
    assert count > 300
    assert wrong == []
