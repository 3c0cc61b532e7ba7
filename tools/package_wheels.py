"""`invoke facts --wheels`: compare the recorded wheels of packages with the index, or record them.

Only the wheels on the index that pip uses are read, that is PyPI. Those of other places were
recorded by hand, and stay as they are.
"""

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import requests
from millpress import elf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tools.fact_schemas import schema_line
from tools.remote_wheel import cached_file, list_members, read_member, read_requirements
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.package_wheels import WheelFiles, WheelSource
from torchmill.config.release_lookup import base_package
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import ProgressDisplay
from torchmill.deliver.templates import toml_string
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile
from torchmill.plan.recorded_wheels import expand_braces

PYPI = "PyPI"
_INDEX_HINT = "check the network, or set PIP_INDEX_URL to another index"
_INSTALL = "{project}=={{version}}"
_REQUIRES = "Requires-Dist"
# xformers writes into its wheels what they were built with.
_BUILD_RECORD = re.compile(r"[^/]+/cpp_lib\.json")
_BY_RECORD = "cpp_lib.json in the wheel"
_BY_LIBRARIES = "the libraries that it needs"
_BY_PROGRAM = {"", _REQUIRES, _BY_RECORD, _BY_LIBRARIES}
_MOST_BYTES = 64 << 20  # of libraries in a wheel that are read to the end, packed
_LABEL_PARTS = re.compile(r"[\d.]+|[^\d.]+")
# Operators of a specifier that keeps newer releases of torch out.
_BOUNDING = {"==", "===", "~=", "<", "<="}
_HEAD = """\
# Wheels of {package} that exist, or that its workflow makes. `invoke facts --wheels --write` writes those on PyPI;
# those of other places were read by hand. docs/reference/facts.md says what the keys mean.
"""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What a wheel says of itself; texts are "" if it does not say."""

    torch: str = ""  # "==2.9.1"
    variant: str = ""  # of the torch that it was built against: "cu128"
    capabilities: str = ""  # "7.5;8.0+PTX"
    told_by: str = ""


def has_wheel_facts(package: Package) -> bool:
    """Tell whether wheels of a package are recorded in a file of their own.

    Those of torch, torchvision and torchaudio are in the files of releases.
    """
    return package.source.pypi is not None and bool(package.editions)


def read_index(
    facts: Facts, index: str, cache: Path, bars: ProgressDisplay
) -> Mapping[str, WheelSource]:
    """Return the wheels on the index by package, of packages that have facts about wheels.

    Packages whose project the index does not have are left out. Raises NetworkError.
    """
    places: dict[str, WheelSource] = {}
    base = base_package(facts).name
    today = datetime.now(UTC).date().isoformat()
    with http_session() as session:
        for package in facts.packages.values():
            project = package.source.pypi
            if project is None or not has_wheel_facts(package):
                continue
            files = package_index.find_project_files(session, index, project, _INDEX_HINT)
            if files is None:
                continue
            wheels = [file for file in files if is_recorded(file)]
            bar = bars.start_bar(f"wheels of {project}", len(wheels))
            records: dict[str, BuildRecord] = {}
            for done, file in enumerate(wheels, start=1):
                records[file.name] = _read_record(file, base, cache, session)
                bar.update(done, len(wheels), "wheels")
            bar.close()
            places[package.name] = WheelSource(
                name=PYPI,
                install=_INSTALL.format(project=project),
                source=f"https://pypi.org/simple/{project}/",
                evidence="listed",
                date=today,
                wheels=tuple(group_files(records)),
            )
    return places


def is_recorded(file: IndexFile) -> bool:
    """Tell whether a file is a wheel of a release that pip installs without being asked to."""
    try:
        _, version, _, _ = parse_wheel_filename(file.name)
    except InvalidWheelFilename:
        return False
    return not file.yanked and not version.is_prerelease


def _read_record(file: IndexFile, base: str, cache: Path, session: requests.Session) -> BuildRecord:
    """Return what a wheel says of itself; `base` is the project of torch."""
    path = cached_file(cache, file, "build.json")
    if path.exists():
        return BuildRecord(**json.loads(path.read_text(encoding="utf-8")))
    torch = required_torch(read_requirements(file, cache, session), base)
    record = BuildRecord(torch=torch, told_by=_REQUIRES if torch else "")
    members = list_members(file, session)
    for member in members:
        if _BUILD_RECORD.fullmatch(member.name):
            content = json.loads(read_member(file, member.name, session))
            record = with_build_record(record, content)
    libraries = [member for member in members if member.name.endswith(".so")]
    packed = sum(member.packed for member in libraries)
    if not record.variant and 0 < packed <= _MOST_BYTES:
        names = needed_libraries(read_member(file, member.name, session) for member in libraries)
        variant = needed_variant(names)
        if variant:
            told_by = "; ".join(filter(None, (record.told_by, _BY_LIBRARIES)))
            record = replace(record, variant=variant, told_by=told_by)
    values = {
        "torch": record.torch,
        "variant": record.variant,
        "capabilities": record.capabilities,
        "told_by": record.told_by,
    }
    write_atomically(path, json.dumps(values))
    return record


def required_torch(requirements: Iterable[str], base: str) -> str:
    """Return the specifier of a wheel's requirement of torch; "" if it takes any, or has none."""
    for line in requirements:
        requirement = Requirement(line)
        # One of an extra is for those who ask for it.
        is_optional = requirement.marker is not None and "extra" in str(requirement.marker)
        if canonicalize_name(requirement.name) == base and not is_optional:
            return str(requirement.specifier)
    return ""


