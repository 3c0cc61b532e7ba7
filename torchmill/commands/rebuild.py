"""`invoke rebuild`: build a wheel once more from its records, and compare both, byte for byte."""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchmill.cell.context import BuildContext, create_context
from torchmill.cell.patches import patch_files
from torchmill.cell.up_to_date import stage_inputs
from torchmill.commands.build_request import SourceWishes
from torchmill.commands.command import CommandOutput
from torchmill.commands.terminal import run_step
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package, find_release
from torchmill.core import console, formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import format_for_user
from torchmill.core.deletion import delete_paths
from torchmill.core.digests import hash_file
from torchmill.core.errors import (
    BuildError,
    ConfigError,
    DeliveryError,
    HostError,
    NetworkError,
    OtherWheelError,
    SourceError,
)
from torchmill.core.exits import print_now
from torchmill.core.locks import hold_folder
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.strict_json import load_object
from torchmill.core.suite_version import suite_version
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.deliver.wheel_comparison import wheel_differences
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.fetch.source import fetcher, source_dir
from torchmill.fetch.source.git_command import copy_or_link
from torchmill.fetch.source.request import PYPI, source_requests
from torchmill.fetch.source.source import Source
from torchmill.host.native import native_arch
from torchmill.plan import rebuild, wheel_name
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.cell_lookup import find_cell
from torchmill.plan.options import format_options
from torchmill.plan.rebuild import FirstBuild, SecondBuild
from torchmill.wheel import dist_files, statement

MOST_DIFFERENCES = 40  # lines that are printed
CONSTRAINTS = "constraints.txt"
_TITLES = ("the first build", "the second build")


def rebuild_wheel(
    facts: Facts,
    layout: Layout,
    *,
    wheel: str,
    into: str = "",
    torch: str = "",
    patch: Sequence[str] = (),
    mirror: str = "",
    from_: str = "",
    strict: bool = False,
    trust: bool = False,
) -> CommandOutput:
    """Build a wheel once more in a folder of its own, and say whether it is the same.

    `into` is that folder, empty or new; by default one in the state folder, which is emptied first,
    and again in the end if the wheel is the same. Inputs that are otherwise than at the first build
    are printed before the build; with `strict`, HostError is raised for them. Parts of the record
    that could run code of whoever wrote it are used only with `trust`, or for a wheel in dist/;
    else ConfigError is raised. The output raises OtherWheelError if the wheel has other bytes.
    """
    path = Path(wheel)
    first = _read_records(path)
    folder = Path(into).absolute() if into else layout.rebuild
    with ExitStack() as stack:
        if not into:
            busy = f"another run rebuilds a wheel in {folder}: wait for it"
            stack.enter_context(hold_folder(folder, 0, message=busy, code="rebuild-running"))
        options = _require_options(first, torch, patch)
        cell = _find_cell(facts, first)
        # A user who names a place of the source wants it from there.
        source = None if from_ else _find_source(first, layout)
        wheels = _wheels_beside(facts, cell, path, options)
        if not trust and not _is_own(layout, path):
            fetches = source is None and not (from_ or mirror)
            _require_trusted(first, cell, wheels, fetches=fetches)
        with report_unwritable(folder):
            home = _fresh_home(layout, folder, is_named=bool(into))
        if source is None:
            _fetch_source(facts, cell, first, home, SourceWishes(from_, mirror))
        else:
            _copy_source(source, layout, home)
        _provide_wheels(wheels, home)
        words = format_options(options)
        _enter_home(facts, cell, home)
        context = create_context(CHECKOUT, facts, cell, words, home.root / "no-environment")
        reasons = _compare_inputs(first, context, home)
        _report_inputs(first, reasons, strict=strict)
        _run_session(first, words)
        second = _find_wheel(home, first)
        sha256 = hash_file(second)
        output = _compare(path, first, second, sha256, reasons)
        if sha256 == first.sha256 and not into:
            delete_paths([home.root])  # gigabytes, of which nothing else is to be seen
        return output


