"""The laws of the house, read off its source: each checker is tried on a violation before it judges ours."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools import effects, structure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FUNCTION_LINES = 80  # below its signature and docstring
VAGUE_MODULES = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}
# Functions with effects that decisions may call, and why they must.
EFFECTS_OF_DECISIONS = {
    "core.package_data.read_table_beside": "the file is a part of the package, as its code",
    "core.package_data.read_text_beside": "the file is a part of the package, as its code",
    "core.paths.locate_page": "a message names a page so that it opens from the current folder",
    "core.plain_text.as_plain_text": "argparse prints the help of options, as this shell needs it",
    "core.programs.name_programs": "the help of options names the programs that this shell has",
}
ONLY_IN = {"nox": {"noxfile"}, "invoke": {"tasks", "commands.command_line"}}


def read_wings(text: str) -> list[str]:
    """Return the wings of the page's first table, from the topmost down; each imports only from below it."""
    return re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)


def read_limits(text: str) -> dict[str, int]:
    """Return the limits of the page's table of figures, by the figure's name."""
    rows = re.findall(r"^\| ([^|]+?) \| at most ([\d,]+) \|", text, flags=re.MULTILINE)
    return {name: int(limit.replace(",", "")) for name, limit in rows}


def upward(graph: structure.Graph, wings: list[str]) -> Iterator[str]:
    """Name each import of a module that stands in a higher wing than the one that imports it."""
    for name, imports in graph.items():
        wing = name.partition(".")[0]
        for other in imports:
            target = other.partition(".")[0]
            if wing and wings.index(target) < wings.index(wing):
                yield f"{name} imports {other}: {target}/ stands above {wing}/"


def oversized(name: str, text: str) -> Iterator[str]:
    """Name the functions that cannot be read in one look."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
            length = (node.end_lineno or node.lineno) - body[0].lineno + 1
            if length > FUNCTION_LINES:
                yield f"{name}.{node.name} has {length} lines: at most {FUNCTION_LINES}"


@functools.cache
def foreign(text: str) -> frozenset[str]:
    """Return the first names of all modules that a text imports; "." for a relative import."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else (node.module or "").partition(".")[0])
    return frozenset(names)


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    return structure.find_modules(ROOT / structure.PACKAGE)


@pytest.fixture(scope="module")
def graph(modules: dict[str, Path]) -> structure.Graph:
    return structure.import_graph(modules)


@pytest.fixture(scope="module")
def texts(modules: dict[str, Path]) -> dict[str, str]:
    files = modules | {name: ROOT / f"{name}.py" for name in ("noxfile", "tasks")}
    return {name: path.read_text("utf-8") for name, path in files.items()}


def test_the_page_names_every_wing(modules: dict[str, Path]) -> None:
    wings = read_wings(PAGE.read_text("utf-8"))
    assert sorted(wings) == sorted({name.partition(".")[0] for name in modules if name})


def test_imports_point_down(graph: structure.Graph) -> None:
    assert list(upward(graph, read_wings(PAGE.read_text("utf-8")))) == []


def test_an_import_that_points_up_is_found() -> None:
    wings = read_wings("| wing | law |\n| `build/` | … |\n| `plan/` | … |\n")
    graph = {"plan.a": {"build.b"}, "build.b": {"plan.c"}, "plan.c": {"plan.a"}}
    assert list(upward(graph, wings)) == ["plan.a imports build.b: build/ stands above plan/"]


def test_imports_form_no_cycle(graph: structure.Graph) -> None:
    assert structure.find_cycle(graph) == []
    assert set(structure.find_cycle({"a": {"b"}, "b": {"a"}, "c": set()})) == {"a", "b"}


def test_decisions_have_no_effects() -> None:
    allowed = {f"{structure.PACKAGE}.{name}" for name in EFFECTS_OF_DECISIONS}
    assert effects.effects_of_wing("plan", allowed) == {}
    assert allowed <= effects.effects_of_wing("core", ()).keys(), "an exception is not needed"