def needed_libraries(libraries: Iterable[bytes]) -> set[str]:
    """Return the names of the libraries that some ELF files need. Other files are passed over."""
    names: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        for content in libraries:
            path.write_bytes(content)
            information = elf.read_elf(path)
            if information is not None:
                names.update(information.needed)
    return names


def needed_variant(names: Collection[str]) -> str:
    """Return the variant of the torch whose libraries are among those that a wheel needs.

    A wheel that needs torch's libraries and none of CUDA has no operators for GPUs: "cpu". One that
    links the runtime of CUDA statically, or needs none of torch's libraries, does not tell: "".
    """
    for name in names:
        runtime = re.fullmatch(r"libcudart\.so\.(\d+)(\.\d+)*", name)
        if runtime:
            return f"cu{runtime[1]}"
    is_torchs = "libtorch_cpu.so" in names or "libc10.so" in names
    has_cuda = any("cuda" in name or name.startswith("libcu") for name in names)
    return "cpu" if is_torchs and not has_cuda else ""


def with_build_record(record: BuildRecord, content: Mapping[str, Mapping[str, str]]) -> BuildRecord:
    """Return what a wheel says with the content of its cpp_lib.json added."""
    _, _, label = content.get("version", {}).get("torch", "").partition("+")
    listed = content.get("env", {}).get("TORCH_CUDA_ARCH_LIST") or ""
    told_by = "; ".join(filter(None, (record.told_by, _BY_RECORD)))
    return replace(record, variant=label, capabilities=";".join(listed.split()), told_by=told_by)


def group_files(records: Mapping[str, BuildRecord]) -> Iterator[WheelFiles]:
    """Yield the wheels in groups that say the same of themselves, the newest first.

    A requirement that only sets a lower bound, "torch>=2.3", does not tell which torch a wheel goes
    with if it uses Python's interface: its code is then compiled against that of one torch.
    """
    groups: dict[BuildRecord, list[str]] = {}
    newest: dict[BuildRecord, Version] = {}  # version of its wheels
    for name, record in records.items():
        _, version, _, tags = parse_wheel_filename(name)
        uses_python = any(tag.abi != "none" for tag in tags)
        operators = {specifier.operator for specifier in SpecifierSet(record.torch)}
        if uses_python and record.torch and _BOUNDING.isdisjoint(operators):
            told_by = record.told_by.replace(_REQUIRES, "").removeprefix("; ")
            record = replace(record, torch="", told_by=told_by)  # noqa: PLW2901 - the same record
        groups.setdefault(record, []).append(name)
        newest[record] = max(version, newest.get(record, version))
    for record in sorted(groups, key=newest.__getitem__, reverse=True):
        yield WheelFiles(
            files=tuple(compact_names(groups[record])),
            torch=SpecifierSet(record.torch) if record.torch else None,
            variant=record.variant,
            capabilities=record.capabilities,
            told_by=record.told_by,
        )


def compact_names(names: Iterable[str]) -> list[str]:
    """Return patterns with braces that stand for exactly these names of wheels.

    Names that differ in one part only are written as one: first the Python, then the platform, then
    the parts of the local version from the last to the first, and then the version.
    """
    by_form: dict[str, list[tuple[str, ...]]] = {}
    for name in sorted(names):
        head, python, abi, platform = name.removesuffix(".whl").rsplit("-", 3)
        package, _, full_version = head.partition("-")
        version, plus, label = full_version.partition("+")
        # Of "cu12torch2.8cxx11abiTRUE" the parts are letters and numbers in turn.
        labels = _LABEL_PARTS.findall(label)
        form = "".join(["{}-{}", plus, *("{}" for _ in labels), "-{}-{}.whl"])
        parts = (package, version, *labels, f"{python}-{abi}", platform)
        by_form.setdefault(form, []).append(parts)
    patterns: list[str] = []
    for form, rows in by_form.items():
        last = len(rows[0]) - 1
        for position in (last - 1, last, *range(last - 2, 0, -1)):
            rows = _merge_rows(rows, position)  # noqa: PLW2901 - the same rows, merged
        patterns += [form.format(*row) for row in rows]
    return patterns


