"""Read build_configs/ into values; all problems are collected into one error."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchmill.config import facts_model, model
from torchmill.config.facts_model import Archive, CondaName, ImageFacts, ToolkitSource
from torchmill.config.matrix import CPU, is_within
from torchmill.config.model import Cuda, Edition, Facts, Package, Release
from torchmill.config.toml_reader import TomlTable, is_version, read_toml, version_key
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout, facts_folder
from torchmill.core.stat_cache import StatCache

T = TypeVar("T")
_SAID_ONCE = (
    "date",
    "commit",
    "built_from",
    "wheels",
    "explained",
)  # of a release that pairs with several torch
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")  # of a file or a folder, wherever it is made
PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked


def _named(file: TomlTable, kind: type[T]) -> Iterator[T]:
    """Yield what each table of a file says; the table's own name is a field of it."""
    for name in list(file.data):
        yield file.table(name).read(kind, name=name)


def _causes(file: TomlTable, names: Mapping[str, str]) -> Iterator[model.FailureCause]:
    """Yield the catalogue of failures, in its order; `names` are the tables that `known` may name."""
    for table in file.tables("cause"):
        table.where = f"{file.where}: {table.data.get('name')}"
        cause = table.read(model.FailureCause)
        if cause.known not in {"", *names}:
            table.problem(
                f"'known' is '{cause.known}', expected a table of known_names.toml: {', '.join(names)}"
            )
        yield replace(cause, known=names.get(cause.known, ""))


def _conda_names(file: TomlTable) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        projects = table.texts("pypi")
        name = table.read(CondaName, name=table.text("conda"))
        for project in projects:
            if project != canonicalize_name(project):
                table.problem(f"'{project}' must be written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' already has a name, {found[project].name}")
            found[project] = name
    return found


def _images(file: TomlTable, archives: TomlTable) -> ImageFacts:
    """Return what is known of container images; without the file nothing is."""
    if not file.data:
        return ImageFacts()
    uv = file.table("uv")
    found = file.read(
        ImageFacts,
        bases=tuple(_base_image(table) for table in file.tables("base")),
        archives=archives.read_each("archive", Archive),
        uv=uv.version("version"),
        uv_pythons=uv.pythons("pythons"),
    )
    uv.text("source")
    uv.check_unknown_keys()
    return found


def _base_image(table: TomlTable) -> facts_model.BaseImage:
    found = table.read(
        facts_model.BaseImage, digest=table.text("digest", ""), source=table.text("source")
    )
    if found.digest and not DIGEST.fullmatch(found.digest):
        table.problem(f"'digest' is '{found.digest}', expected sha256: and 64 hexadecimal digits")
    if found.role in {"cuda", "toolkit"} and found.toolkit is None:
        table.problem("key 'toolkit' is missing")
    return found


def _wheel_code(file: TomlTable, package: str) -> Iterator[facts_model.WheelCode]:
    """Yield what was read in the wheels of a package."""
    for table in file.tables("wheel"):
        code = table.map(
            "code", lambda code, name: code.table(name).read(facts_model.ReadLibrary, name=name)
        )
        yield table.read(facts_model.WheelCode, package=package, code=code)


def _of_official_wheels(
    file: Callable[[str], TomlTable], packages: Iterable[str]
) -> dict[str, Any]:
    """Return what is known of official wheels and of machines that they are for, by the field of the facts."""
    beside = file("wheel_code/nvidia")
    return {
        "wheel_code": tuple(
            one for name in packages for one in _wheel_code(file(f"wheel_code/{name}"), name)
        ),
        "package_code": beside.read_each("package", facts_model.PackageCode),
        "feature_libraries": beside.read_each("feature", facts_model.FeatureLibrary),
        "processor_needs": file("processors").read_each("need", facts_model.ProcessorNeed),
        "boards": file("gpu_hosts").read_each("board", facts_model.GpuHost),
        "board_indexes": file("board_indexes").read_each("index", facts_model.BoardIndex),
    }


def _toolkit_sources(file: TomlTable) -> Iterator[ToolkitSource]:
    """Yield what each provider has, in the order in which they are asked."""
    for provider in PROVIDERS:
        for table in file.tables(provider):
            versions, where = table.texts("versions", ()), table.texts("where", ())
            yield table.read(ToolkitSource, provider=provider, versions=versions, where=where)


