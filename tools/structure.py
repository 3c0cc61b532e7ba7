"""Print the figures of the package's structure: `python tools/structure.py`, with --json for programs.

What each figure counts stands in the docstring of the function that takes it.
tests/suite/test_architecture.py holds them to the limits in docs/architecture.md.
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
BESIDE = ("checks", "tools/proof", "tools/installed")
SCRIPTS = ("consumers",)  # folders of programs that other interpreters run: no modules of ours
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

    A package itself ("build") stands for its __init__.py; the topmost one is "".
    """
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if not set(parts) & set(scripts):
            files[".".join(parts)] = path
    return files


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def imported_modules(tree: ast.AST, modules: Modules, package: str = PACKAGE) -> set[str]:
    """Return which of the package's modules a tree imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = (name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}."))
    return {module for name in ours if (module := _module_of(name, modules))}


def _module_of(name: str, modules: Modules) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def import_graph(modules: Modules, package: str = PACKAGE) -> dict[str, set[str]]:
    """Return which modules each module imports, also inside of functions."""
    return {
        name: imported_modules(parse(path), modules, package) - {name}
        for name, path in modules.items()
    }


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
    """Return the longest chain of modules in which each imports the next; the graph must have no cycle."""

    @cache
    def below(name: str) -> tuple[str, ...]:
        longest: tuple[str, ...] = ()
        for chain in map(below, sorted(graph[name])):
            longest = max(longest, chain, key=_length)
        return (name, *longest)

    longest: tuple[str, ...] = ()
    for name in sorted(graph):
        longest = max(longest, below(name), key=_length)
    return list(longest)


def files_to_follow(graph: Graph, starts: set[str], room: str) -> set[str]:
    """Return the modules that somebody opens who follows a job.

    These are the modules it starts in, those of its room that they reach, and whatever the starting modules
    call directly elsewhere; `core` and `config`, in which everything is written, do not count.
    """
    seen, queue = set(starts), list(starts)
    while queue:
        inside = {
            name for name in graph.get(queue.pop(), set()) if name.startswith(f"{room}.")
        } - seen
        seen |= inside
        queue.extend(inside)
    direct = {
        name
        for start in starts
        for name in graph.get(start, set())
        if not name.startswith(("core.", "config."))
    }
    return {name for name in seen | direct if "." in name}


def public_classes(modules: Modules) -> Counter[str]:
    """Count the modules that define a public class of each name."""
    nodes = (node for path in modules.values() for node in parse(path).body)
    return Counter(
        node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )


def vague_functions(modules: Modules) -> list[str]:
    """Return the functions and methods whose name says neither what is done nor what is returned."""
    return [
        f"{name}.{node.name}"
        for name, path in modules.items()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in VAGUE_NAMES
    ]


def prose_matches(folder: Path) -> int:
    """Count the arguments `match=` in tests: each binds a test to the words of a message."""
    nodes = (node for path in folder.rglob("*.py") for node in ast.walk(parse(path)))
    return sum(isinstance(node, ast.keyword) and node.arg == "match" for node in nodes)


def loaded_modules(statement: str) -> int:
    """Count our modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(sum(name.startswith('{PACKAGE}.') for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def count_lines(folder: Path) -> int:
    """Count the lines of all Python files below a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def measure(root: Path = ROOT) -> dict[str, int]:
    """Return every figure of docs/architecture.md's table, by its name there."""
    modules = find_modules(root / PACKAGE)
    everything = find_modules(root / PACKAGE, scripts=())
    graph = import_graph(modules)
    return {
        "lines of the package": count_lines(root / PACKAGE),
        "lines beside it that users run": sum(count_lines(root / folder) for folder in BESIDE),
        "modules": len(everything),
        "loose modules at its top": len(list((root / PACKAGE).glob("*.py"))) - 1,
        "longest chain of imports": len(longest_chain(graph)),
        "files to follow a wheel's session": len(files_to_follow(graph, SESSION, "build")),
        "files to follow `invoke snippet`": len(files_to_follow(graph, SNIPPET, "deliver.snippet")),
        "modules loaded by `invoke snippet`": loaded_modules(LOAD_SNIPPET),
        "class names with several meanings": sum(n > 1 for n in public_classes(modules).values()),
        "functions with a vague name": len(vague_functions(modules)),
        "tests that match prose": prose_matches(root / "tests"),
    }


def lines_by_wing(root: Path = ROOT) -> Iterator[tuple[str, int, int]]:
    """Yield each wing with its number of modules and of lines."""
    for wing in sorted(
        path for path in (root / PACKAGE).iterdir() if (path / "__init__.py").exists()
    ):
        files = list(wing.rglob("*.py"))
        yield wing.name, len(files), count_lines(wing)


SESSION = {"cell.pipeline"}
SNIPPET = {"commands.snippet"}
LOAD_SNIPPET = "import torchmill.commands.snippet"


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
    print("chain: " + " > ".join(longest_chain(import_graph(find_modules(ROOT / PACKAGE)))))


if __name__ == "__main__":
    main()
