"""Draft the file of a release that appeared on the package index."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tools import upstream_check
from tools.remote_wheel import RemoteWheel
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package

_BARE = re.compile(r"[A-Za-z0-9_-]+")
Value = str | int | Sequence[str]


def new_releases(facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]]) -> list[str]:
    """Return the releases of the base package of which no file speaks, oldest first."""
    base = base_package(facts).name
    return upstream_check.unknown_versions(facts.releases[base], observed[base])


def draft_release(facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]], version: str) -> str:
    """Return the file of a release of the base package, with what pairs with it."""
    base = base_package(facts).name
    wheels = _of(observed[base], version)
    pythons = _pythons(wheels, ())
    partners = {"triton": triton} if (triton := _partner(wheels, "triton")) else {}
    lines = [
        (
            f"# {base} {version} ({upstream_check.first_upload(wheels)}): drafted from PyPI, which knows no tag commit"
        ),
        "# and no other toolkit.",
        *_head(facts, base, wheels, None),
        *_table(f"{base}.partners", partners),
        *_table(f"{base}.sizes", upstream_check.library_sizes(wheels)),
        *_toolkit(base, wheels),
    ]
    for package in reversed(list(observed)):
        if package != base and (paired := _paired(observed[package], base, version)):
            lines += _head(facts, package, paired, pythons)
    return "\n".join(lines) + "\n"


def _of(wheels: Iterable[RemoteWheel], version: str) -> list[RemoteWheel]:
    return [wheel for wheel in wheels if wheel.version == version]


def _paired(wheels: Sequence[RemoteWheel], base: str, version: str) -> list[RemoteWheel]:
    """Return the newest release that asks for this version of the base package, else one that admits it."""
    asking, admitting = set[str](), set[str]()
    for wheel in wheels:
        if not wheel.yanked:
            bound = upstream_check.pinned_specifier(wheel, base) or ""
            if upstream_check.pinned_version(wheel, base) == version:
                asking.add(wheel.version)
            elif not bound.startswith("==") and SpecifierSet(bound).contains(version):
                admitting.add(wheel.version)
    return _of(wheels, max(asking or admitting, key=Version)) if asking or admitting else []


def _partner(wheels: Sequence[RemoteWheel], project: str) -> str | None:
    return next(
        (
            upstream_check.pinned_version(wheel, project)
            for wheel in upstream_check.reference_wheels(wheels)
        ),
        None,
    )


def _pythons(wheels: Sequence[RemoteWheel], every: Sequence[str]) -> tuple[str, ...]:
    union = {
        python
        for pythons in upstream_check.pythons_by_platform(wheels, every).values()
        for python in pythons
    }
    return upstream_check.sort_pythons(union)


def _head(
    facts: Facts, package: str, wheels: Sequence[RemoteWheel], inherited: Sequence[str] | None
) -> list[str]:
    """Return a package's own table with its wheels; what stands elsewhere is not repeated."""
    version = wheels[0].version
    described = any(one.version == version for one in facts.releases[package])
    pythons = [
        one for one in _pythons(wheels, inherited or ()) if inherited is None or one in inherited
    ]
    built = {} if described else upstream_check.commits_not_tag(wheels, None)
    date = None if described else upstream_check.first_upload(wheels)
    values: dict[str, Value] = {"version": version}
    if date:
        values["date"] = date
    if len(built) == 1:
        values["built_from"] = next(iter(built))
    if inherited is None or pythons != list(inherited):
        values["pythons"] = pythons
    if inherited is None:
        values["arches"] = _arches(facts, wheels)
    if all(wheel.python is None for wheel in wheels):
        values["wheel_tag"] = f"{wheels[0].interpreter}-{wheels[0].abi}"
    values["source"] = _source(wheels, base_package(facts).name, inherited is None)
    platforms = {} if described else upstream_check.pythons_by_platform(wheels, inherited or ())
    return [
        *_table(package, values),
        *_table(f"{package}.wheels", platforms),
        *_table(f"{package}.built_from", built if len(built) > 1 else {}),
    ]


def _source(wheels: Sequence[RemoteWheel], base: str, first: bool) -> str:
    if first:
        return "PyPI wheel tags, METADATA and version.py"
    pins = {
        upstream_check.pinned_specifier(wheel, base) or ""
        for wheel in upstream_check.without_python2(wheels)
    }
    if pins == {""}:
        return f"PyPI METADATA, which asks for no version of {base}"
    asked = f"PyPI METADATA: {base}{' or '.join(sorted(pins - {''}))}"
    return f"{asked} (some wheels pin none)" if "" in pins else asked


def _arches(facts: Facts, wheels: Sequence[RemoteWheel]) -> tuple[str, ...]:
    """Return the machines that wheels exist for; macOS on x86_64 is none of the suite's."""
    platforms = {wheel.platform for wheel in wheels}
    patterns = {
        name: re.compile(re.sub(r"\\{\w+\\}", r"\\w+", re.escape(arch.platform_tag)))
        for name, arch in facts.arches.items()
    }
    older = {"manylinux1", "manylinux2010", "manylinux2014"}
    named = {re.sub("|".join(older), "manylinux_2_17", platform) for platform in platforms}
    return tuple(name for name, pattern in patterns.items() if any(map(pattern.fullmatch, named)))


def _toolkit(base: str, wheels: Sequence[RemoteWheel]) -> list[str]:
    """Return the tables of the toolkit that the wheels on PyPI are built with."""
    toolkit = upstream_check.wheel_toolkit(wheels)
    if toolkit is None:
        return []
    wheel = upstream_check.reference_wheels(wheels)[0]
    official: dict[str, Value] = {}
    for library in ("cudnn", "nccl"):
        if version := upstream_check.nvidia_version(wheel, library):
            official[library] = version
    if wheel.capabilities:
        official["capabilities"] = ";".join(wheel.capabilities)
    if required := upstream_check.nvidia_requirements(wheel):
        official["requires"] = required
    lines = _table(f"{base}.cuda", {"range": f"=={toolkit}", "pypi": toolkit})
    return lines + _table(f'{base}.cuda.official."{toolkit}"', official)


def _table(name: str, values: Mapping[str, Value]) -> list[str]:
    return ["", f"[{name}]", *_lines(values)] if values else []


def _lines(values: Mapping[str, Value]) -> Iterator[str]:
    for key, value in values.items():
        shown = key if _BARE.fullmatch(key) else f'"{key}"'
        if isinstance(value, int):
            yield f"{shown} = {value}"
        elif key == "requires":
            yield from (f"{shown} = [", *(f'    "{one}",' for one in value), "]")
        elif isinstance(value, str):
            yield f'{shown} = "{value}"'
        else:
            yield f"{shown} = [" + ", ".join(f'"{one}"' for one in value) + "]"