def _read_records(wheel: Path) -> FirstBuild:
    """Return what the manifest or the statement beside a wheel says of its build.

    Raises ConfigError if there is no such wheel, DeliveryError if nothing is recorded of it, or if
    the records are of another wheel or cannot be used.
    """
    if wheel.suffix != ".whl" or not wheel.is_file():
        raise ConfigError(f"{wheel}: no such wheel: name the file of a wheel", code="not-a-wheel")
    manifest = dist_files.read_manifest(wheel)
    document = load_object(dist_files.document_path(wheel, dist_files.STATEMENT_SUFFIX))
    try:
        if manifest and formats.judge_format(manifest, formats.MANIFEST) == "same":
            first = rebuild.read_manifest(manifest)
        elif document:
            _require_own_statement(wheel, document)
            first = rebuild.read_statement(document)
        else:
            raise DeliveryError(
                f"{wheel}: no manifest ({wheel.name}{dist_files.MANIFEST_SUFFIX}) that this "
                f"torchmill reads, and no statement ({wheel.name}{dist_files.STATEMENT_SUFFIX}) is "
                "beside it, so that nothing says how it was built: fetch them with it",
                code="no-build-records",
            )
    except DOCUMENT_ERRORS as error:
        raise DeliveryError(
            f"{wheel}: the record of its build cannot be understood ({type(error).__name__}: "
            f"{error}): fetch it again",
            code="build-records-unusable",
        ) from None
    if (first.wheel, first.sha256) != (wheel.name, hash_file(wheel)):
        raise DeliveryError(
            f"{wheel}: the record beside it is of {first.wheel} with sha256 {first.sha256}, which "
            "is another file: `invoke verify` says more",
            code="build-records-unusable",
        )
    if first.made_of:
        raise DeliveryError(
            f"{wheel} was not compiled, but made of {first.made_of}: rebuild that wheel, then make "
            "this one of it with `invoke slim`",
            code="not-compiled",
        )
    return first


def _require_own_statement(wheel: Path, document: Mapping[str, object]) -> None:
    """Raise DeliveryError for a statement of another tool than torchmill."""
    definition = document["predicate"]["buildDefinition"]  # type: ignore[index]
    if definition["buildType"] != statement.BUILD_TYPE:
        raise DeliveryError(
            f"{wheel}: its statement has the buildType {definition['buildType']}: torchmill can "
            f"rebuild what it built itself ({statement.BUILD_TYPE})",
            code="build-records-unusable",
        )


def _fresh_home(layout: Layout, folder: Path, *, is_named: bool) -> Layout:
    """Make an empty folder to build in, and return its layout.

    It is `folder` if the user named that (`is_named`), else home/ in it, which is deleted first
    with all that an earlier run left. Raises ConfigError for a named folder that has something in
    it.
    """
    root = folder if is_named else folder / "home"
    if is_named and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(
            f"--into {folder}: give an empty or a new folder", code="folder-not-empty"
        )
    if not is_named:
        delete_paths([root])
    root.mkdir(parents=True, exist_ok=True)
    return replace(layout, root=Path(os.path.realpath(root)))


def _require_options(first: FirstBuild, torch: str, patch: Sequence[str]) -> Options:
    """Return the options of the first build. Raises ConfigError if one cannot be given again."""
    patches: dict[str, str] = {}
    for text in patch:
        file = Path(text)
        name = f"given/{file.name}"
        if not file.is_file():
            raise ConfigError(f"--patch {text}: no such file", code="no-such-patch")
        if name not in first.patches:
            raise ConfigError(
                f"--patch {text}: no patch of that name was applied: omit it", code="no-such-patch"
            )
        patches[name] = str(file.absolute())
    options, missing = rebuild.recorded_options(
        first, str(Path(torch).absolute()) if torch else "", patches
    )
    if missing:
        raise ConfigError(
            f"{first.wheel} was built with {'; with '.join(missing)}", code="build-input-missing"
        )
    return options


def _find_cell(facts: Facts, first: FirstBuild) -> Cell:
    """Return the cell of the recorded session.

    Raises UnknownReleaseError if the facts lack it, DeliveryError if they have another release.
    """
    package = base_package(facts).name
    tag = first.tag
    if first.torch:
        tag = Version(first.torch.partition("==")[2]).public
    release = find_release(facts, package, tag)
    cell = find_cell(facts, first.identifier, native_arch(), release)
    if cell.build.package != first.package:
        raise DeliveryError(
            f"{first.wheel}: its record names the package {first.package}, and {first.identifier} "
            f"builds {cell.build.package}: fetch it again",
            code="build-records-unusable",
        )
    if cell.release.tag != first.tag:
        raise DeliveryError(
            f"{first.wheel} is {first.package} {first.tag}, and the facts here have "
            f"{cell.release.tag} for {first.torch}: add a release of it to build_configs/",
            code="other-release",
        )
    return cell


def _find_source(first: FirstBuild, layout: Layout) -> Source | None:
    """Return the source of the first build; None if this checkout has fetched another one or none."""
    source = source_dir.load_source(layout, first.package, first.tag)
    return source if source is not None and _is_source_of(first, source) else None


def _copy_source(source: Source, layout: Layout, home: Layout) -> None:
    """Copy a source of this checkout into the home."""
    folder = home.source(source.package) / source.tag
    with fetcher.hold_source(layout, source):
        shutil.copytree(source.path.parent, folder, symlinks=True, copy_function=copy_or_link)


