"""Describe a machine as TOML, and read such a description."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchmill.config.model import Compiler, Gpu, Host
from torchmill.config.toml_reader import TomlTable, is_version, read_toml
from torchmill.core.errors import ConfigError
from torchmill.core.files import report_unwritable
from torchmill.host.measurement import measure_host
from torchmill.host.native import ARCHES, SYSTEMS

FAMILIES = ("gcc", "clang", "apple-clang", "msvc")


def read_or_measure_host(file: str, root: Path) -> Host:
    """Return the machine that a file describes, and without one this machine, for a checkout in `root`."""
    return load_host(Path(file)) if file else measure_host(root)


def load_host(path: Path) -> Host:
    """Read a host from a TOML file with the fields of model.Host; raise ConfigError with all mistakes."""
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist: write one with `invoke doctor --save FILE`, or leave --host out",
            code="host-file-missing",
        )
    problems: list[str] = []
    table = read_toml(path, problems)
    if problems:
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    system, compilers = table.choice("system", SYSTEMS.values()), table.map("compilers", _compiler)
    host = table.read(
        Host,
        arch=_arch(table, system),
        system=system,
        cores=_cores(table),
        compiler=_compiler(table, "compiler"),
        cuda_compiler=_compiler(table, "cuda_compiler"),
        compilers={name: compiler for name, compiler in compilers.items() if compiler is not None},
        gpus=table.read_each("gpus", Gpu),
        rooms=(),
        runs=(),
    )
    if problems:
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    return host


def save_host(host: Host, path: Path) -> None:
    """Write a host to a file that `load_host` reads. Raises HostError where it cannot be written."""
    with report_unwritable(path):
        path.write_text(describe_host(host), encoding="utf-8")


def describe_host(host: Host) -> str:
    """Return the TOML from which `load_host` reads this host again."""
    # By hand: the standard library writes no TOML, and tomli-w would be a requirement for these lines alone.
    lines = ["# A machine, as `invoke doctor --save` wrote it; examine it with `invoke doctor --host FILE`"]
    tables = []
    for key, value in ((one.name, getattr(host, one.name)) for one in fields(host)):
        if not value or key in {"rooms", "runs"}:
            continue
        if isinstance(value, Mapping):
            rows = (f"{_text(name)} = {_text(str(one))}" for name, one in value.items())
            tables += ["", f"[{key}]", *rows]
        elif key == "gpus":
            for gpu in value:
                tables += ["", "[[gpus]]", f"name = {_text(gpu.name)}"]
                tables += [f"capability = {_text(gpu.capability)}"] if gpu.capability else []
        else:
            lines.append(f"{key} = {_value(f'{value} B' if key in {'memory', 'disk'} else value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return _text(str(value))


def _text(text: str) -> str:
    """Return a string as TOML writes it, which is how JSON does, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _arch(table: TomlTable, system: str) -> str:
    """Take the arch: one that the system has, or one that `native_arch` made a name for."""
    arch, usual = table.text("arch"), ARCHES.get(system, ())
    if arch and usual and arch not in usual and not arch.startswith(f"{system}_"):
        table.problem(f"'arch' is '{arch}', expected {' or '.join(usual)} where 'system' is '{system}'")
    return arch


def _compiler(table: TomlTable, key: str) -> Compiler | None:
    """Take a compiler, written as "gcc 12.2.0"."""
    text = table.optional(key)
    family, _, version = (text or "").partition(" ")
    if text and (family not in FAMILIES or not is_version(version)):
        families = ", ".join(FAMILIES)
        table.problem(f"'{key}' is '{text}', expected one of {families} and a version, as in 'gcc 12.2.0'")
        return None
    return Compiler(family, version) if text else None


def _cores(table: TomlTable) -> int:
    value = table.take("cores", int, "a whole number from 1")
    if value is not None and value < 1:
        table.problem(f"'cores' is {value}, expected a whole number from 1")
    return value or 1
