"""A machine as TOML: written on one machine, examined on another."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchwright.errors import ConfigError
from torchwright.host.native import SYSTEMS
from torchwright.model import Compiler, Gpu, Host
from torchwright.tables import Table, read


def load(path: Path) -> Host:
    """Read a host from a TOML file with the fields of model.Host; raise ConfigError with all mistakes."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; describe a host there, or leave --host out")
    problems: list[str] = []
    table = read(path, problems)
    host = Host(
        arch=table.text("arch"),
        system=_system(table),
        cores=_cores(table),
        memory=table.size("memory"),
        disk=_optional_size(table, "disk"),
        glibc=table.optional("glibc"),
        complete=table.flag("complete"),
        translated=table.flag("translated"),
        compiler=_compiler(table, "compiler"),
        cuda_compiler=_compiler(table, "cuda_compiler"),
        compilers=_compilers(table),
        manager=table.optional("manager"),
        driver=table.optional("driver"),
        kernel_driver=table.optional("kernel_driver"),
        compat=table.texts("compat", ()),
        gpus=_gpus(table),
        **{name: table.mapping(name) for name in _mappings()},
    )
    table.done()
    if problems:
        raise ConfigError("\n".join(problems))
    return host


def describe(host: Host) -> str:
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
    yield from ("tools", "versions", "libraries", "packages", "toolkits", "interpreters")
    yield from ("broken_interpreters", "headless_interpreters", "translated_interpreters")


def _system(table: Table) -> str:
    system = table.text("system")
    if system and system not in SYSTEMS.values():
        table.problem(f"'system' is '{system}', expected one of {', '.join(SYSTEMS.values())}")
    return system


def _compiler(table: Table, key: str) -> Compiler | None:
    """Take a compiler, written as "gcc 12.2.0"."""
    text = table.optional(key)
    family, _, version = (text or "").partition(" ")
    if text and not version:
        table.problem(f"'{key}' is '{text}', expected a family and a version, such as 'gcc 12.2.0'")
    return Compiler(family, version) if version else None


def _compilers(table: Table) -> dict[str, Compiler]:
    inner = table.table("compilers")
    found = {name: _compiler(inner, name) for name in list(inner.data)}
    return {name: compiler for name, compiler in found.items() if compiler is not None}


def _gpus(table: Table) -> tuple[Gpu, ...]:
    found = []
    for number, data in enumerate(table.take("gpus", ()), 1):
        one = Table(f"{table.where}: gpu {number}", data if isinstance(data, dict) else {}, table.problems)
        found.append(Gpu(one.text("name"), one.optional("capability")))
        one.done()
    return tuple(found)


def _cores(table: Table) -> int:
    value = table.take("cores", None)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if value is not None:
        table.problem(f"'cores' is {value!r}, expected a whole number from 1")
    return 1


def _optional_size(table: Table, key: str) -> int | None:
    if key in table.data:
        return table.size(key)
    table.asked.append(key)
    return None
