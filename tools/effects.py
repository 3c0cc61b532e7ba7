"""Find the effects of functions: what they read or change beyond their arguments.

An effect is the use of a module such as `os` or `subprocess`, a call of `open` or `print`, or of a
method of paths such as `read_text`. A function also has the effects of the functions that it calls.
Calls are followed by name, through imports; methods of values are not followed, except those of
paths, which are known by their names.

`python tools/effects.py` prints the effects that decisions reach. tests/suite/test_architecture.py
allows none in plan/ but those that it lists.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import structure

# Modules of which any use is an effect, but for the names of PURE.
MODULES = {
    "asyncio",
    "ctypes",
    "fcntl",
    "getpass",
    "glob",
    "io",
    "multiprocessing",
    "os",
    "platform",
    "random",
    "requests",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
}
PURE = {"io.StringIO", "os.PathLike", "os.fspath", "os.pathsep", "os.sep", "urllib.parse"}
BUILT_IN = {"input", "open", "print"}
# Methods of paths that ask the file system, or change it.
PATH_METHODS = {
    "absolute",
    "chmod",
    "cwd",
    "exists",
    "expanduser",
    "glob",
    "hardlink_to",
    "home",
    "is_dir",
    "is_file",
    "is_symlink",
    "iterdir",
    "lstat",
    "mkdir",
    "open",
    "read_bytes",
    "read_text",
    "readlink",
    "resolve",
    "rglob",
    "rmdir",
    "samefile",
    "stat",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Return the full name for each name that a tree imports, also inside of functions.

    "exists" -> "torchmill.core.lenient_paths.exists", "os" -> "os".
    """
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import os.path` binds the name "os".
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr) -> str:
    """Return an expression such as `os.path.exists` as text; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        value = _dotted(node.value)
        return f"{value}.{node.attr}" if value else ""
    return ""


def _full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the full name of what an expression refers to, if that is imported; else ""."""
    first, dot, rest = _dotted(node).partition(".")
    return f"{names[first]}{dot}{rest}" if first in names else ""


def _uses_module(name: str) -> bool:
    """Tell whether a full name, "os.path.exists", is in a module of effects."""
    if any(name == pure or name.startswith(f"{pure}.") for pure in PURE):
        return False
    return any(name.startswith(f"{module}.") for module in MODULES)


def direct_effects(tree: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the effects of a tree that need no other function: "os.environ", ".read_text()"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = _full_name(node, names)
            if _uses_module(name):
                yield name
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in BUILT_IN:
            yield f"{function.id}()"
        elif isinstance(function, ast.Attribute) and function.attr in PATH_METHODS:
            # `module.exists()` is a function of another module, and followed as such.
            if not _full_name(function, names):
                yield f".{function.attr}()"
            elif _full_name(function.value, names) == "pathlib.Path":
                yield f"Path.{function.attr}()"


def called_functions(tree: ast.AST, module: str, names: Mapping[str, str]) -> set[str]:
    """Return the full names of the functions that a tree calls or passes on.

    `module` is the full name of the tree's module, in which names that are not imported are.
    """
    called: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            called.add(_full_name(node, names) or f"{module}.{_dotted(node)}")
    return called


def _functions(module: str, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions of a module with full names, also those of classes: "a.b.Class.f".

    What runs when the module is imported counts as a function "a.b.<module>".
    """
    statements = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    yield f"{module}.<module>", ast.Module(statements, [])
    for node in tree.body:
        if isinstance(node, Function):
            yield f"{module}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Function):
                    yield f"{module}.{node.name}.{member.name}", member


def find_effects(trees: Mapping[str, ast.Module], allowed: Collection[str]) -> dict[str, str]:
    """Return the functions that have an effect, each with one of its effects.

    `trees` are modules by their full names. Functions in `allowed` count as if they had none. The
    effect is that of the function itself, "os.environ", or the full name of a function that it
    calls.
    """
    effects: dict[str, str] = {}
    calls: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = imported_names(tree)
        for function, node in _functions(module, tree):
            if function in allowed:
                continue
            calls[function] = called_functions(node, module, names)
            effect = next(direct_effects(node, names), None)
            if effect is not None:
                effects[function] = effect
    while True:
        further: dict[str, str] = {}
        for function, called in calls.items():
            reached = sorted(called & effects.keys())
            # A class is called by its name.
            reached += sorted(name for name in called if f"{name}.__init__" in effects)
            if function not in effects and reached:
                further[function] = reached[0]
        if not further:
            return effects
        effects |= further


def effects_of_wing(wing: str, allowed: Collection[str]) -> dict[str, str]:
    """Return the functions of a wing, such as "plan", that have an effect, each with one effect."""
    modules = structure.find_modules(structure.ROOT / structure.PACKAGE)
    trees: dict[str, ast.Module] = {}
    for name, path in modules.items():
        trees[f"{structure.PACKAGE}.{name}"] = structure.parse(path)
    prefix = f"{structure.PACKAGE}.{wing}."
    effects = find_effects(trees, allowed)
    return {name: effect for name, effect in effects.items() if name.startswith(prefix)}


def main() -> None:
    """Print the effects that functions of plan/ reach."""
    for function, effect in sorted(effects_of_wing("plan", ()).items()):
        print(f"{function}: {effect}")


if __name__ == "__main__":
    main()
