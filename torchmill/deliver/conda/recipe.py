"""Compose the recipes of conda packages from a wheel and its cell.

The main package has the contents of the wheel. For torch there is also a metapackage, which is
empty and requires the main package, and on request one with the libraries for C++. An extension, a
package that is built against torch (`Package.after`), has the main package only.

`depends` are the requirements of a conda package. `constrains` are requirements that hold only if
the package that they name is installed. `run_exports` are the requirements that another package
gets if it is compiled against this one.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any

from millpress import wheel_file, wheel_writer
from packaging.version import Version

from torchmill.config.build import CPU, Build
from torchmill.config.conda_facts import CondaFacts
from torchmill.config.facts import Facts
from torchmill.deliver.conda import requirements
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.plan.cell import Cell
from torchmill.plan.plan import Plan
from torchmill.wheel import dist_files
from torchmill.wheel.finished_wheel import FinishedWheel

NOARCH = "noarch"  # the folder of a channel for packages of all machines
UNKNOWN = "UNKNOWN"  # old versions of setuptools write this into fields without a value


@dataclass(frozen=True, slots=True)
class CondaRecipe:
    """The name, the requirements and the metadata of a package."""

    name: str  # "pytorch"
    version: str  # without the local label, which conda has no use for
    build: str  # "py3.10_cpu_0"
    number: int
    subdir: str  # "linux-64"
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    run_exports: Mapping[str, tuple[str, ...]]
    imports: tuple[str, ...]  # the modules that the package's test imports
    license: str | None
    about: Mapping[str, Any]
    stamp: datetime  # of the package and of all files in it
    index: Mapping[str, object]  # fields for info/index.json, by which clients choose among builds

    @property
    def file(self) -> str:
        """Return the name of the package's file."""
        return f"{self.name}-{self.version}-{self.build}.conda"


def compose_recipes(
    verified: VerifiedWheel,
    wheel: FinishedWheel,
    symbols: Iterable[str],
    options: ProductOptions,
) -> list[CondaRecipe]:
    """Return the recipes of all packages of a wheel, the main one first.

    An extension has only the main package. `symbols` are the symbol versions of libstdc++ that the
    wheel's libraries need. Raises the same errors as `compose_recipe`.
    """
    facts = verified.facts
    build = verified.cell.build
    package = facts.packages[build.package]
    main = compose_recipe(facts, verified.cell, wheel, symbols, os.environ, number=options.number)
    if package.after:
        return [main]
    # The other packages have no module that a test could import, and their metadata names no wheel.
    about = {key: value for key, value in main.about.items() if key != "extra"}
    bare = replace(main, imports=(), about=about)
    recipes = [main, _metapackage(bare, "cuda" if build.cuda else CPU)]
    if options.libtorch:
        conda = requirements.conda_facts(facts)
        recipes.append(_libtorch_recipe(conda, bare, f"lib{package.import_name}"))
    return recipes


def _metapackage(bare: CondaRecipe, kind: str) -> CondaRecipe:
    """Return the recipe of an empty package that requires any build with CUDA, or any without.

    It has the name that conda-forge gives such a package: "pytorch-gpu", "pytorch-cpu".
    """
    suffix = "gpu" if kind == "cuda" else kind
    return replace(
        bare,
        name=f"{bare.name}-{suffix}",
        build="0",
        number=0,
        subdir=NOARCH,
        depends=(f"{bare.name} {bare.version} *{kind}*",),
        constrains=(),
        run_exports={},
        index={"noarch": "generic"},  # as opposed to "python": no files are compiled on installing
    )


def _libtorch_recipe(conda: CondaFacts, bare: CondaRecipe, name: str) -> CondaRecipe:
    """Return the recipe of the libraries and headers for C++, which need no Python."""
    nvidia_names = set()
    for project, conda_name in conda.names.items():
        if project.startswith("nvidia-"):
            nvidia_names.add(conda_name.name)
    # virtual packages ("__glibc", "__cuda"), and CUDA with its libraries
    depends = [
        spec
        for spec in bare.depends
        if spec.startswith(("__", "cuda")) or spec.partition(" ")[0] in nvidia_names
    ]
    exports = [spec.replace(bare.name, name, 1) for spec in bare.run_exports["weak"]]
    _, _, build_without_python = bare.build.partition("_")
    return replace(
        bare,
        name=name,
        build=build_without_python,
        depends=tuple(depends),
        constrains=tuple(spec for spec in bare.constrains if "python" not in spec),
        run_exports={"weak": tuple(exports)},
    )