def test_an_effect_is_found_through_calls() -> None:
    texts = {
        "p.low": (
            "import os\nfrom pathlib import Path\n"
            "def exists(path): return os.path.exists(path)\n"
            "def join(path): return os.fspath(path) + os.sep\n"
            "def read(path, environ=os.environ): return environ\n"
            "class Reader:\n"
            "    def __init__(self, path): self.text = path.read_text()\n"
        ),
        "p.plan": (
            "from p import low\nfrom p.low import Reader, exists\n"
            "def decide(path): return low.join(path)\n"
            "def ask(path): return _ask(path)\n"
            "def _ask(path):\n    return [place for place in path if exists(place)]\n"
            "def parse(path): return Reader(path)\n"
            "def pick(paths): return sorted(paths, key=low.read)\n"
            "TABLE = low.read('x')\n"
        ),
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    causes = effects.find_effects(trees, ())
    assert {name: cause for name, cause in causes.items() if name.startswith("p.plan.")} == {
        "p.plan._ask": "p.low.exists",
        "p.plan.ask": "p.plan._ask",
        "p.plan.parse": "p.low.Reader",
        "p.plan.pick": "p.low.read",
        "p.plan.<module>": "p.low.read",
    }
    assert (
        effects.find_effects(trees, {"p.low.exists", "p.low.read", "p.low.Reader.__init__"}) == {}
    )


def test_figures_stay_within_their_limits() -> None:
    limits, figures = read_limits(PAGE.read_text("utf-8")), structure.measure()
    assert limits
    assert {name: figures[name] for name, limit in limits.items() if figures[name] > limit} == {}


def test_commands_stand_at_the_top() -> None:
    """So nobody but noxfile.py and tasks.py can import one."""
    assert read_wings(PAGE.read_text("utf-8"))[0] == "commands"


def test_nox_and_invoke_stay_in_their_files(texts: dict[str, str]) -> None:
    misplaced = [
        f"{name} imports {tool}"
        for name, text in texts.items()
        for tool in foreign(text) & ONLY_IN.keys()
        if name not in ONLY_IN[tool]
    ]
    assert misplaced == []
    assert foreign("def f():\n    from nox.sessions import Session") == {"nox"}


def test_functions_read_in_one_look(texts: dict[str, str]) -> None:
    files = [path for folder in distributions().values() for path in folder.rglob("*.py")]
    of_distributions = {str(path): path.read_text("utf-8") for path in files}
    for name, text in (texts | of_distributions).items():
        assert list(oversized(name, text)) == []


def test_an_oversized_function_is_found() -> None:
    fits, too_long = "def f():\n" + "    f()\n" * 80, "async def g():\n" + "    g()\n" * 81
    assert list(oversized("m", fits + too_long)) == ["m.g has 81 lines: at most 80"]


def test_modules_are_named_after_their_subject(modules: dict[str, Path]) -> None:
    assert [name for name in modules if VAGUE_MODULES & set(name.split("."))] == []


def test_imports_name_modules_in_full(texts: dict[str, str]) -> None:
    assert [name for name, text in texts.items() if "." in foreign(text)] == []
    assert "." in foreign("from .model import Build")


def test_a_package_holds_no_code_but_the_version(modules: dict[str, Path]) -> None:
    contents = {}
    for name, path in modules.items():
        if path.name == "__init__.py":
            contents[name] = [type(node).__name__ for node in ast.parse(path.read_text()).body[1:]]
    assert contents.pop("") == ["AnnAssign", "FunctionDef"], (
        "torchmill.__version__, when it is read"
    )
    assert [name for name, statements in contents.items() if statements] == []


def test_every_wing_says_its_law(modules: dict[str, Path]) -> None:
    assert [
        name for name, path in modules.items() if not ast.get_docstring(structure.parse(path))
    ] == []


def test_every_wing_lists_what_is_in_it() -> None:
    """A package in a wing may have a list, too, and then it is complete."""
    wing_laws = list((ROOT / structure.PACKAGE).glob("*/__init__.py"))
    assert wing_laws
    for law in (ROOT / structure.PACKAGE).glob("**/__init__.py"):
        listed = {
            line[2:].partition(":")[0]
            for line in law.read_text("utf-8").splitlines()
            if line.startswith("- ")
        }
        if law not in wing_laws and not listed:
            continue
        inside = {path.stem for path in law.parent.glob("*.py")} - {"__init__"}
        wings = {f"{path.parent.name}/" for path in law.parent.glob("*/__init__.py")}
        assert listed == inside | wings, law.parent.name


def test_checks_stand_alone() -> None:
    scripts = list((ROOT / "checks").glob("*.py"))
    assert scripts
    assert [path for path in scripts if structure.PACKAGE in foreign(path.read_text("utf-8"))] == []


def distributions() -> dict[str, Path]:
    """Return the folders of the packages that are distributions of their own, by name."""
    return {path.name: path for path in (ROOT / "packages").glob("*/src/*") if path.is_dir()}


def private_imports(text: str, package: str, described: str) -> set[str]:
    """Return what a text imports of a package that its docstring does not name in `backticks`."""
    public = set(re.findall(r"`(\w+)`", described))
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            names.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
            names |= {parts[1] for parts in modules if parts[0] == package and len(parts) > 1}
    return names - public


def test_distributions_import_nothing_of_torchmill() -> None:
    files = {name: list(folder.rglob("*.py")) for name, folder in distributions().items()}
    assert {name for name, paths in files.items() if paths} == {"millguard", "millpress"}
    for name, paths in files.items():
        forbidden = {structure.PACKAGE, *files} - {name}
        assert [path for path in paths if forbidden & foreign(path.read_text("utf-8"))] == []


def test_torchmill_imports_only_what_a_distribution_names(texts: dict[str, str]) -> None:
    for package, folder in distributions().items():
        described = ast.get_docstring(structure.parse(folder / "__init__.py")) or ""
        for name, text in texts.items():
            if package in text:  # to parse all of them takes a second
                assert private_imports(text, package, described) == set(), name


def test_an_import_of_a_private_module_is_found() -> None:
    text = "from press import read\nfrom press.inner import x\nimport press.zip"
    assert private_imports(text, "press", "Use `read` and `zip`.") == {"inner"}


def test_class_names_with_two_meanings_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Target: ...\nclass _Own: ...\ndef of(): ...\n")
    modules = structure.find_modules(tmp_path)
    assert structure.public_classes(modules) == {"Target": 2}
    assert structure.vague_functions(modules) == ["a.of", "b.of"]


def test_the_longest_chain_is_found() -> None:
    assert structure.longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": set()}) == [
        "a",
        "b",
        "c",
    ]


def test_files_to_follow_are_the_room_and_what_is_called_directly() -> None:
    graph = {
        "build.pipeline": {"build.steps", "wheel.pack", "core.errors"},
        "build.steps": {"build.tree", "host.disk"},
        "build.tree": set(),
        "wheel.pack": {"wheel.zip"},
    }
    assert structure.files_to_follow(graph, {"build.pipeline"}, "build") == {
        "build.pipeline", "build.steps", "build.tree", "wheel.pack",
    }  # fmt: skip


def left_out(folders: Iterable[Path], patterns: list[str]) -> list[Path]:
    """Return the folders whose tests a run of all tests leaves out."""
    return [
        folder for folder in folders if any(fnmatch(folder.name, pattern) for pattern in patterns)
    ]


def test_a_folder_that_pytest_leaves_out_is_found() -> None:
    assert left_out([Path("tests/build"), Path("tests/plan")], ["*.egg", "build"]) == [
        Path("tests/build")
    ]


def test_a_run_of_all_tests_goes_into_every_folder(pytestconfig: pytest.Config) -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert left_out(folders, pytestconfig.getini("norecursedirs")) == []
