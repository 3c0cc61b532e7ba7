"""CUDA toolkits that environment modules lead to (Tcl and Lua), read without loading one."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_NAMES = {"cuda", "cudatoolkit", "cuda-toolkit", "cuda_toolkit"}
_HOMES = ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH", "CUDADIR", "CUDA_DIR", "EBROOTCUDA")  # what modules set
_TCL = re.compile(r"^\s*(setenv|set|prepend-path)\s+(\S+)\s+(\S.*?)\s*$", re.MULTILINE)
_LUA = re.compile(
    r"^\s*(?:(setenv|prepend_path)\s*\(\s*[\"'](\w+)[\"']\s*,\s*(.+?)\s*\)|(?:local\s+)?(\w+)\s*=\s*(.+?))"
    r"\s*;?\s*(?:--.*)?$",
    re.MULTILINE,
)
_LUA_JOINED = re.compile(r"pathJoin\s*\((.*)\)")


def toolkits(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules of MODULEPATH that name a toolkit's folder, newest name first, and the folder."""
    for base in filter(None, environ.get("MODULEPATH", "").split(os.pathsep)):
        for folder in _children(Path(base)):
            if folder.name.lower() not in _NAMES:
                continue
            for file in sorted(_children(folder), reverse=True):
                name = f"{folder.name}/{file.name.removesuffix('.lua')}"
                home = _home(_said(file, name))
                if home is not None:
                    yield name, home


def _children(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _said(file: Path, name: str) -> dict[str, str]:
    """Return what a module sets, and the folder that it puts first on PATH."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(_lua(text, name) if file.suffix == ".lua" else _tcl(text))


def _home(said: Mapping[str, str]) -> Path | None:
    named = next((said[name] for name in _HOMES if name in said), None)
    if named is None and said.get("PATH", "").endswith("/bin"):
        named = said["PATH"].removesuffix("/bin")
    return Path(named) if named and Path(named).is_absolute() else None


def _tcl(text: str) -> Iterator[tuple[str, str]]:
    known: dict[str, str] = {}
    for command, name, value in _TCL.findall(text):
        filled = re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], match[0]), value.strip('"{}'))
        if "$" in filled or "[" in filled:
            continue
        if command == "set":
            known[name] = filled
        else:
            yield name, filled


def _lua(text: str, module: str) -> Iterator[tuple[str, str]]:
    name, _, version = module.partition("/")
    known = {"myModuleVersion()": version, "myModuleName()": name, "myModuleFullName()": module}
    for _, variable, value, local, expression in _LUA.findall(text):
        filled = _lua_value(value or expression, known)
        if filled is None:
            continue
        if local:
            known[local] = filled
        else:
            yield variable, filled


def _lua_value(expression: str, known: Mapping[str, str]) -> str | None:
    """Return the text that an expression of literals, variables, pathJoin and `..` stands for."""
    if match := _LUA_JOINED.fullmatch(expression):
        parts = [_lua_value(part.strip(), known) for part in match[1].split(",")]
        return None if None in parts else "/".join(part for part in parts if part)
    words = []
    for word in (part.strip() for part in expression.split("..")):
        quoted = re.fullmatch(r"([\"'])(.*)\1", word)
        text = quoted[2] if quoted else known.get(word)
        if text is None:
            return None
        words.append(text)
    return "".join(words)
