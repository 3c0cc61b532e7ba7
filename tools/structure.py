"""Print figures of the package's structure: `python tools/structure.py`, with --json for programs.

The docstring of each function says what its figure counts. tests/suite/test_architecture.py compares
the figures with the limits in docs/architecture.md.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "torchmill"
# Programs for a wheel's own Python, the sessions check-* and speed-*, and the command `torchmill`.
BESIDE = ("checks", "tools/proof", "torchmill_suite")
SCRIPTS = ("consumers",)  # folders of programs that other interpreters run
# Jobs that somebody may want to follow, by the modules in which they start.
SESSION = {"cell.pipeline"}
SNIPPET = {"commands.snippet"}
LOAD_SNIPPET = "import torchmill.commands.snippet"
VAGUE_NAMES = {
    "asked",
    "found",
    "given",
    "kept",
    "made",
    "of",
    "one",
    "said",
    "shown",
    "told",
    "wanted",
}

Modules = Mapping[str, Path]
Graph = Mapping[str, set[str]]


def find_modules(folder: Path, scripts: tuple[str, ...] = SCRIPTS) -> dict[str, Path]:
    """Return the modules below a package's folder, by their names in the package: "cell.pipeline".

    A package itself ("cell") stands for its __init__.py; the topmost one is "".
    """
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if set(parts).isdisjoint(scripts):
            files[".".join(parts)] = path
    return files


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def imported_modules(tree: ast.AST, modules: Modules, package: str = PACKAGE) -> set[str]:
    """Return which of the package's modules a tree imports, also inside of functions."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    prefix = f"{package}."
    imported = set()
    for name in names:
        if name.startswith(prefix):
            imported.add(_module_of(name.removeprefix(prefix), modules))
    return imported - {""}


def _module_of(name: str, modules: Modules) -> str:
    """Return the module of a name such as "core.files.read_text", or ""."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def import_graph(modules: Modules, package: str = PACKAGE) -> dict[str, set[str]]:
    """Return which modules each module imports, also inside of functions."""
    graph = {}
    for name, path in modules.items():
        graph[name] = imported_modules(parse(path), modules, package) - {name}
    return graph


def find_cycle(graph: Graph) -> list[str]:
    """Return the modules of one cycle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _length(chain: tuple[str, ...]) -> int:
    return len(chain)


def longest_chain(graph: Graph) -> list[str]:
    """Return the longest chain of modules in which each imports the next.

    The graph must have no cycle.
    """

    @cache
    def chain_from(name: str) -> tuple[str, ...]:
        longest: tuple[str, ...] = ()
        for chain in map(chain_from, sorted(graph[name])):
            longest = max(longest, chain, key=_length)
        return (name, *longest)

    longest: tuple[str, ...] = ()
    for name in sorted(graph):
        longest = max(longest, chain_from(name), key=_length)
    return list(longest)


def files_to_follow(graph: Graph, starts: set[str], room: str) -> set[str]:
    """Return the modules that a reader opens to follow a job.

    These are the modules in which it starts, those of its room that they reach, and whatever the
    starting modules import directly elsewhere. `core` and `config`, which everything uses, do not
    count.
    """
    followed = set(starts)
    queue = list(starts)
    while queue:
        for name in graph.get(queue.pop(), set()):
            if name.startswith(f"{room}.") and name not in followed:
                followed.add(name)
                queue.append(name)
    for start in starts:
        for name in graph.get(start, set()):
            if not name.startswith(("core.", "config.")):
                followed.add(name)
    return {name for name in followed if "." in name}


def public_classes(modules: Modules) -> Counter[str]:
    """Count the modules that define a public class of each name."""
    counts: Counter[str] = Counter()
    for path in modules.values():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                counts[node.name] += 1
    return counts


def vague_functions(modules: Modules) -> list[str]:
    """Return the functions and methods whose name says neither what they do nor what they return."""
    functions = []
    for module, path in modules.items():
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name in VAGUE_NAMES:
                functions.append(f"{module}.{node.name}")
    return functions


def prose_matches(folder: Path) -> int:
    """Count the arguments `match=` in tests: each binds a test to the words of a message."""
    count = 0
    for path in folder.rglob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.keyword) and node.arg == "match":
                count += 1
    return count


def loaded_modules(statement: str) -> int:
    """Count the package's modules that a fresh interpreter has loaded after a statement."""
    code = f"""
import sys
{statement}
print(sum(name.startswith('{PACKAGE}.') for name in sys.modules))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(result.stdout.split()[-1])


def count_lines(folder: Path) -> int:
    """Count the lines of all Python files below a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def measure(root: Path = ROOT) -> dict[str, int]:
    """Return every figure of the table in docs/architecture.md, by its name there."""
    package = root / PACKAGE
    modules = find_modules(package)
    graph = import_graph(modules)
    meanings = public_classes(modules).values()
    return {
        "lines of the package": count_lines(package),
        "lines beside it that users run": sum(count_lines(root / folder) for folder in BESIDE),
        "modules": len(find_modules(package, scripts=())),
        "loose modules at its top": len(list(package.glob("*.py"))) - 1,  # but __init__.py
        "longest chain of imports": len(longest_chain(graph)),
        "files to follow a wheel's session": len(files_to_follow(graph, SESSION, "cell")),
        "files to follow `invoke snippet`": len(files_to_follow(graph, SNIPPET, "deliver.snippet")),
        "modules loaded by `invoke snippet`": loaded_modules(LOAD_SNIPPET),
        "class names with several meanings": sum(number > 1 for number in meanings),
        "functions with a vague name": len(vague_functions(modules)),
        "tests that match prose": prose_matches(root / "tests"),
    }


def lines_by_wing(root: Path = ROOT) -> Iterator[tuple[str, int, int]]:
    """Yield each wing with its number of modules and of lines."""
    for path in sorted((root / PACKAGE).iterdir()):
        if (path / "__init__.py").exists():
            yield path.name, len(list(path.rglob("*.py"))), count_lines(path)


def main() -> None:
    """Print the figures, and how large each wing is."""
    figures = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures, indent=1))
        return
    for name, figure in figures.items():
        print(f"{figure:7,}  {name}")
    for wing, count, lines in lines_by_wing():
        print(f"{lines:7,}  lines in {count} modules of {wing}/")
    chain = longest_chain(import_graph(find_modules(ROOT / PACKAGE)))
    print(f"chain: {' > '.join(chain)}")


if __name__ == "__main__":
    main()