def _fetch_source(
    facts: Facts, cell: Cell, first: FirstBuild, home: Layout, wishes: SourceWishes
) -> None:
    """Fetch the source of the first build. Raises SourceError if it is another one."""
    (request,) = source_requests(
        facts,
        [cell.release],
        ref=_ref_of(cell, first, wishes),
        mirror=wishes.mirror,
        origin=wishes.origin or _origin_of(first),
        sha256=first.archive if wishes.origin and first.archive else "",
    )
    with console.show_progress() as progress:
        fetched = fetcher.fetch_source(request, home, progress)
    if not _is_source_of(first, fetched):
        raise SourceError(
            f"{first.wheel} was built from {_source_name(first)}, and what was fetched is "
            f"{fetched.identity}: name the source by --from or --mirror",
            code="other-source",
        )


def _is_source_of(first: FirstBuild, source: Source) -> bool:
    """Tell whether a source has the files that a wheel was built from."""
    if first.commit:
        return source.commit == first.commit
    return bool(first.contents) and source.contents == first.contents


def _source_name(first: FirstBuild) -> str:
    """Return the source of the first build as messages name it: "commit 49444c3e"."""
    return f"commit {first.commit}" if first.commit else f"contents {first.contents}"


def _ref_of(cell: Cell, first: FirstBuild, wishes: SourceWishes) -> str:
    """Return the commit to fetch in place of the release's tag; "" for the tag."""
    is_of_release = first.commit == (cell.release.proof.commit or "")
    return "" if wishes.origin or is_of_release else first.commit


def _origin_of(first: FirstBuild) -> str:
    """Return the value of `--from` for the source of the first build; "" for git.

    The recorded origin is a text for people: an archive of PyPI or of Debian, a path, a URL.
    """
    if first.commit:
        return ""
    if first.origin.startswith("PyPI's "):
        return PYPI
    if first.origin.startswith("Debian's "):
        return "debian"
    return first.origin.partition(" ")[0]


def _is_own(layout: Layout, wheel: Path) -> bool:
    """Tell whether a wheel lies in this checkout's dist/, so that its record is the user's own."""
    return os.path.realpath(wheel.parent) == os.path.realpath(layout.dist)


def _require_trusted(
    first: FirstBuild, cell: Cell, wheels: Sequence[Path], *, fetches: bool
) -> None:
    """Raise ConfigError if the record names something that could run code of whoever wrote it."""
    parts = list(
        rebuild.untrusted_parts(
            first,
            fetches=fetches,
            release_commit=cell.release.proof.commit or "",
            wheels=[wheel.name for wheel in wheels],
        )
    )
    if parts:
        lines = "\n".join(f"  {part}" for part in parts)
        raise ConfigError(
            f"{first.wheel}: its record asks for what could run code of whoever wrote it:\n{lines}\n"
            "add --trust if you trust it; --from or --mirror name another place of the source, "
            "--torch another torch",
            code="record-not-trusted",
        )


def _wheels_beside(facts: Facts, cell: Cell, wheel: Path, options: Options) -> list[Path]:
    """Return the wheels beside a wheel that its build needs, but for the torch that options name."""
    package = facts.packages[cell.build.package]
    needed = [None if options.torch else package.after, *package.checks.imports]
    python = wheel_name.python_tag(cell.build.python)
    wheels: list[Path] = []
    for name in filter(None, needed):
        distribution = wheel_name.distribution_name(facts.packages[name])
        wheels += sorted(wheel.parent.glob(f"{distribution}-*-{python}-*.whl"))
    return [wheel for wheel in wheels if wheel.is_file()]


def _provide_wheels(wheels: Sequence[Path], home: Layout) -> None:
    """Bring wheels that the build needs, with the files beside them, into the home's dist/."""
    home.dist.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        for file in (wheel, *dist_files.companion_paths(wheel)):
            if file.is_file():
                copy_or_link(str(file), str(home.dist / file.name))


def _enter_home(facts: Facts, cell: Cell, home: Layout) -> None:
    """Set the variables by which everything from here on, in this process, works in the home."""
    base = base_package(facts).name
    release = cell.release
    tag = release.tag
    if release.package != base:
        tag = find_release(facts, base, release.torch_version).tag
    variables = {
        "TORCHMILL_HOME": str(home.root),
        "TORCHMILL_TAG": tag,
        # The session then ends with the exit code of its error, not with nox's own.
        "TORCHMILL_EXITS": "1",
        "NOX_ENVDIR": str(home.root / ".nox"),
        "PIP_CONSTRAINT": str(home.root / CONSTRAINTS),
    }
    os.environ.update(variables)
    # It is to be built here, and not taken from where others have built it.
    os.environ.pop("TORCHMILL_WHEELS", None)


