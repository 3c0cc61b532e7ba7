"""Read a setup.py without running it: the variables that it asks for, what it imports and downloads.

The text is parsed, and never executed. What an expression would evaluate to is not guessed: only
literals count.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchmill.plan.package_draft.source_texts import Place, SourceTexts

SETUP = "setup.py"
_GETTERS = {"os.getenv", "os.environ.get", "getenv", "environ.get"}
_CONTAINERS = {"os.environ", "environ"}
_DOWNLOAD_MODULES = {"urllib", "requests", "wget", "http", "httpx"}
_DOWNLOAD_WORDS = ("git clone", "git submodule", "curl ", "wget ")
# Names of constants that decide what is compiled.
_SWITCH = re.compile(r"[A-Za-z0-9_]*(CPU|CUDA|GPU)[A-Za-z0-9_]*", re.IGNORECASE)
_BUILD_EXTENSION = {"CUDAExtension", "CppExtension", "BuildExtension", "cpp_extension"}


@dataclass(frozen=True, slots=True)
class ReadVariable:
    """A variable of the environment that a build asks for."""

    name: str
    default: str | None  # None: none is given, or it is no literal
    place: Place


@dataclass(frozen=True, slots=True)
class Constant:
    """A name that is set to True or False, and that a condition asks for."""

    name: str  # "CPU_ONLY"
    value: bool
    place: Place


@dataclass(frozen=True, slots=True)
class SetupScript:
    """What the text of a setup.py shows."""

    variables: tuple[ReadVariable, ...] = ()
    imports: tuple[str, ...] = ()  # modules at the top of their names: "torch", "packaging"
    uses_extension_builder: Place | None = None  # of torch
    has_extensions: Place | None = None  # setup() has ext_modules
    downloads: tuple[Place, ...] = ()
    constants: tuple[Constant, ...] = ()  # whose names speak of CUDA, GPUs or the CPU
    calls_cmake: Place | None = None
    arguments: dict[str, tuple[str, Place]] = field(default_factory=dict)  # literals of setup()
    problem: str = ""  # why it cannot be parsed


def read_setup_script(texts: SourceTexts) -> SetupScript:
    """Return what the text of a source's setup.py shows; nothing without a setup.py."""
    text = texts.text(SETUP)
    if not text:
        return SetupScript()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return SetupScript(problem=str(error))
    variables: dict[str, ReadVariable] = {}
    imports: dict[str, None] = {}
    downloads: list[Place] = []
    builder: Place | None = None
    extensions: Place | None = None
    arguments: dict[str, tuple[str, Place]] = {}
    for node in ast.walk(tree):
        place = Place(SETUP, getattr(node, "lineno", 0))
        for variable in _variables_of(node, place):
            variables.setdefault(variable.name, variable)
        for module in _modules_of(node):
            imports[module.partition(".")[0]] = None
        if builder is None and _names_builder(node):
            builder = place
        if _names_download(node):
            downloads.append(place)
        if isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] == "setup":
            arguments.update(_literal_arguments(node))
            if any(keyword.arg == "ext_modules" for keyword in node.keywords):
                extensions = place
    return SetupScript(
        variables=tuple(variables.values()),
        imports=tuple(imports),
        uses_extension_builder=builder,
        has_extensions=extensions,
        downloads=tuple(dict.fromkeys(downloads)),
        constants=tuple(_constants(tree)),
        calls_cmake=_place_of_program(tree, "cmake"),
        arguments=arguments,
    )


def _place_of_program(tree: ast.Module, name: str) -> Place | None:
    """Return the place where a program begins a command, or a line of one; None if there is none."""
    command = re.compile(rf"(^|[;&\n])\s*{name}(\s|$)")
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and command.search(text):
            return Place(SETUP, getattr(node, "lineno", 0))
    return None


def _constants(tree: ast.Module) -> Iterator[Constant]:
    """Yield the constants at the top of a script that a condition in it asks for.

    What is assigned twice is no constant.
    """
    condition_names: set[str] = set()
    assignments: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp):
            condition_names |= {
                name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assignments[node.id] += 1
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        name = _dotted(statement.targets[0])
        value = getattr(statement.value, "value", None)
        if not isinstance(value, bool) or assignments[name] != 1:
            continue
        if name in condition_names and _SWITCH.fullmatch(name):
            yield Constant(name, value, Place(SETUP, statement.lineno))


def _variables_of(node: ast.AST, place: Place) -> Iterator[ReadVariable]:
    """Yield the variables of the environment that an expression asks for."""
    if isinstance(node, ast.Call) and _dotted(node.func) in _GETTERS and node.args:
        name = _text(node.args[0])
        if name:
            default = _text(node.args[1]) if len(node.args) > 1 else None
            yield ReadVariable(name, default, place)
        return
    key: ast.AST | None = None
    container = ""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice
        container = _dotted(node.value)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        key = node.left
        container = _dotted(node.comparators[0])
    name = _text(key)
    if name and container in _CONTAINERS:
        yield ReadVariable(name, None, place)


def _modules_of(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        yield node.module


def _names_builder(node: ast.AST) -> bool:
    """Tell whether an expression or an import names torch's extension builder."""
    if isinstance(node, ast.ImportFrom | ast.Import):
        names = {alias.name.rpartition(".")[2] for alias in node.names}
        module = getattr(node, "module", "") or ""
        return bool(names & _BUILD_EXTENSION) or module.endswith("cpp_extension")
    return isinstance(node, ast.Attribute) and node.attr in _BUILD_EXTENSION


def _names_download(node: ast.AST) -> bool:
    """Tell whether an import or a text is about a download."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return any(word in node.value for word in _DOWNLOAD_WORDS)
    return any(module.partition(".")[0] in _DOWNLOAD_MODULES for module in _modules_of(node))


def _literal_arguments(call: ast.Call) -> dict[str, tuple[str, Place]]:
    """Return the keyword arguments of a call that are texts, with their places."""
    arguments: dict[str, tuple[str, Place]] = {}
    for keyword in call.keywords:
        text = _text(keyword.value)
        if keyword.arg and text is not None:
            arguments[keyword.arg] = (text, Place(SETUP, keyword.value.lineno))
    return arguments


def _dotted(node: ast.AST) -> str:
    """Return a dotted name, "os.environ.get"; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        value = _dotted(node.value)
        return f"{value}.{node.attr}" if value else ""
    return ""


def _text(node: ast.AST | None) -> str | None:
    """Return the text or number that a literal has; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
        return str(node.value)
    return None
