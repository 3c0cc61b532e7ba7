"""Snippets for uv, Poetry, PDM, pip and pixi: requirements (PEP 508), sources and TOML."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import unquote, urlsplit

from packaging.version import Version

from torchmill.config.matrix import python_key
from torchmill.config.model import Arch, Facts
from torchmill.core.errors import ConfigError
from torchmill.deliver.snippet import stock
from torchmill.deliver.snippet.stock import PlatformPin, SnippetDecision, WheelOffer, WheelPlace

Direct = Callable[[PlatformPin], bool]  # whether a tool names the wheels of a pin by their address


def never_direct(_: PlatformPin) -> bool:
    """Tell that wheels are looked up by name and version."""
    return False


def direct_if_ours(pin: PlatformPin) -> bool:
    """Tell that our own wheels are named by their address and hash."""
    return bool(pin.offers)


def requirement_lines(decision: SnippetDecision, direct: Direct) -> tuple[str, ...]:
    """Return the lines of a project's dependencies, NumPy's at the end."""
    found: list[str] = []
    for package in decision.packages:
        pins = decision.of_package(package)
        named = [pin for pin in pins if not direct(pin)]
        for version in dict.fromkeys(pin.version for pin in named):
            marker = _marker(decision, [pin for pin in named if pin.version == version])
            found.append(_with(f"{package}=={version}", marker))
        for pin in pins:
            found += _addresses(decision, pin) if direct(pin) else ()
    return (*found, decision.numpy) if decision.numpy else tuple(found)


def source_lines(decision: SnippetDecision, package: str, direct: Direct) -> tuple[tuple[WheelPlace, str], ...]:
    """Return where a package comes from, each place with its marker, but for those that are asked anyway."""
    pins = [pin for pin in decision.of_package(package) if not direct(pin) and not pin.place.default]
    return tuple(
        (place, _marker(decision, [pin for pin in pins if pin.place == place]))
        for place in dict.fromkeys(pin.place for pin in pins)
    )


def places_to_name(decisions: Sequence[SnippetDecision], direct: Direct) -> tuple[WheelPlace, ...]:
    """Return the places that a project has to name."""
    pins = (pin for decision in decisions for pin in decision.pins)
    return tuple(dict.fromkeys(pin.place for pin in pins if not direct(pin) and not pin.place.default))


def is_shadowed(decision: SnippetDecision, pin: PlatformPin) -> bool:
    """Tell whether what a pin asks for is also met by a labelled version of the same place.

    `==1.13.1` takes `1.13.1+cpu` too (PEP 440), and there is no way to say that it shall not.
    """
    if Version(pin.version).local:
        return False
    others = (one for one in decision.of_package(pin.package) if one.place == pin.place)
    return any(Version(one.version).local for one in others)


def python_range(pythons: Sequence[str]) -> str:
    """Return requires-python for exactly these: ">=3.10,<3.12", ">=3.10,!=3.11.*,<3.13"."""
    numbers = [python.rstrip("t") for python in pythons]
    major = numbers[0].partition(".")[0]
    minors = sorted({int(number.partition(".")[2]) for number in numbers})
    gaps = [f"!={major}.{one}.*" for one in range(minors[0], minors[-1]) if one not in minors]
    return ",".join([f">={major}.{minors[0]}", *gaps, f"<{major}.{minors[-1] + 1}"])


def snippet_header(decisions: Sequence[SnippetDecision], words: Sequence[str]) -> list[str]:
    """Return the comment above a snippet: what it is for, what is worth knowing, what to do with it."""
    first, *_ = decisions
    where = ", ".join(stock.platform_name(arch) for arch in first.platforms)
    variants = " or ".join(decision.variant for decision in decisions)
    pythons = ", ".join(first.pythons)
    notes = dict.fromkeys(note for decision in decisions for note in decision.notes)
    lines = [f"{', '.join(first.packages)} ({variants}) for {where}; Python {pythons}", *notes, *words]
    return [f"# {line}" for line in lines]


def _marker(decision: SnippetDecision, pins: Sequence[PlatformPin]) -> str:
    return stock.platforms_marker([pin.arch for pin in pins], decision.platforms)


def _addresses(decision: SnippetDecision, pin: PlatformPin) -> Iterator[str]:
    """Yield a line for each wheel of a pin; where there are several, the Python tells which."""
    here = stock.platforms_marker([pin.arch], decision.platforms)
    for offer in pin.offers:
        numbers = {python.rstrip("t") for python in pin.pythons if python in offer.pythons and len(pin.offers) > 1}
        pythons = " or ".join(f"python_version == '{number}'" for number in sorted(numbers, key=python_key))
        yield _with(f"{pin.package} @ {wheel_address(offer)}", stock.join_markers(here, pythons))


def wheel_address(offer: WheelOffer) -> str:
    """Return the address of a wheel with its hash, where that is known."""
    return f"{offer.url}#sha256={offer.sha256}" if offer.sha256 else offer.url


def _with(requirement: str, marker: str) -> str:
    return f"{requirement} ; {marker}" if marker else requirement


def toml_string(value: str) -> str:
    """Return a string in quotes."""
    # JSON and TOML escape alike, but for DEL, which JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_array(values: Sequence[str]) -> str:
    """Return a list of strings, one per line."""
    return "\n".join(["[", *(f"    {toml_string(value)}," for value in values), "]"])


def toml_inline(table: Mapping[str, str]) -> str:
    """Return a small table in one line."""
    return "{ " + ", ".join(f"{key} = {toml_string(value)}" for key, value in table.items()) + " }"


def toml_inlines(tables: Sequence[Mapping[str, str]]) -> str:
    """Return a list of small tables, one per line."""
    return "\n".join(["[", *(f"    {toml_inline(table)}," for table in tables), "]"])


def project_table(decisions: Sequence[SnippetDecision], direct: Direct) -> list[str]:
    """Return the lines of the table: dependencies, or an extra for each variant where there are several."""
    first, *_ = decisions
    pythons = [python for python in first.pythons if all(python in one.pythons for one in decisions)]
    lines = [
        "[project]",
        'name = "my-project"',
        'version = "0.1.0"',
        f"requires-python = {toml_string(python_range(pythons))}",
    ]
    if len(decisions) == 1:
        return [*lines, f"dependencies = {toml_array(requirement_lines(first, direct))}"]
    lines += ["", "[project.optional-dependencies]"]
    return [*lines, *(f"{one.variant} = {toml_array(requirement_lines(one, direct))}" for one in decisions)]


def extra_option(decisions: Sequence[SnippetDecision], command: str) -> str:
    """Return how an extra is chosen; "" where there is none to choose."""
    if len(decisions) == 1:
        return ""
    return ": " + " or ".join(f"`{command} {one.variant}`" for one in decisions)


Render = Callable[[Sequence[SnippetDecision], Direct], str]
_GLIBC = re.compile(r"manylinux_2_(\d+)")
_OLDEST = 17  # of glibc 2: of the oldest tag that most wheels on PyPI have
_PROMISED = 28  # of glibc 2: what pixi takes for granted on Linux


def snippet_tools(facts: Facts) -> dict[str, tuple[bool, Render]]:
    """Return, by tool, whether it keeps several variants apart in one project, and what renders for it."""
    pixi = partial(render_pixi, subdirs=facts.conda.subdirs if facts.conda else {})
    return {
        "uv": (True, render_uv),  # as extras that exclude each other
        "poetry": (False, render_poetry),
        "pdm": (False, render_pdm),
        "pip": (False, render_pip),
        "pixi": (True, pixi),  # as environments
    }


def _newest_glibc(offers: Iterable[WheelOffer]) -> int:
    """Return the minor version of glibc 2 that wheels need; 0 where none says so."""
    return max((int(minor) for one in offers for minor in _GLIBC.findall(one.file)[:1]), default=0)


def render_pdm(decisions: Sequence[SnippetDecision], direct: Direct) -> str:
    """Return pyproject.toml for PDM."""
    decision, *_ = decisions
    words = ["pyproject.toml; then", *(f"    {line}" for line in _locking(decision, direct)), "    pdm sync"]
    lines = [*snippet_header(decisions, words), "", *project_table(decisions, direct)]
    lines += ["", "[tool.pdm]", "distribution = false"]
    named = places_to_name(decisions, direct)
    pins = [pin for pin in decision.pins if not direct(pin)]
    ours = {pin.package for pin in pins if pin.place in named}
    # of PyPI those packages, too, that it must be asked for although a source of ours has them
    default = dict.fromkeys(pin.place for pin in decision.pins if pin.place.default and pin.package in ours)
    for place in (*named, *default):
        packages = dict.fromkeys(pin.package for pin in pins if pin.place == place and pin.package in ours)
        lines += ["", "[[tool.pdm.source]]", f"name = {toml_string(place.name)}"]
        lines += [f"url = {toml_string(place.url)}"]
        lines += [f"type = {toml_string('find_links' if place.flat else 'index')}"]
        lines += [f"include_packages = [{', '.join(toml_string(one) for one in packages)}]"]
        # without this the source would be asked for all other packages too
        lines += ['exclude_packages = ["*"]'] if not place.default else []
    return "\n".join(lines)


def _locking(decision: SnippetDecision, direct: Direct) -> Iterator[str]:
    """Yield the commands that lock: for all platforms at once, or for one after the other."""
    pins = [pin for pin in decision.pins if direct(pin)]
    mixed = any(len({pin.version for pin in decision.of_package(name)}) > 1 for name in decision.packages)
    several = len(decision.platforms) > 1 and (mixed or bool(pins))
    pythons = decision.pythons if any(len(pin.offers) > 1 for pin in pins) else ()
    targets = [
        (f" --platform {_target(decision, arch)}" if several else "") + (f' --python "=={python}.*"' if python else "")
        for arch in (decision.platforms if several else decision.platforms[:1])
        for python in (pythons or ("",))
    ]
    for number, target in enumerate(targets):
        yield f"pdm lock{' --append' if number else ''}{target}"


def _target(decision: SnippetDecision, arch: Arch) -> str:
    """Return how PDM calls a platform on which all of its wheels can be installed."""
    if arch.system != "linux":
        return f"{arch.system}_{arch.name}"
    needed = _newest_glibc(offer for pin in decision.pins if pin.arch == arch for offer in pin.offers)
    return f"manylinux_2_{max(_OLDEST, needed)}_{arch.name}"


def render_pip(decisions: Sequence[SnippetDecision], direct: Direct) -> str:
    """Return requirements.txt."""
    decision, *_ = decisions
    named = places_to_name(decisions, direct)
    words = ["requirements.txt; then `pip install -r requirements.txt`"]
    if any(not place.flat for place in named):
        words.append(
            "pip asks every index for every name: name none that you do not trust (dependency confusion); "
            "PyPI takes no version with a label, so that those pins are safe"
        )
    options = [f"{'--find-links' if place.flat else '--extra-index-url'} {place.url}" for place in named]
    return "\n".join([*snippet_header(decisions, words), *options, *requirement_lines(decision, direct)])


def render_pixi(decisions: Sequence[SnippetDecision], direct: Direct, subdirs: Mapping[str, str]) -> str:
    """Return pixi.toml; `subdirs` is how conda calls platforms.

    Raises ConfigError for a platform that has no such name, and where Pythons cannot be kept apart.
    """
    first, *_ = decisions
    names = {arch.name: _subdir(subdirs, arch) for arch in first.platforms}
    shell = extra_option(decisions, "pixi shell -e")
    lines = [*snippet_header(decisions, ["pixi.toml; then `pixi install`" + shell]), "", "[workspace]"]
    lines += ['name = "my-project"', 'channels = ["conda-forge"]']
    lines.append(f"platforms = [{', '.join(toml_string(name) for name in names.values())}]")
    lines += ["", "[dependencies]", f"python = {toml_string(python_range(first.pythons))}"]
    needed = _newest_glibc(offer for one in decisions for pin in one.pins for offer in pin.offers)
    if needed > _PROMISED:
        lines += ["", "[system-requirements]", f'libc = "2.{needed}"']
    if folders := [place for place in places_to_name(decisions, direct) if place.flat]:
        found = ", ".join(toml_inline({"path": unquote(urlsplit(place.url).path)}) for place in folders)
        lines += ["", "[pypi-options]", f"find-links = [{found}]"]
    for one in decisions:
        lines += _tables(one, direct, names, f"feature.{one.variant}." if len(decisions) > 1 else "")
    if len(decisions) > 1:
        lines += ["", "[environments]", *(f'{one.variant} = ["{one.variant}"]' for one in decisions)]
    return "\n".join(lines)


def _tables(decision: SnippetDecision, direct: Direct, names: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yield what is the same everywhere, and a table for each platform of what is not."""
    by_package = {name: decision.of_package(name) for name in decision.packages}
    values = {name: {pin.arch.name: _pixi_value(pin, direct) for pin in pins} for name, pins in by_package.items()}
    everywhere = {name for name, own in values.items() if len(set(own.values())) == 1}
    common = [f"{name} = {next(iter(values[name].values()))}" for name in values if name in everywhere]
    if decision.numpy:
        common.append(f"numpy = {toml_string(decision.numpy.removeprefix('numpy'))}")
    if common:
        yield from ("", f"[{prefix}pypi-dependencies]", *common)
    for arch, subdir in names.items():
        if own := [f"{name} = {values[name][arch]}" for name in values if name not in everywhere]:
            yield from ("", f"[{prefix}target.{subdir}.pypi-dependencies]", *own)


