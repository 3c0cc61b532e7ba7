"""The metadata of a conda package, computed from a wheel and its facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from packaging.version import Version

from torchmill.config.facts_model import CondaFacts
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError
from torchmill.deliver.conda import requirements
from torchmill.deliver.conda.requirements import CondaTarget
from torchmill.wheel.wheel_file import Distribution

EPOCH = "SOURCE_DATE_EPOCH"
FIRST, END = 315532800, 4354819200  # seconds since 1970: what a zip archive has dates for
UNKNOWN = "UNKNOWN"  # what setuptools of old wrote where it knew nothing


@dataclass(frozen=True, slots=True)
class CondaRecipe:
    """What a package is called, needs and tells."""

    name: str  # "pytorch"
    version: str  # without the local label, which conda has no use for
    build: str  # "py3.10_cpu_0"
    number: int
    subdir: str  # "linux-64"
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    run_exports: Mapping[str, tuple[str, ...]]
    imports: tuple[str, ...]  # that its test tries
    license: str | None
    about: Mapping[str, Any]
    stamp: datetime

    @property
    def file(self) -> str:
        """Return the name of the package's file."""
        return f"{self.name}-{self.version}-{self.build}.conda"

    @property
    def extra(self) -> dict[str, str]:
        """Return the files of info/ that tell what dependents are bound to, what is tested, and about it."""
        tests = [{"python": {"imports": list(self.imports), "pip_check": False}}]
        return {
            "about.json": json.dumps(self.about, indent=2, sort_keys=True),
            "run_exports.json": json.dumps(self.run_exports, indent=2, sort_keys=True),
            "tests/tests.yaml": json.dumps(tests, indent=2),  # every JSON is YAML
        }


def compose_recipe(
    facts: Facts,
    cell: Cell,
    wheel: Distribution,
    symbols: Iterable[str],
    environ: Mapping[str, str],
    *,
    number: int | None = None,
) -> CondaRecipe:
    """Return the recipe of a package from a cell's wheel.

    `symbols` are the versions that its libraries want of libstdc++; `number` is the build number, by default
    the wheel's, else 0. Raises ConfigError, ImpossibleBuildError, DeliveryError for what conda cannot name.
    """
    conda, build = requirements.conda_facts(facts), cell.build
    package = facts.packages[build.package]
    target = CondaTarget(build.python, build.variant, facts.arches[build.arch].system, build.arch)
    called = (facts, build.python, build.variant, wheel.variant)
    name, version = requirements.conda_package_name(conda, wheel.name), wheel.version.public
    minor = f"{Version(version).major}.{Version(version).minor + 1}"
    number = (*wheel.build, 0)[0] if number is None else number
    cudnn = _cudnn(cell, wheel.manifest) if package.after is None else None
    constrains = [requirements.abi_requirement(target), *requirements.libstdcxx_requirements(conda, symbols)]
    if build.cuda is not None:
        constrains += requirements.toolkit_requirements(str(wheel.manifest.get("toolkit") or build.cuda))
    depends = [
        requirements.python_requirement(target),
        *requirements.platform_requirements(wheel.platforms),
        *requirements.compiled_requirements(conda, package.name, wheel.manifest),
        *requirements.wheel_requirements(facts, wheel.requires, target),
    ]
    headers = HeaderParser().parsestr(wheel.metadata.decode("utf-8", "replace"))
    license_ = _license(conda, headers)
    return CondaRecipe(
        name=name,
        version=version,
        build=requirements.build_string(*called, cudnn=cudnn, number=number),
        number=number,
        subdir=requirements.conda_subdir(conda, build.arch, environ),
        depends=requirements.merge_specs(depends),
        constrains=requirements.merge_specs(constrains),
        run_exports={"weak": (f"{name} >={version},<{minor}.0a0",)},  # no other minor loads dependents' code
        imports=(package.import_name,),
        license=license_,
        about=_about(headers, license_, package.repository, wheel),
        stamp=package_timestamp(environ, cell.release.date),
    )


def package_timestamp(environ: Mapping[str, str], date: str | None) -> datetime:
    """Return the time that a package and all in it carry: SOURCE_DATE_EPOCH, or else the release's day.

    Raises ConfigError where the variable holds no number of seconds that a package can carry.
    """
    given = environ.get(EPOCH)
    if given is None:
        return datetime.fromisoformat(date or "1980-01-01").replace(tzinfo=UTC)
    if not given.isdecimal() or len(given) > len(str(END)) or int(given) >= END:
        raise ConfigError(
            f"{EPOCH}={given[:40]}: not a number of seconds that ends before 2108: unset it or correct it",
            code="invalid-epoch",
        )
    return datetime.fromtimestamp(max(FIRST, int(given)), UTC)


def _cudnn(cell: Cell, manifest: Mapping[str, Any]) -> str | None:
    """Return the version of cuDNN that a build has: of its manifest, else of the release's facts."""
    if cell.build.cuda is None:
        return None
    libraries = manifest.get("libraries")
    version = libraries.get("cudnn") if isinstance(libraries, Mapping) else None
    official = cell.release.cuda_official.get(cell.build.cuda)
    return version or (official.cudnn if official else None)


def _license(conda: CondaFacts, headers: Message) -> str | None:
    text = str(headers.get("License-Expression") or headers.get("License") or "").strip()
    first = text.partition("\n")[0].strip()  # some have the whole text there
    return conda.licenses.get(first, first) if first and first != UNKNOWN else None


def _about(headers: Message, license_: str | None, repository: str, wheel: Distribution) -> dict[str, Any]:
    urls = [line.partition(",") for line in headers.get_all("Project-URL", [])]
    pages = {label.strip().casefold(): url.strip() for label, _, url in urls}
    fields = {
        "summary": headers.get("Summary"),
        "license": license_,
        "home": headers.get("Home-page") or pages.get("homepage"),
        "doc_url": pages.get("documentation"),
        "dev_url": repository.removesuffix(".git"),
    }
    origin = {"wheel": wheel.file_name, "sha256": wheel.sha256}
    origin |= {key: str(wheel.manifest[key]) for key in ("tag", "commit") if wheel.manifest.get(key)}
    found: dict[str, Any] = {key: value for key, value in fields.items() if value and value != UNKNOWN}
    return found | {"extra": {"torchmill": origin}}
