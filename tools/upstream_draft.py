"""Draft the file of a release that appeared on the package index.

A draft has everything that the wheels tell. A maintainer adds the commit of the tag, and the
toolkits that PyPI has no wheels for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tools import upstream_check, upstream_wheels
from tools.fact_schemas import schema_line
from tools.remote_wheel import RemoteWheel
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_TEMPLATE_FIELD = re.compile(r"\\{\w+\\}")  # "{glibc}" after re.escape
_OLD_MANYLINUX = re.compile("manylinux1|manylinux2010|manylinux2014")
Value = str | int | bool | Sequence[str]


def new_releases(facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]]) -> list[str]:
    """Return the releases of the base package that have no file, oldest first."""
    base = base_package(facts).name
    return upstream_check.unknown_versions(facts.releases[base], observed[base])


def draft_release(facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]], version: str) -> str:
    """Return the text of the file of a release: of the base package, and of those that go with it."""
    base = base_package(facts).name
    wheels = _wheels_of(observed[base], version)
    pythons = upstream_wheels.union_of_pythons(wheels, ())
    partners = {}
    triton = _required_version(wheels, "triton")
    if triton:
        partners["triton"] = triton
    date = upstream_wheels.first_upload(wheels)
    day = f" ({date})" if date else ""
    lines = [
        schema_line(f"releases/{version}.toml"),
        "",
        f"# {base} {version}{day}: drafted from PyPI, which knows no tag commit",
        "# and no other toolkit.",
        *_package_tables(facts, base, wheels, None),
        *_table(f"{base}.partners", partners),
        *_table(f"{base}.sizes", upstream_wheels.library_sizes(wheels)),
        *_cuda_tables(base, wheels),
    ]
    for package in reversed(list(observed)):
        if package == base:
            continue
        paired = _paired_wheels(observed[package], base, version)
        if paired:
            lines += _package_tables(facts, package, paired, pythons)
    return "\n".join(lines) + "\n"


def _wheels_of(wheels: Iterable[RemoteWheel], version: str) -> list[RemoteWheel]:
    """Return the wheels of a version."""
    return [wheel for wheel in wheels if wheel.version == version]


def _paired_wheels(wheels: Sequence[RemoteWheel], base: str, version: str) -> list[RemoteWheel]:
    """Return the wheels of the newest release that goes with a version of the base package.

    A release that pins this version comes before one that merely admits it.
    """
    pinning = set()
    admitting = set()
    for wheel in wheels:
        if wheel.yanked:
            continue
        bound = upstream_wheels.pinned_specifier(wheel, base) or ""
        if upstream_wheels.pinned_version(wheel, base) == version:
            pinning.add(wheel.version)
        elif not bound.startswith("==") and SpecifierSet(bound).contains(version):
            admitting.add(wheel.version)
    versions = pinning or admitting
    return _wheels_of(wheels, max(versions, key=Version)) if versions else []


def _required_version(wheels: Sequence[RemoteWheel], project: str) -> str | None:
    """Return the version of a project that the wheel for the oldest Python pins, or None."""
    references = upstream_wheels.reference_wheels(wheels)
    return upstream_wheels.pinned_version(references[0], project) if references else None


def _package_tables(
    facts: Facts, package: str, wheels: Sequence[RemoteWheel], inherited: Sequence[str] | None
) -> list[str]:
    """Return the lines of a package's release: its own table, and those about its wheels.

    `inherited` are the Pythons of the base package; None for the base package itself. If another
    file has the release already, its date, commits and platforms are not repeated.
    """
    version = wheels[0].version
    is_described = any(release.version == version for release in facts.releases[package])
    pythons = list(upstream_wheels.union_of_pythons(wheels, inherited or ()))
    if inherited is not None:
        pythons = [python for python in pythons if python in inherited]
    commits: dict[str, tuple[str, ...]] = {}
    platforms: dict[str, tuple[str, ...]] = {}
    date = None
    if not is_described:
        commits = upstream_wheels.commits_not_tag(wheels, None)
        platforms = upstream_wheels.pythons_by_platform(wheels, inherited or ())
        date = upstream_wheels.first_upload(wheels)
    values: dict[str, Value] = {"version": version}
    if date:
        values["date"] = date
    if len(commits) == 1:
        values["built_from"] = next(iter(commits))
    if inherited is None or pythons != list(inherited):
        values["pythons"] = pythons
    if inherited is None:
        values["arches"] = _arches(facts, wheels)
        values["drafted"] = True
    if all(wheel.python is None for wheel in wheels):
        values["wheel_tag"] = f"{wheels[0].interpreter}-{wheels[0].abi}"
    if inherited is None:
        values["source"] = "PyPI wheel tags, METADATA and version.py"
    else:
        values["source"] = _source_of_pairing(wheels, base_package(facts).name)
    return [
        *_table(package, values),
        *_table(f"{package}.wheels", platforms),
        *_table(f"{package}.built_from", commits if len(commits) > 1 else {}),
    ]


def _source_of_pairing(wheels: Sequence[RemoteWheel], base: str) -> str:
    """Return the source of the pairing: what the wheels say about the base package."""
    pins = set()
    for wheel in upstream_wheels.without_python2(wheels):
        pins.add(upstream_wheels.pinned_specifier(wheel, base) or "")
    if pins == {""}:
        return f"PyPI METADATA, which asks for no version of {base}"
    source = f"PyPI METADATA: {base}{' or '.join(sorted(pins - {''}))}"
    return f"{source} (some wheels pin none)" if "" in pins else source


def _arches(facts: Facts, wheels: Sequence[RemoteWheel]) -> tuple[str, ...]:
    """Return the arches of the suite for which there are wheels; macOS on x86_64 is not one."""
    platforms = {_OLD_MANYLINUX.sub("manylinux_2_17", wheel.platform) for wheel in wheels}
    arches = []
    for name, arch in facts.arches.items():
        pattern = re.compile(_TEMPLATE_FIELD.sub(r"\\w+", re.escape(arch.platform_tag)))
        if any(map(pattern.fullmatch, platforms)):
            arches.append(name)
    return tuple(arches)


def _cuda_tables(base: str, wheels: Sequence[RemoteWheel]) -> list[str]:
    """Return the tables of the toolkit that the wheels on PyPI are built with."""
    toolkit = upstream_wheels.wheel_toolkit(wheels)
    if toolkit is None:
        return []
    wheel = upstream_wheels.reference_wheels(wheels)[0]
    official: dict[str, Value] = {}
    for library in ("cudnn", "nccl"):
        version = upstream_wheels.nvidia_version(wheel, library)
        if version:
            official[library] = version
    if wheel.capabilities:
        official["capabilities"] = ";".join(wheel.capabilities)
    required = upstream_wheels.nvidia_requirements(wheel)
    if required:
        official["requires"] = required
    return [
        *_table(f"{base}.cuda", {"range": f"=={toolkit}", "pypi": toolkit}),
        *_table(f'{base}.cuda.official."{toolkit}"', official),
    ]


def _table(name: str, values: Mapping[str, Value]) -> list[str]:
    """Return a table of TOML after an empty line; nothing if it has no values."""
    return ["", f"[{name}]", *_value_lines(values)] if values else []


def _value_lines(values: Mapping[str, Value]) -> Iterator[str]:
    """Yield the lines of TOML for keys and values."""
    for name, value in values.items():
        key = name if _BARE_KEY.fullmatch(name) else f'"{name}"'
        if isinstance(value, bool):
            yield f"{key} = {str(value).lower()}"
        elif isinstance(value, int):
            yield f"{key} = {value}"
        elif isinstance(value, str):
            yield f'{key} = "{value}"'
        elif name == "requires":  # a long list, with a line for each value
            yield f"{key} = ["
            yield from (f'    "{item}",' for item in value)
            yield "]"
        else:
            items = ", ".join(f'"{item}"' for item in value)
            yield f"{key} = [{items}]"