def _pixi_value(pin: PlatformPin, direct: Direct) -> str:
    if direct(pin):
        if len(pin.offers) > 1:
            raise ConfigError(
                f"--direct: pixi has no markers, and {pin.package} has a separate wheel for each of Python "
                f"{', '.join(pin.pythons)}: leave --direct out, or use another tool",
                code="pixi-needs-one-wheel",
            )
        return toml_inline({"url": wheel_address(pin.offers[0])})
    version = f"=={pin.version}"
    if pin.place.default or pin.place.flat:
        return toml_string(version)
    return toml_inline({"version": version, "index": pin.place.url})


def _subdir(subdirs: Mapping[str, str], arch: Arch) -> str:
    if arch.name not in subdirs:
        raise ConfigError(
            f"--platform {stock.platform_name(arch)}: conda.toml has no pixi platform for it, only "
            f"{', '.join(subdirs) or 'none'}",
            code="no-conda-platform",
        )
    return subdirs[arch.name]


def render_poetry(decisions: Sequence[SnippetDecision], direct: Direct) -> str:
    """Return pyproject.toml for Poetry 2."""
    decision, *_ = decisions

    def addressed(pin: PlatformPin) -> bool:
        unreadable = pin.place.flat or pin.place.local or is_shadowed(decision, pin)
        return direct(pin) or (bool(pin.offers) and unreadable)

    words = ["pyproject.toml; then `poetry lock` and `poetry install`"]
    if any(addressed(pin) and not direct(pin) for pin in decision.pins):
        words.append(
            "wheels are named by their address where Poetry cannot look them up: see docs/how-to/write-project-files.md"
        )
    lines = [*snippet_header(decisions, words), "", *project_table(decisions, addressed)]
    sources = {
        package: [
            ({"markers": marker} if marker else {}) | {"source": place.name}
            for place, marker in source_lines(decision, package, addressed)
        ]
        for package in decision.packages
    }
    lines += ["", "[tool.poetry]", "package-mode = false"]
    lines += _source_tables("[tool.poetry.dependencies]", sources)
    for place in places_to_name(decisions, addressed):
        lines += ["", "[[tool.poetry.source]]", f"name = {toml_string(place.name)}"]
        lines += [f"url = {toml_string(place.url)}", 'priority = "explicit"']
    return "\n".join(lines)


