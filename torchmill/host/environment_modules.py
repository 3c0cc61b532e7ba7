"""Find the CUDA toolkits of environment modules, Tcl's and Lmod's, by reading their files.

Nothing in them is run: only assignments of literals and of variables are understood.
https://modules.readthedocs.io/en/latest/modulefile.html
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.config.versions import numbers_key
from torchmill.core.lenient_paths import read_text
from torchmill.host.disk_usage import list_children

_FOLDERS = {"cuda", "cudatoolkit", "cuda-toolkit", "cuda_toolkit"}
# Variables of modules that name the toolkit's folder.
_HOMES = ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH", "CUDADIR", "CUDA_DIR", "EBROOTCUDA")
_TCL = re.compile(r"^\s*(setenv|set|prepend-path)\s+(\S+)\s+(\S.*?)\s*$", re.MULTILINE)
_TCL_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
# setenv("NAME", value), prepend_path("NAME", value), local name = value
_LUA = re.compile(
    r"^\s*(?:(?:setenv|prepend_path)\s*\(\s*[\"'](?P<variable>\w+)[\"']\s*,\s*(?P<value>.+?)\s*\)"
    r"|(?:local\s+)?(?P<name>\w+)\s*=\s*(?P<expression>.+?))\s*;?\s*(?:--.*)?$",
    re.MULTILINE,
)
_LUA_JOINED = re.compile(r"pathJoin\s*\((.*)\)")
_LUA_QUOTED = re.compile(r"([\"'])(.*)\1")


def module_toolkits(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules of MODULEPATH that name a toolkit's folder, and the folder.

    The newest version of a module comes first.
    """
    for base in environ.get("MODULEPATH", "").split(os.pathsep):
        if not base:
            continue
        for folder in list_children(Path(base)):
            if folder.name.lower() not in _FOLDERS:
                continue
            files = list_children(folder)
            files.sort(key=lambda file: numbers_key(file.name), reverse=True)
            for file in files:
                if file.name.startswith("."):
                    continue  # it has the default version
                name = f"{folder.name}/{file.name.removesuffix('.lua')}"
                home = _module_home(file, name)
                if home is not None:
                    yield name, home


def _module_home(file: Path, module: str) -> Path | None:
    """Return the toolkit's folder, by a variable that a module sets, or by its folder on PATH.

    None if the module does not tell it in a form that is understood.
    """
    text = read_text(file)
    if file.suffix == ".lua":
        variables = _lua_variables(text, module)
    else:
        variables = _tcl_variables(text)
    homes = [variables[name] for name in _HOMES if name in variables]
    path = variables.get("PATH", "")
    if path.endswith("/bin"):
        homes.append(path.removesuffix("/bin"))
    # A value with parts that are not understood is left out of `variables`, or is not a path.
    if not homes or not Path(homes[0]).is_absolute():
        return None
    return Path(homes[0])


def _tcl_variables(text: str) -> dict[str, str]:
    """Return the environment variables that a Tcl file sets to texts that can be read from it."""
    file_variables: dict[str, str] = {}  # variables of the file itself
    environment: dict[str, str] = {}
    for command, name, value in _TCL.findall(text):
        filled = _TCL_VARIABLE.sub(
            lambda match: file_variables.get(match[1], match[0]), value.strip('"{}')
        )
        if "$" in filled or "[" in filled:  # an unknown variable, or a command
            continue
        variables = file_variables if command == "set" else environment
        variables[name] = filled
    return environment


def _lua_variables(text: str, module: str) -> dict[str, str]:
    """Return the environment variables that a Lua file sets to texts that can be read from it.

    `module` is "cuda/11.8.0": Lmod has functions for its parts.
    """
    name, _, version = module.partition("/")
    file_variables = {
        "myModuleVersion()": version,
        "myModuleName()": name,
        "myModuleFullName()": module,
    }
    environment: dict[str, str] = {}
    for match in _LUA.finditer(text):
        value = _lua_value(match["value"] or match["expression"], file_variables)
        if value is None:
            continue
        if match["name"]:
            file_variables[match["name"]] = value
        else:
            environment[match["variable"]] = value
    return environment


def _lua_value(expression: str, variables: Mapping[str, str]) -> str | None:
    """Return the value of a Lua expression of literals, variables, pathJoin and `..`.

    None if the expression has anything else in it.
    """
    joined = _LUA_JOINED.fullmatch(expression)
    if joined:
        parts = [_lua_value(part.strip(), variables) for part in joined[1].split(",")]
        known_parts = [part for part in parts if part is not None]
        if len(known_parts) < len(parts):
            return None
        return "/".join(part for part in known_parts if part)
    texts: list[str] = []
    for word in expression.split(".."):
        quoted = _LUA_QUOTED.fullmatch(word.strip())
        text = quoted[2] if quoted else variables.get(word.strip())
        if text is None:
            return None
        texts.append(text)
    return "".join(texts)