def load_facts(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    What the files hold is remembered in the user's cache. Raises ConfigError as `read_facts` does.
    """
    cache = StatCache(Layout.of_checkout(root).facts_cache)
    try:
        return read_facts(facts_folder(root), cache)
    finally:
        cache.save()


def read_facts(folder: Path, cache: StatCache | None = None) -> Facts:
    """Read the facts in `folder`; `cache` remembers what files hold.

    Raises ConfigError with one line for each problem found.
    """
    problems: list[str] = []
    opened: list[TomlTable] = []

    def file(name: str, *, required: bool = False) -> TomlTable:
        opened.append(read_toml(folder / f"{name}.toml", problems, required=required, cache=cache))
        return opened[-1]

    read = (
        read_package(path, problems, cache) for path in sorted((folder / "packages").glob("*.toml"))
    )
    packages = {package.name: package for package in read}
    if not packages:
        problems.append(f"{folder} holds no packages/*.toml")
    arch_names, runs, linking, conda = (
        file("arch_names"),
        file("runs"),
        file("linking"),
        file("conda"),
    )
    gpus, toolkits = file("gpus"), file("toolkits", required=True)
    facts = Facts(
        packages,
        read_releases(folder / "releases", packages, problems, cache),
        tuple(
            toolkits.table(one).read(
                model.Toolkit, version=one, variant=f"cu{one.replace('.', '')}"
            )
            for one in sorted(toolkits.data, key=version_key)
        ),
        {arch.name: arch for arch in _named(file("arches", required=True), model.Arch)},
        folder / "patches",
        capabilities=tuple(
            sorted(_named(gpus, model.Capability), key=lambda one: version_key(one.name))
        ),
        arch_names=arch_names.read_each("name", model.ArchName),
        arch_spelling=arch_names.map("spelling", TomlTable.bounds),
        causes=tuple(_causes(file("causes"), file("known_names").map("names", TomlTable.text))),
        assumed=runs.table("assumed").read(facts_model.CostAssumptions) if runs.data else None,
        runs=runs.read_each("run", facts_model.MeasuredRun),
        peaks=runs.read_each("peak", facts_model.CompilePeak),
        linking=linking.read(facts_model.LinkFacts) if linking.data else None,
        units=file("units").read_each("unit", model.KnownUnit),
        toolkit_sources=tuple(_toolkit_sources(file("toolkit_sources"))),
        toolkit_parts=tuple(_named(file("toolkit_parts"), facts_model.ToolkitPart)),
        elsewhere=file("indexes").read_each("wheels", model.OfferedWheels),
        official=file("official").read_each("part", model.OfficialPart),
        kept_libraries=file("kept_libraries").texts("names", ()),
        images=_images(file("images"), file("archives")),
        conda=conda.read(facts_model.CondaFacts, names=_conda_names(conda)) if conda.data else None,
        makers=tuple(_maker(table) for table in file("makers").tables("maker")),
        **_of_official_wheels(file, packages),
    )
    for table in opened:
        table.check_unknown_keys()
    problems += [
        f"arches.toml: '{name}' cannot name an arch: use letters, digits and _"
        for name in facts.arches
        if not re.fullmatch(r"\w+", name, re.ASCII)
    ]
    _cross_check(facts, problems)
    if problems:
        lines = "\n".join(f"  {line}" for line in problems)
        raise ConfigError(f"build_configs has problems:\n{lines}", code="facts-invalid")
    return facts


def _maker(table: TomlTable) -> facts_model.DeviceMaker:
    found = table.read(facts_model.DeviceMaker)
    for pattern in found.names:
        try:
            re.compile(pattern)
        except re.error as error:
            table.problem(f"'names' has '{pattern}', which is no regular expression: {error}")
    return found


def _cross_check(facts: Facts, problems: list[str]) -> None:
    """Note what no single file can know: names that lead nowhere."""
    problems.extend(
        f"{release}: unknown arch '{arch}'; arches.toml has {', '.join(facts.arches)}"
        for releases in facts.releases.values()
        for release in releases
        for arch in release.arches
        if arch not in facts.arches
    )
    variants = {CPU, *(one.variant for one in facts.toolkits)}
    tried = variants | {f"{variant}-{arch}" for variant in variants for arch in facts.arches}
    problems.extend(
        f"{release}: 'tried' names '{key}', expected a variant, as in 'cu118' or 'cu118-aarch64'"
        for releases in facts.releases.values()
        for release in releases
        for key in release.tried
        if key not in tried
    )
    named = [(f"units.toml: '{one.pattern}'", one.package) for one in facts.units]
    named += [("runs.toml", one.package) for one in facts.runs] + [
        ("runs.toml", one.package) for one in facts.peaks
    ]
    problems.extend(
        f"{where}: unknown package '{name}'; packages/ has {', '.join(facts.packages)}"
        for where, name in named
        if name and name not in facts.packages
    )
    for package in facts.packages.values():
        problems.extend(_misnamed(facts, package))
        for rule in package.rules:
            problems.extend(
                f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"
                for patch in rule.patches
                if not (facts.patches / package.name / patch).is_file()
            )


def _misnamed(facts: Facts, package: Package) -> Iterator[str]:
    """Yield what a package says of another that is not so."""
    for key, names in (("after", filter(None, [package.after])), ("imports", package.imports)):
        for name in names:
            if name not in facts.packages:
                yield f"{package.name}.toml: '{key}' names '{name}'; packages/ has {', '.join(facts.packages)}"
    for other in facts.packages.values():
        if other.session == package.session and other.name < package.name:
            yield f"{package.name}.toml: 'session' is '{package.session}', which is that of {other.name}"


def read_package(path: Path, problems: list[str], cache: StatCache | None) -> Package:
    """Read what is known of a package in all its releases."""
    file = read_toml(path, problems, cache=cache)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = file.read(
        Package,
        tag=file.template("tag", ("version",), "v{version}"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        rules=tuple(table.read(model.Rule, name=table.where) for table in file.tables("rule")),
        debian=debian.map("sources", TomlTable.text),
        debian_fill=debian.map("fill", lambda fill, suite: fill.map(suite, TomlTable.text)),
        editions=tuple(_edition(table) for table in file.tables("release")),
    )
    debian.check_unknown_keys()
    _check_names(file, found)
    for key, lines in (("smoke", found.smoke), ("gpu_smoke", found.gpu_smoke)):
        try:  # which need not be lines that this Python runs
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            file.problem(f"{key!r}, line {error.lineno}: {error.msg}")
    if not found.repository and found.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if found.editions and found.after is None:
        file.problem(
            "it has [[release]], which pair with a release of 'after', but it has no 'after'"
        )
    return found


def _check_names(file: TomlTable, package: Package) -> None:
    """Note names of a package that cannot be those of files and folders: facts may come from anybody."""
    tag = package.tag.replace("{version}", "1.0")
    names = {
        "name": package.name,
        "session": package.session,
        "import_name": package.import_name,
        "tag": tag,
    }
    for key, name in {**names, "checks": package.checks}.items():
        if name and not _PLAIN_NAME.fullmatch(name):
            file.problem(
                f"'{key}' is '{name}', which cannot name a folder: use letters, digits and . _ + -"
            )
    for patch in (patch for rule in package.rules for patch in rule.patches):
        if not all(_PLAIN_NAME.fullmatch(part) for part in patch.split("/")):
            file.problem(
                f"patch '{patch}' cannot be a file in patches/{package.name}/: use letters, digits and . _ + -"
            )


def _edition(table: TomlTable) -> Edition:
    if "torch" not in table.data:
        table.problem(
            "'torch' is missing: it says which releases it goes with, such as '>=2.2,<2.13'"
        )
    return table.read(Edition, version=table.version("version"))


def read_releases(
    folder: Path, packages: Mapping[str, Package], problems: list[str], cache: StatCache | None
) -> dict[str, tuple[Release, ...]]:
    """Read every release file: the base package's table first, its dependents after it."""
    found: dict[str, list[Release]] = {name: [] for name in packages}
    in_order = sorted(packages.values(), key=lambda package: package.after is not None)
    for path in sorted(folder.glob("*.toml")):
        file = read_toml(path, problems, cache=cache)
        base: Release | None = None
        for package in in_order:
            if package.name in file.data:
                release = _release(file.table(package.name), package, base)
                base = base or release
                found[package.name].append(release)
            file.requested.append(package.name)
        file.check_unknown_keys()
    for package in packages.values():
        if package.editions and package.after in found:
            found[package.name] += _declared(
                package, found[package.name], found[package.after], problems
            )
    for all_ in found.values():
        all_.sort(key=lambda one: (version_key(one.version), version_key(one.torch or "0")))
    return {name: _completed(all_) for name, all_ in found.items()}


def _declared(
    package: Package, listed: Iterable[Release], bases: Iterable[Release], problems: list[str]
) -> list[Release]:
    """Return what a package's own file declares: with each torch goes the newest release that takes it."""
    where = f"{package.name}.toml"
    problems.extend(
        f"{where}: {one} stands in releases/ too; say it in one place" for one in listed
    )
    editions = sorted(package.editions, key=lambda one: version_key(one.version), reverse=True)
    taking = (
        (base, next((one for one in editions if is_within(one.torch, base.version)), None))
        for base in bases
    )
    found = [_of_edition(package, edition, base) for base, edition in taking if edition is not None]
    used = {release.version for release in found}
    problems.extend(
        f"{where}: release {one.version}: {package.after} '{one.torch}' leaves it no release of "
        f"{package.after} that goes with no newer one"
        for one in editions
        if one.version not in used
    )
    return found


def _of_edition(package: Package, edition: Edition, base: Release) -> Release:
    return Release(
        package=package.name,
        version=edition.version,
        tag=package.tag.format(version=edition.version),
        commit=edition.commit,
        pythons=tuple(one for one in base.pythons if is_within(edition.python, one.rstrip("t"))),
        arches=tuple(one for one in base.arches if one in (edition.arches or base.arches)),
        cuda=base.cuda if edition.cuda is None else edition.cuda,
        cuda_official=base.cuda_official,
        torch=base.version,
        wheel_tag=edition.wheel_tag,
        source=edition.source,
        date=edition.date,
        cuda_pypi=base.cuda_pypi,
        sha256=edition.sha256,
        stable_abi=edition.stable_abi,
        tried=dict.fromkeys(edition.built, edition.source),
    )


def _completed(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases of a package; one that pairs with several torch is described where it is first."""
    found: dict[str, Release] = {}
    completed = []
    for release in releases:
        first = found.setdefault(release.version, release)
        said = {name: getattr(release, name) or getattr(first, name) for name in _SAID_ONCE}
        completed.append(replace(release, **said))
    return tuple(completed)


def _release(table: TomlTable, package: Package, base: Release | None) -> Release:
    version = table.version("version")
    cuda = table.table("cuda")
    if base is not None and not cuda.data:
        toolkits = {
            "cuda": base.cuda,
            "cuda_official": base.cuda_official,
            "cuda_pypi": base.cuda_pypi,
        }
    else:
        toolkits = {
            "cuda": cuda.specifier("range"),
            "cuda_official": cuda.map(
                "official", lambda inner, name: _cuda(inner.table(name), name)
            ),
            "cuda_pypi": cuda.optional("pypi"),
        }
    cuda.check_unknown_keys()
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        pythons=table.pythons("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        torch=base.version if base else None,
        built_from=_built_from(table),
        sha256=None,
        stable_abi=None,
        **toolkits,
    )


def _built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)


def _cuda(table: TomlTable, version: str) -> Cuda:
    if not is_version(version):
        table.problem(f"'{version}' is not a version of CUDA, such as '12.4'")
    lists = {
        "x86_64": table.optional("capabilities"),
        "aarch64": table.optional("capabilities_aarch64"),
    }
    requires = table.texts("requires", ())
    for text in requires:
        try:
            Requirement(text)
        except InvalidRequirement:
            table.problem(f"'requires' has '{text}', which is not a requirement (PEP 508)")
    pinned = {
        library: table.optional(library)
        or next((one.partition("==")[2] for one in requires if f"-{library}-" in one), None)
        for library in ("cusparselt", "nvshmem")
    }
    capabilities = {arch: listed for arch, listed in lists.items() if listed}
    return table.read(Cuda, capabilities=capabilities, requires=requires, **pinned)