def _source_tables(heading: str, sources: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """Return the lines that name the sources of packages."""
    lines = []
    for package, tables in sources.items():
        single = len(tables) == 1 and "markers" not in tables[0]
        if tables:
            lines.append(f"{package} = {toml_inline(tables[0]) if single else toml_inlines(tables)}")
    return ["", heading, *lines] if lines else []


def render_uv(decisions: Sequence[SnippetDecision], direct: Direct) -> str:
    """Return pyproject.toml for uv."""
    words = ["pyproject.toml; then `uv lock` and `uv sync`" + extra_option(decisions, "uv sync --extra")]
    lines = [*snippet_header(decisions, words), "", *project_table(decisions, direct), "", "[tool.uv]"]
    every = [stock.platform_marker(arch) for arch in decisions[0].platforms]
    lines += [f"{key} = {toml_array(every)}" for key in ("environments", "required-environments")]
    if len(decisions) > 1:
        extras = ", ".join(toml_inline({"extra": one.variant}) for one in decisions)
        lines.append(f"conflicts = [[{extras}]]")
    sources = {
        package: [
            {"index": place.name}
            | ({"extra": one.variant} if len(decisions) > 1 else {})
            | ({"marker": marker} if marker else {})
            for one in decisions
            for place, marker in source_lines(one, package, direct)
        ]
        for package in decisions[0].packages
    }
    lines += _source_tables("[tool.uv.sources]", sources)
    for place in places_to_name(decisions, direct):
        lines += ["", "[[tool.uv.index]]", f"name = {toml_string(place.name)}", f"url = {toml_string(place.url)}"]
        lines += [*(['format = "flat"'] if place.flat else []), "explicit = true"]
    return "\n".join(lines)
