"""The documentation: links and commands in it exist; pages are short and can be found."""

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
    broken = [
        f"{page.relative_to(ROOT)}: {path.name}#{anchor}"
        for page in pages()
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert broken == []


def test_pages_are_short() -> None:
    lengths = {
        str(page.relative_to(ROOT)): len(page.read_text("utf-8").splitlines()) for page in pages()
    }
    assert {page: length for page, length in lengths.items() if length > PAGE_LINES} == {}


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = {START}, [START]
    while waiting:
        found = {path for path, _ in links(waiting.pop()) if path.suffix == ".md"} - reached
        reached |= found
        waiting += found
    assert [page for page in pages() if page not in reached and page.parent != ROOT] == []


def test_pages_named_in_code_and_facts_exist() -> None:
    folders = ("torchmill", "tools", "build_configs", "benchmarks", "sample", ".github")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".yml"}
    ]
    named = {
        page
        for path in files
        for page in re.findall(r"\bdocs/[\w/.-]+\.md", path.read_text("utf-8"))
    }
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []


def commands(page: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield the task and the options of each `invoke TASK …` of a page."""
    text = page.read_text("utf-8")
    for match in re.finditer(r"(?:^|`|\$ )invoke ([a-z]+)([^`#|;\n]*)", text, flags=re.MULTILINE):
        yield match[1], set(re.findall(r"(?<!\S)--([a-z-]+)", match[2].partition(" -- ")[0]))


def test_pages_name_tasks_and_options_that_exist() -> None:
    options: dict[str, set[str]] = {}
    wrong = []
    for page in pages():
        for task, named in commands(page):
            if task not in options and task in TASK_LINES:
                arguments = task_options(task)
                options[task] = {name.replace("_", "-") for one in arguments for name in one.names}
            wrong += [f"{page.name}: invoke {task}"] if task not in options else []
            wrong += [
                f"{page.name}: invoke {task} --{name}" for name in named - options.get(task, named)
            ]
    assert wrong == []


def told_codes() -> dict[str, set[int]]:
    """Return the exit codes under which the reference lists each error code."""
    told: dict[str, set[int]] = {}
    for page in (DOCS / "reference").glob("error-codes*.md"):
        exits: set[int] = set()
        for line in page.read_text("utf-8").splitlines():
            if line.startswith("## "):
                spans = re.findall(r"(\d+)(?: to (\d+))?", line.partition(":")[0])
                exits = {
                    number
                    for first, last in spans
                    for number in range(int(first), int(last or first) + 1)
                }
            elif row := re.match(r"\| (`.*?) \|", line):
                own = {int(number) for number in re.findall(r"exit code (\d+)", line)}
                for code in re.findall(r"`([^`]+)`", row[1]):
                    told.setdefault(code, set()).update(exits | own)
    return told


def test_every_error_code_is_in_the_reference_with_its_exit_code_and_no_other() -> None:
    told = told_codes()
    exits = {name: one.exit_code for name, one in vars(errors).items() if hasattr(one, "exit_code")}
    exits |= {
        kind.__name__: as_torchmill_error(kind("", code="x")).exit_code
        for kind in vars(millpress_errors).values()
        if isinstance(kind, type) and issubclass(kind, millpress_errors.MillpressError)
    }
    files = [
        *(ROOT / "torchmill").rglob("*.py"),
        *(ROOT / "packages").glob("*/src/**/*.py"),
        *(ROOT / "tools").rglob("*.py"),
        ROOT / "noxfile.py",
        ROOT / "tasks.py",
    ]
    texts = [file.read_text("utf-8") for file in files]
    calls = [
        node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    ]
    raised = [
        (
            str(keyword.value.value),
            exits.get(call.func.id) if isinstance(call.func, ast.Name) else None,
        )
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    ]
    libraries = (ROOT / "torchmill" / "core" / "optional_libraries.toml").read_text("utf-8")
    texts.append(libraries)
    for library in tomllib.loads(libraries).values():
        raised.append((library["code"], errors.HostError.exit_code))
    assert len(raised) > 200
    wrong = {
        code: number
        for code, number in raised
        if code not in told or (number and number not in told[code])
    }
    assert wrong == {}
    unused = {code for code in told if not any(f'"{code}"' in text for text in texts)}
    assert unused == {"invalid-OPTION"}
