"""The laws of the house, read off the source: each checker is tried on a violation before it judges ours."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FUNCTION_LINES = 40
MODULE_LINES = 250
VAGUE = {"util", "utils", "helper", "helpers", "manager", "managers"}
ONLY_IN = {"nox": "noxfile", "invoke": "tasks"}

# Imports point down. A module that has no rank may be imported from anywhere, but carries what it imports
# itself: nothing reaches a room above its own by way of it.
RANKS = {
    "errors": 0,
    "model": 1,
    **dict.fromkeys(
        ("facts", "rules", "matrix", "lookup", "stale", "guard", "host", "capabilities", "diagnosis"), 2
    ),
    **dict.fromkeys(("demands", "cuda"), 2),
    "plan": 3,
    **dict.fromkeys(
        ("source", "toolchain", "toolkit", "pack", "verify", "deliver", "estimate", "overflow"), 4
    ),
    **dict.fromkeys(("upstream", "report", "housekeeping", "containers"), 4),
    "doctor": 5,
    "workshop": 6,
    **dict.fromkeys(("gating", "compiling", "preparing", "sharing"), 7),
    **dict.fromkeys(("stages", "making", "manifest", "pipeline", "gpu", "foreign"), 7),
    **dict.fromkeys(("noxfile", "tasks"), 8),
}
CHECKS = "verify.checks."  # scripts for the wheel's own interpreter, which has no suite

NOT_OF_ONE_MODULE = {
    "automation",
    "benchmarks",
    "end_to_end",
    "golden_plans",
    "house",
    "noxfile",
    "sample",
    "tasks",
}


def modules() -> dict[str, str]:
    """Return the text of each module by its name: `noxfile`, `source.git`; `source` for a package itself."""
    package = ROOT / "torchmill"
    files = {_name(path.relative_to(package)): path for path in package.rglob("*.py")}
    del files[""]  # torchmill/__init__.py is only a docstring
    files |= {name: ROOT / f"{name}.py" for name in ("noxfile", "tasks")}
    return {name: path.read_text("utf-8") for name, path in sorted(files.items())}


def _name(path: Path) -> str:
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def foreign(text: str) -> set[str]:
    """Return the first names of all modules that a text imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").partition(".")[0])
    return found


def ours(text: str, known: Mapping[str, object]) -> set[str]:
    """Return which of the known modules a text imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule.removeprefix("torchmill.") in known else str(node.module))
    return {name.removeprefix("torchmill.") for name in found} & known.keys()


def misplaced_tools(texts: Mapping[str, str]) -> Iterator[str]:
    """Name the modules that import nox or invoke and must not."""
    for name, text in texts.items():
        for tool in foreign(text) & ONLY_IN.keys():
            if name != ONLY_IN[tool]:
                yield f"{name} imports {tool}: only {ONLY_IN[tool]}.py does"


def oversized(name: str, text: str) -> Iterator[str]:
    """Name the functions, and the module, that are longer than the house allows."""
    lines = len(text.splitlines())
    if lines > MODULE_LINES:
        yield f"{name} has {lines} lines: at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name}.{node.name} has {length} lines: at most {FUNCTION_LINES}"


def rank(name: str) -> int | None:
    """Return how high a module stands; None where nothing is said of it."""
    return RANKS.get(name.partition(".")[0])


def upward(texts: Mapping[str, str]) -> Iterator[str]:
    """Name each way on which a module reaches one that stands above it."""
    graph = {name: ours(text, texts) for name, text in texts.items()}
    for start in graph:
        limit = rank(start)
        paths: list[tuple[str, ...]] = [(start,)]
        seen = {start}
        while limit is not None and paths:
            path = paths.pop()
            for name in graph[path[-1]] - seen:
                seen.add(name)
                paths.append((*path, name))
                height = rank(name)
                if height is not None and height > limit:
                    yield f"{' -> '.join(paths[-1])}: {name} stands above {start}"


def cycle(texts: Mapping[str, str]) -> list[str]:
    """Return the modules of one import cycle, or nothing."""
    try:
        TopologicalSorter({name: ours(text, texts) for name, text in texts.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def homeless(tests: list[str], names: Mapping[str, object]) -> list[str]:
    """Return the test files that belong to no module."""
    homes = {"test_" + home for home in NOT_OF_ONE_MODULE}
    for name in names:
        parts = name.split(".")
        homes |= {"test_" + parts[0], "test_" + parts[-1], "test_" + "_".join(parts)}
    return sorted(set(tests) - homes)


def test_nox_and_invoke_stay_in_their_file() -> None:
    assert list(misplaced_tools(modules())) == []


def test_misplaced_tools_are_found() -> None:
    texts = {
        "noxfile": "import nox",
        "plan": "def f():\n    from nox.sessions import Session",
        "tasks": "import nox",
    }
    assert [line.split(":")[0] for line in misplaced_tools(texts)] == [
        "plan imports nox",
        "tasks imports nox",
    ]


def test_nothing_is_oversized() -> None:
    assert [line for name, text in modules().items() for line in oversized(name, text)] == []


def test_oversized_functions_and_modules_are_found() -> None:
    fits = "def f():\n" + "    f()\n" * 39
    assert list(oversized("m", fits + "x = 0\n" * 210)) == []
    too_long = "async def f():\n" + "    f()\n" * 40
    assert [line.split(":")[0] for line in oversized("m", too_long + "x = 0\n" * 210)] == [
        "m has 251 lines",
        "m.f has 41 lines",
    ]


def test_names_say_what_is_inside() -> None:
    assert [name for name in modules() if VAGUE & set(name.split("."))] == []


def test_imports_point_one_way() -> None:
    texts = modules()
    assert list(upward(texts)) == []
    assert cycle(texts) == []


def test_imports_name_modules_in_full() -> None:
    assert [name for name, text in modules().items() if "." in foreign(text)] == []
    assert "." in foreign("from .model import Build")


@pytest.mark.parametrize(
    "statement",
    [
        "from torchmill import source",
        "import torchmill.source.git",
        "from torchmill.source import git",
        "from torchmill.source.git import clone",
        "def f():\n    from torchmill.source.git import clone",
    ],
)
def test_an_import_from_above_is_found(statement: str) -> None:
    texts = {"facts": "", "plan": statement, "source": "", "source.git": "import torchmill.plan"}
    assert len(list(upward(texts))) == 1


def test_an_import_from_above_is_found_behind_an_unranked_module() -> None:
    texts = {"matrix": "from torchmill import words", "words": "from torchmill import plan", "plan": ""}
    assert list(upward(texts)) == ["matrix -> words -> plan: plan stands above matrix"]


def test_a_cycle_is_found() -> None:
    texts = {"words": "import torchmill.tables", "tables": "from torchmill.words import X"}
    assert set(cycle(texts)) == {"words", "tables"}


def test_checks_stand_alone() -> None:
    texts = modules()
    dependent = [name for name in texts if name.startswith(CHECKS) and "torchmill" in foreign(texts[name])]
    assert dependent == []
    assert "torchmill" in foreign("def f():\n    from torchmill.model import Build")


def test_every_test_file_belongs_to_a_module() -> None:
    tests = [path.stem for path in (ROOT / "tests").rglob("test_*.py")]
    assert homeless(tests, modules()) == []


def test_a_test_file_of_no_module_is_found() -> None:
    names = {"plan": "", "source.git": ""}
    tests = ["test_plan", "test_git", "test_source", "test_source_git", "test_house", "test_misc"]
    assert homeless(tests, names) == ["test_misc"]
