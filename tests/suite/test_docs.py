"""Tests of the documentation: links, commands and error codes in it exist, and pages are short and can be found."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from millpress import errors as millpress_errors

from tests.support.task_options import task_options
from torchmill.core import errors
from torchmill.core.exits import as_torchmill_error
from torchmill.core.task_lines import TASK_LINES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE_LINES = 200
START = DOCS / "index.md"


def pages() -> list[Path]:
    """Return the pages of the documentation, and the two at the root that readers come to first."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each relative link of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for path, anchor in links(page):
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {path.name}#{anchor}")
    assert broken == []


def test_pages_are_short() -> None:
    too_long = {}
    for page in pages():
        length = len(page.read_text("utf-8").splitlines())
        if length > PAGE_LINES:
            too_long[str(page.relative_to(ROOT))] = length
    assert too_long == {}


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = {START}, [START]
    while waiting:
        linked = {path for path, _ in links(waiting.pop()) if path.suffix == ".md"}
        waiting += linked - reached
        reached |= linked
    assert [page for page in pages() if page not in reached and page.parent != ROOT] == []


def test_pages_named_in_code_and_facts_exist() -> None:
    folders = ("torchmill", "tools", "build_configs", "benchmarks", "sample", ".github")
    missing = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".toml", ".yml"}:
                for page in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text("utf-8")):
                    if not (ROOT / page).is_file():
                        missing.append(f"{path.relative_to(ROOT)}: {page}")
    assert missing == []


def commands(page: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the task and the options of each `invoke TASK …` of a page."""
    text = page.read_text("utf-8")
    for match in re.finditer(r"(?:^|`|\$ )invoke ([a-z]+)([^`#|;\n]*)", text, flags=re.MULTILINE):
        yield match[1], set(re.findall(r"(?<!\S)--([a-z-]+)", match[2].partition(" -- ")[0]))


def test_pages_name_tasks_and_options_that_exist() -> None:
    options: dict[str, set[str]] = {}
    wrong = []
    for page in pages():
        for task, names in commands(page):
            if task not in TASK_LINES:
                wrong.append(f"{page.name}: invoke {task}")
                continue
            if task not in options:
                options[task] = set()
                for argument in task_options(task):
                    options[task].update(name.replace("_", "-") for name in argument.names)
            wrong += [f"{page.name}: invoke {task} --{name}" for name in names - options[task]]
    assert wrong == []


def documented_codes() -> dict[str, set[int]]:
    """Return the exit codes under which the reference lists each error code.

    A heading names the exit code of a section, or several: "## 2 to 4: …". A row may add one: "exit code 7".
    """
    documented: dict[str, set[int]] = {}
    for page in (DOCS / "reference").glob("error-codes*.md"):
        section: set[int] = set()
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("## "):
                section = set()
                for first, last in re.findall(r"(\d+)(?: to (\d+))?", line.partition(":")[0]):
                    section.update(range(int(first), int(last or first) + 1))
            elif row := re.match(r"\| (`.*?) \|", line):
                added = {int(number) for number in re.findall(r"exit code (\d+)", line)}
                for code in re.findall(r"`([^`]+)`", row[1]):
                    documented.setdefault(code, set()).update(section | added)
    return documented


def exit_codes_of_errors() -> dict[str, int]:
    """Return the exit code of each class of errors, also of millpress's, which commands translate."""
    exit_codes = {}
    for name, value in vars(errors).items():
        if hasattr(value, "exit_code"):
            exit_codes[name] = value.exit_code
    for kind in vars(millpress_errors).values():
        if isinstance(kind, type) and issubclass(kind, millpress_errors.MillpressError):
            exit_codes[kind.__name__] = as_torchmill_error(kind("", code="x")).exit_code
    return exit_codes


def raised_codes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the error code and the class of each call with `code="…"`; "" if the class has no plain name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            for keyword in node.keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), name


def test_every_error_code_is_in_the_reference_with_its_exit_code_and_no_other() -> None:
    documented = documented_codes()
    exit_codes = exit_codes_of_errors()
    files = [
        *(ROOT / "torchmill").rglob("*.py"),
        *(ROOT / "packages").glob("*/src/**/*.py"),
        *(ROOT / "tools").rglob("*.py"),
        ROOT / "noxfile.py",
        ROOT / "tasks.py",
    ]
    texts = [file.read_text("utf-8") for file in files]
    raised: list[tuple[str, int | None]] = []
    for text in texts:
        if "code=" in text:  # to parse all of them takes a second
            raised += [(code, exit_codes.get(name)) for code, name in raised_codes(text)]
    libraries = (ROOT / "torchmill" / "core" / "optional_libraries.toml").read_text("utf-8")
    texts.append(libraries)
    for library in tomllib.loads(libraries).values():
        raised.append((library["code"], errors.HostError.exit_code))
    assert len(raised) > 200
    wrong = {}
    for code, number in raised:
        if code not in documented or (number and number not in documented[code]):
            wrong[code] = number
    assert wrong == {}
    unused = {code for code in documented if not any(f'"{code}"' in text for text in texts)}
    assert unused == {"invalid-OPTION"}