def compose_recipe(
    facts: Facts,
    cell: Cell,
    wheel: FinishedWheel,
    symbols: Iterable[str],
    environ: Mapping[str, str],
    *,
    number: int | None = None,
) -> CondaRecipe:
    """Return the recipe of the package of a cell's wheel.

    `symbols` are the symbol versions of libstdc++ that its libraries need. `number` is the build
    number, by default the wheel's, else 0. Raises ConfigError, ImpossibleBuildError, DeliveryError
    for whatever has no name in conda, and OptionError as `package_timestamp` does.
    """
    conda = requirements.conda_facts(facts)
    build = cell.build
    package = facts.packages[build.package]
    name = requirements.conda_package_name(conda, wheel.name)
    version = wheel.version.public
    if number is None:
        number = wheel.build[0] if wheel.build else 0
    toolkit = None
    if build.cuda:
        toolkit = str(wheel.manifest.get("toolkit") or build.cuda)
    constrains = [requirements.abi_requirement(build)]
    constrains += requirements.libstdcxx_requirements(conda, symbols)
    depends = []
    if toolkit:
        constrains.append(requirements.toolkit_constraint(toolkit))
        depends.append(requirements.driver_requirement(toolkit))
    depends.append(requirements.python_requirement(build))
    depends += requirements.platform_requirements(wheel.platforms)
    depends += requirements.compiled_requirements(conda, package.name, wheel.manifest)
    depends += requirements.wheel_requirements(facts, wheel.requires, build)
    headers = wheel_file.parse_headers(wheel.metadata)
    license_name = _license(conda, headers)
    stamp = package_timestamp(environ, cell.release.upstream.date)
    return CondaRecipe(
        name=name,
        version=version,
        build=requirements.build_string(
            facts,
            build.python,
            build.variant,
            wheel.version.local,
            cudnn=wheel.manifest.get("cudnn") if package.after is None else None,
            number=number,
        ),
        number=number,
        subdir=requirements.conda_subdir(conda, build.arch, environ),
        depends=requirements.merge_specs(depends),
        constrains=requirements.merge_specs(constrains),
        run_exports={"weak": (f"{name} >={version},<{_next_minor(wheel.version)}.0a0",)},
        imports=(package.import_name,),
        license=license_name,
        about=_about(headers, license_name, package.source.repository, wheel),
        stamp=stamp,
        index=_preference_fields(facts, build, toolkit, stamp),
    )


def _next_minor(version: Version) -> str:
    """Return the next minor version, "1.9" after 1.8.2.

    Code that is compiled against a package is loaded only by the same minor version. conda writes
    the epoch of a version as Python does, "1!2.9":
    https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html
    """
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{version.major}.{version.minor + 1}"


def _license(conda: CondaFacts, headers: Message) -> str | None:
    """Return the SPDX identifier of a wheel's licence; None if METADATA has none."""
    text = str(headers.get("License-Expression") or headers.get("License") or "").strip()
    first_line = text.partition("\n")[0].strip()  # some wheels have the whole text in this field
    if first_line in {"", UNKNOWN}:
        return None
    return conda.licenses.get(first_line, first_line)


def _preference_fields(
    facts: Facts, build: Build, toolkit: str | None, stamp: datetime
) -> dict[str, object]:
    """Return the fields that make clients prefer one build among several that fit.

    Builds with CUDA are preferred, and among them the build with the newest toolkit.
    """
    if toolkit:
        # Of builds that are otherwise alike, clients take the latest by its timestamp, which is in
        # milliseconds. A newer toolkit therefore adds more seconds to it.
        major, minor = map(int, toolkit.split(".")[:2])
        seconds = int(stamp.timestamp()) + 100 * major + minor
        return {"timestamp": seconds * 1000}
    if build.variant == CPU and facts.arches[build.arch].system == "linux":
        # Clients take a package with a feature only if no other fits.
        return {"track_features": CPU}
    return {}


def package_timestamp(environ: Mapping[str, str], date: str | None) -> datetime:
    """Return the time that a package and its files carry: SOURCE_DATE_EPOCH, or the release's day.

    `date` is that day, "2022-12-15"; None if it is not known: then it is 1980-01-01. Raises
    OptionError if the variable is not a number of seconds that a package can carry.
    """
    if wheel_writer.EPOCH in environ:
        return datetime.fromtimestamp(wheel_writer.source_date_epoch(environ), UTC)
    return datetime.fromisoformat(date or "1980-01-01").replace(tzinfo=UTC)


def planned_package(facts: Facts, cell: Cell, plan: Plan, cudnn: str | None) -> str:
    """Return the path in dist/ of a planned wheel's package. Raises as `compose_recipe` does."""
    conda = requirements.conda_facts(facts)
    build = cell.build
    file_name = wheel_file.parse_file_name(Path(plan.wheel.file_name))
    version = file_name.version
    string = requirements.build_string(
        facts,
        build.python,
        build.variant,
        version.local,
        cudnn=None if facts.packages[build.package].after else cudnn,
        number=file_name.build[0] if file_name.build else 0,
    )
    subdir = requirements.conda_subdir(conda, build.arch, {})
    name = requirements.conda_package_name(conda, file_name.project)
    return f"conda/{subdir}/{name}-{version.public}-{string}.conda"


def _about(
    headers: Message, license_name: str | None, repository: str, wheel: FinishedWheel
) -> dict[str, Any]:
    """Return the fields of info/about.json: a description, and the wheel in the package."""
    pages = {}
    for line in headers.get_all("Project-URL", []):
        label, _, url = line.partition(",")
        pages[label.strip().casefold()] = url.strip()
    fields = {
        "summary": headers.get("Summary"),
        "license": license_name,
        "home": headers.get("Home-page") or pages.get("homepage"),
        "doc_url": pages.get("documentation"),
        "dev_url": repository.removesuffix(".git"),
    }
    about: dict[str, Any] = {
        key: value for key, value in fields.items() if value and value != UNKNOWN
    }
    origin = {"wheel": wheel.path.name, "sha256": wheel.sha256}
    tag = wheel.manifest.get("tag")
    if tag:
        origin["tag"] = str(tag)
    commit = dist_files.proven_commit(wheel.manifest)
    if commit:
        origin["commit"] = commit
    about["extra"] = {"torchmill": origin}
    return about
