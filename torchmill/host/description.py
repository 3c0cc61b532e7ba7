"""Describe a machine as TOML, and read such a description."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchmill.config.model import Compiler, Gpu, Host
from torchmill.config.toml_reader import TomlTable, is_version, read_toml
from torchmill.core.errors import ConfigError
from torchmill.host.native import ARCHES, SYSTEMS

FAMILIES = ("gcc", "clang", "apple-clang", "msvc")


def load_description(path: Path) -> Host:
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
    system = table.choice("system", SYSTEMS.values())
    host = Host(
        arch=_arch(table, system),
        system=system,
        cores=_cores(table),
        memory=table.size("memory"),
        disk=table.optional_size("disk"),
        glibc=_version(table, "glibc"),
        complete=table.flag("complete"),
        translated=table.flag("translated"),
        compiler=_compiler(table, "compiler"),
        cuda_compiler=_compiler(table, "cuda_compiler"),
        compilers=_compilers(table),
        manager=table.optional("manager"),
        driver=_version(table, "driver"),
        kernel_driver=_version(table, "kernel_driver"),
        compat=table.texts("compat", ()),
        gpus=_gpus(table),
        rooms=(),
        runs=(),
        **{name: table.mapping(name) for name in _mappings()},
    )
    table.check_unknown_keys()
    if problems:
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    return host


def save_description(host: Host, path: Path) -> None:
    """Write a host to a file that `load` reads; raise ConfigError where it cannot be written."""
    try:
        path.write_text(describe_machine(host), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}): name a file in a folder that you may write to",
            code="host-file-not-writable",
        ) from error


def describe_machine(host: Host) -> str:
    """Return the TOML from which `load` reads this host again."""
    lines = ["# A machine, as `invoke doctor --save` wrote it; examine it with `invoke doctor --host FILE`"]
    plain = {one.name: getattr(host, one.name) for one in fields(host)}
    tables = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    lines += [f"{key} = {_value(value)}" for key, value in _scalars(plain)]
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{_text(key)} = {_text(str(one))}" for key, one in table.items())]
    for gpu in host.gpus:
        lines += ["", "[[gpus]]", f"name = {_text(gpu.name)}"]
        lines += [f"capability = {_text(gpu.capability)}"] if gpu.capability else []
    return "\n".join(lines) + "\n"


def _scalars(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping) or key == "gpus" or value in {None, False, ()}:
            continue
        yield key, f"{value} B" if key in {"memory", "disk"} else value


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_text(one) for one in value)}]"
    return _text(str(value))


def _text(text: str) -> str:
    """Return a string as TOML writes it, which is how JSON does, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _mappings() -> Iterator[str]:
    """Yield the fields of Host that are tables of plain strings."""
    yield from ("tools", "versions", "libraries", "packages", "toolkits", "completed", "lacking")
    yield from (
        "kept",
        "interpreters",
        "broken_interpreters",
        "headless_interpreters",
        "translated_interpreters",
    )


def _arch(table: TomlTable, system: str) -> str:
    """Take the arch: one that the system is known with, or one that `native_arch` made a name for."""
    arch, known = table.text("arch"), ARCHES.get(system, ())
    if arch and known and arch not in known and not arch.startswith(f"{system}_"):
        table.problem(f"'arch' is '{arch}', expected {' or '.join(known)} where 'system' is '{system}'")
    return arch


def _version(table: TomlTable, key: str) -> str | None:
    text = table.optional(key)
    if text and not is_version(text):
        table.problem(f"'{key}' is '{text}', expected a version, such as '2.35'")
    return text


def _compiler(table: TomlTable, key: str) -> Compiler | None:
    """Take a compiler, written as "gcc 12.2.0"."""
    text = table.optional(key)
    family, _, version = (text or "").partition(" ")
    if text and (family not in FAMILIES or not is_version(version)):
        families = ", ".join(FAMILIES)
        table.problem(f"'{key}' is '{text}', expected one of {families} and a version, as in 'gcc 12.2.0'")
        return None
    return Compiler(family, version) if text else None


def _compilers(table: TomlTable) -> dict[str, Compiler]:
    inner = table.table("compilers")
    found = {name: _compiler(inner, name) for name in list(inner.data)}
    return {name: compiler for name, compiler in found.items() if compiler is not None}


def _gpus(table: TomlTable) -> tuple[Gpu, ...]:
    found = []
    for one in table.tables("gpus"):
        found.append(Gpu(one.text("name"), one.optional("capability")))
        one.check_unknown_keys()
    return tuple(found)


def _cores(table: TomlTable) -> int:
    cores = table.take("cores", int, "a whole number from 1")
    if cores is not None and cores < 1:
        table.problem(f"'cores' is {cores}, expected a whole number from 1")
    return max(cores or 1, 1)