def _compare_inputs(first: FirstBuild, context: BuildContext, home: Layout) -> list[str]:
    """Pin the requirements, and return what is otherwise than at the first build.

    The pins are written to a file in the home, which pip reads (`_enter_home`).
    """
    offered = _ask_index(first)
    lines = rebuild.pinned_requirements(first, offered)
    write_atomically(home.root / CONSTRAINTS, "".join(f"{line}\n" for line in lines))
    identity = dict(context.interpreter_identity)
    python = identity.pop("version", "").partition(" ")[0]
    patches = {}
    for name, file in patch_files(context.plan, context.facts.patches).items():
        patches[name] = context.stat_cache.digest(file) or ""
    second = SecondBuild(
        torchmill=suite_version(),
        python=python,
        interpreter=identity,
        switches=dict(context.plan.variables),
        patches=patches,
        inputs=stage_inputs(context, "compile", {}),
        unavailable=[name for name, is_offered in offered.items() if not is_offered],
    )
    return list(rebuild.other_inputs(first, second))


def _ask_index(first: FirstBuild) -> dict[str, bool]:
    """Return whether the index of pip offers the recorded version of each recorded package.

    A package of which the index cannot tell is left out of the result, and counts as offered: pip
    will say what is wrong with it.
    """
    offered = {}
    index = package_index.configured_index()
    with http_session() as session:
        for name in rebuild.indexable_packages(first):
            try:
                files = package_index.project_files(session, index, name)
            except NetworkError:
                continue
            versions = package_index.offered_versions(files, name)
            with suppress(InvalidVersion):
                offered[name] = Version(first.requirements[name]) in versions
    return offered


def _report_inputs(first: FirstBuild, reasons: Sequence[str], *, strict: bool) -> None:
    """Print what is otherwise than at the first build; with `strict`, raise HostError for it."""
    if not reasons:
        print_now("all recorded inputs are the same here")
        return
    lines = [f"not as when {first.wheel} was built:", *(f"  {reason}" for reason in reasons)]
    text = "\n".join(lines)
    if strict:
        raise HostError(
            f"{text}\nbuild where they are the same, or without --strict", code="other-inputs"
        )
    print_now(format_for_user(text))


def _run_session(first: FirstBuild, words: Sequence[str]) -> None:
    """Run the session. Raises BuildError, with the exit code of the session, if it fails."""
    separator = ["--"] if words else []
    command = shlex.join(["nox", "-s", first.identifier, *separator, *words])
    code = run_step(command)
    if code:
        error = BuildError(
            f"`{command}` failed, as shown above: {first.wheel} is not rebuilt",
            code="rebuild-failed",
        )
        error.exit_code = code
        raise error


def _find_wheel(home: Layout, first: FirstBuild) -> Path:
    """Return the wheel that was built. Raises BuildError if there is none."""
    for wheel in home.dist.glob("*.whl"):
        manifest = dist_files.read_manifest(wheel)
        if (manifest.get("identifier"), manifest.get("tag")) == (first.identifier, first.tag):
            return wheel
    raise BuildError(
        f"{home.dist} has no wheel of {first.identifier}, which was built just now: the same "
        "command builds it again",
        code="rebuild-failed",
    )


def _compare(
    wheel: Path, first: FirstBuild, second: Path, sha256: str, reasons: Sequence[str]
) -> CommandOutput:
    """Return how the wheel and the one that was built again, with this digest, differ."""
    differences = []
    if second.name != wheel.name:
        differences.append(f"its name is {second.name}")
    if sha256 != first.sha256:
        differences += wheel_differences(wheel, second, _TITLES)
        if not differences:
            differences.append("the archives differ in their compression")
    if not differences:
        return CommandOutput(f"{wheel.name}: the same, byte for byte (sha256 {sha256})")
    shown = [f"  {line}" for line in differences[:MOST_DIFFERENCES]]
    if len(differences) > MOST_DIFFERENCES:
        shown.append(f"  and {len(differences) - MOST_DIFFERENCES} more")
    lines = [f"{wheel.name} differs from {second}:", *shown]
    return CommandOutput("\n".join(lines), require=partial(_raise_other, wheel, reasons))


def _raise_other(wheel: Path, reasons: Sequence[str]) -> None:
    """Raise the error for a wheel that came out with other bytes."""
    known = "no input is known to differ"
    if reasons:
        known = f"the inputs that differ are the likely reason ({len(reasons)}, named above)"
    raise OtherWheelError(
        f"{wheel.name}: the second build made another wheel: {known}", code="other-wheel"
    )