def _merge_rows(rows: Iterable[tuple[str, ...]], position: int) -> list[tuple[str, ...]]:
    """Return rows of which those that differ in one position only are one, with braces there."""
    values: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in rows:
        values.setdefault((row[:position], row[position + 1 :]), []).append(row[position])
    return [(*before, _braces(texts), *after) for (before, after), texts in values.items()]


def _braces(values: Sequence[str]) -> str:
    """Return the text that stands for several: "{a,b}"; the text itself if it is one."""
    if len(values) == 1:
        return values[0]
    return "{" + ",".join(values) + "}"


def keep_handwritten(recorded: WheelSource | None, read: WheelSource) -> WheelSource:
    """Return a place as it was read, with what people wrote about its wheels before.

    People write what a wheel does not say of itself: a note, or what was found in its libraries.
    """
    if recorded is None:
        return read
    by_hand: list[WheelFiles] = []
    names_by_hand: set[str] = set()
    for group in recorded.wheels:
        if group.note or not _BY_PROGRAM.issuperset(group.told_by.split("; ")):
            by_hand.append(group)
            names_by_hand.update(_names(group))
    groups = list(by_hand)
    for group in read.wheels:
        names = [name for name in _names(group) if name not in names_by_hand]
        if names:
            groups.append(replace(group, files=tuple(compact_names(names))))
    return replace(read, wheels=tuple(groups))


def _names(group: WheelFiles) -> list[str]:
    """Return the names of the wheels in a group."""
    return [name for pattern in group.files for name in expand_braces(pattern)]


def compare_places(recorded: WheelSource | None, read: WheelSource) -> Iterator[str]:
    """Yield a clause for each difference between recorded wheels and those on the index."""
    recorded_names: set[str] = set()
    for group in recorded.wheels if recorded else ():
        recorded_names.update(_names(group))
    read_names = {name for group in read.wheels for name in _names(group)}
    if recorded is None:
        yield "nothing is recorded of PyPI"
    new = sorted(read_names - recorded_names)
    gone = sorted(recorded_names - read_names)
    if new:
        yield f"new: {', '.join(compact_names(new))}"
    if gone:
        yield f"no longer there: {', '.join(compact_names(gone))}"


def record_wheels(
    facts: Facts, index: str, cache: Path, bars: ProgressDisplay, *, write: bool
) -> list[str]:
    """Compare recorded wheels with the index, or write them, and return lines for the user."""
    lines: list[str] = []
    for package, read in read_index(facts, index, cache, bars).items():
        places = facts.package_wheels.get(package, ())
        recorded = next((place for place in places if place.name == PYPI), None)
        count = sum(len(_names(group)) for group in read.wheels)
        differences = list(compare_places(recorded, read))
        lines.append(f"{package}: {count} wheels on the index")
        lines += [f"  {difference}" for difference in differences]
        if write:
            others = [place for place in places if place.name != PYPI]
            path = write_places(facts.folder, package, [keep_handwritten(recorded, read), *others])
            lines.append(f"  wrote {path}")
    return lines


def write_places(folder: Path, package: str, places: Sequence[WheelSource]) -> Path:
    """Write the file of a package's wheels, and return its path."""
    name = f"package_wheels/{package}.toml"
    lines = [schema_line(name), "", _HEAD.format(package=package)]
    for place in places:
        lines += [
            "[[place]]",
            f"name = {toml_string(place.name)}",
            f"install = {toml_string(place.install)}",
            f"evidence = {toml_string(place.evidence)}",
        ]
        if place.date:
            lines.append(f"date = {toml_string(place.date)}")
        lines += [f"source = {toml_string(place.source)}", ""]
        for group in place.wheels:
            lines += [*_group_lines(group), ""]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, "\n".join(lines))
    return path


def _group_lines(group: WheelFiles) -> list[str]:
    """Return the lines of one [[place.wheel]]."""
    lines = ["[[place.wheel]]", "files = ["]
    lines += [f"    {toml_string(pattern)}," for pattern in group.files]
    lines.append("]")
    if group.torch is not None:
        lines.append(f"torch = {toml_string(str(group.torch))}")
    for key in ("variant", "capabilities", "told_by", "note"):
        value = getattr(group, key)
        if value:
            lines.append(f"{key} = {toml_string(value)}")
    return lines
