"""The invoke namespace: what looks after the machine and the source."""

import functools
import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from torchwright import console, facts, listing, lookup, render, selection, source
from torchwright import deps as deps_
from torchwright import host as hosts
from torchwright import matrix as matrix_
from torchwright import plan as plan_
from torchwright.errors import ConfigError, ImpossibleBuildError, SuiteError
from torchwright.layout import Layout
from torchwright.model import Facts
from torchwright.options import parse

ROOT = Path(__file__).parent
Body = Callable[..., None]


def reported(body: Body) -> Body:
    """End a task with one message and its own exit code where our own errors stop it."""

    @functools.wraps(body)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            body(*args, **kwargs)
        except SuiteError as error:
            raise Exit(f"error: {error}", code=error.exit_code) from None

    return wrapper


def _load() -> tuple[Facts, Layout]:
    return facts.chosen(ROOT), Layout.of(ROOT)


@task(
    iterable=["package"],
    help={
        "tag": "the release, such as v1.13.1",
        "package": "fetch this package's matching release too (vision, audio, or its full name)",
        "all_": "fetch every package's matching release",
        "ref": "a branch or commit to check out instead of the tag",
        "mirror": "where the repositories are mirrored, as MIRROR/OWNER/NAME.git",
        "from_": "a directory, an archive, a URL, or 'debian'",
    },
)
@reported
def fetch(  # noqa: PLR0917 - every one is an option
    _: Context,
    tag: str = "",
    package: list[str] | None = None,
    all_: bool = False,
    ref: str = "",
    mirror: str = "",
    from_: str = "",
) -> None:
    """Fetch a release and its submodules, verify the commit, and select the release."""
    known, layout = _load()
    release = selection.selected(known, layout, tag or None) or matrix_.newest(known)
    with console.progress() as progress:
        wanted_releases = matrix_.partners(known, release, known.packages if all_ else package or ())
        if ref and len(wanted_releases) > 1:
            raise ConfigError("--ref names a commit of one package: fetch one at a time")
        for wanted in wanted_releases:
            request = source.Request(
                known.packages[wanted.package], wanted, ref or None, mirror or None, from_ or None
            )
            print(listing.of_source(source.fetch(request, layout, progress)))
    selection.select(layout, release)
    print(f"selected {release.package} {release.tag}: `nox -l` lists what this machine can build of it")


@task(
    name="matrix",
    help={
        "tag": "the release; default: the selected one",
        "arch": "only this machine: x86_64, aarch64, arm64 (macOS), amd64 (Windows)",
        "package": "only this package: torch, torchvision, torchaudio",
        "json": "print a JSON list instead of tables",
    },
)
@reported
def matrix(_: Context, tag: str = "", arch: str = "", package: str = "", json: bool = False) -> None:
    """Print the whole grid; impossible cells with their reason."""
    known, layout = _load()
    release = selection.selected(known, layout, tag or None) or matrix_.newest(known)
    native = hosts.native_arch()
    cells = [
        cell
        for one in matrix_.releases_of(known, release)
        if package in {"", one.package}
        for cell in matrix_.grid(known, one)
        if arch in {"", cell.build.arch}
    ]
    if not cells:
        raise ConfigError(
            f"nothing matches --arch '{arch}' --package '{package}'; there are "
            f"{', '.join(known.arches)} and {', '.join(known.packages)}"
        )
    print(json_.dumps(listing.as_data(cells, native), indent=1) if json else listing.as_text(cells))


@task(positional=["identifier"], help={"identifier": "such as wheel-3.12-cpu", "tag": "the release"})
@reported
def explain(_: Context, identifier: str, tag: str = "") -> None:
    """Say whether a cell can be built, why not, and what can be built instead."""
    known, layout = _load()
    release = selection.selected(known, layout, tag or None)
    native = hosts.native_arch()
    text = lookup.explain(known, identifier, native, release)
    if not any(cell.possible for cell in lookup.named(known, identifier, native, release)):
        raise ImpossibleBuildError(text)
    print(text)


@task(
    positional=["identifier"],
    iterable=["set_"],
    help={
        "identifier": "such as wheel-3.10-cpu",
        "tag": "the release; default: the selected one, else the newest that supports the cell",
        "host": "a TOML file that describes another machine",
        "json": "print JSON",
        "sh": "print a shell script that builds the wheel with no suite installed",
        "set_": "NAME=VALUE, a variable for the build; may be repeated",
        "label": "local version: official, git or none",
        "arch_list": "compute capabilities, such as '8.0;8.6+PTX'",
        "jobs": "compile this many files at a time",
        "memory": "memory the build may use, such as '12 GiB'",
        "torch": "a wheel to build against, or PyPI",
    },
)
@reported
def plan(  # noqa: PLR0917 - every one is an option
    _: Context,
    identifier: str,
    tag: str = "",
    host: str = "",
    json: bool = False,
    sh: bool = False,
    set_: list[str] | None = None,
    label: str = "",
    arch_list: str = "",
    jobs: str = "",
    memory: str = "",
    torch: str = "",
) -> None:
    """Print everything that a session would do."""
    choices = {"label": label, "arch-list": arch_list, "jobs": jobs, "memory": memory, "torch": torch}
    arguments = [f"--set={setting}" for setting in set_ or ()]
    arguments += [f"--{name}={value}" for name, value in choices.items() if value]
    known, layout = _load()
    machine = hosts.load(Path(host)) if host else hosts.measure(layout.root)
    release = selection.selected(known, layout, tag or None)
    cell = lookup.find(known, identifier, machine.arch, release)
    if release is None:
        print(f"no release is selected: {cell.release.tag} is the newest that supports it", file=sys.stderr)
    fetched = None if host else source.load(layout, cell.build.package, cell.release.tag)
    computed = plan_.compute(known, cell, machine, parse(arguments, "invoke plan"), fetched)
    if json:
        print(render.as_json(computed))
    elif sh:
        print(render.as_script(computed, known, machine))
    else:
        print(render.as_text(computed, machine))


@task(
    help={
        "tag": "the release; default: the selected one",
        "print_": "print the command instead of running it",
        "manager": "apt, dnf, brew or conda; default: the one that is here",
    },
)
@reported
def deps(context: Context, tag: str = "", print_: bool = False, manager: str = "") -> None:
    """Install what the selected release needs from the system."""
    known, layout = _load()
    release = selection.selected(known, layout, tag or None) or matrix_.newest(known)
    chosen = manager or deps_.find_manager(os.environ)
    fetched = source.load(layout, release.package, release.tag)
    provider = fetched.provider if fetched else None
    cells = matrix_.buildable(known, release, hosts.native_arch())
    names = deps_.packages(known, cells, chosen, provider)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = deps_.command(chosen, names, root=root)
    line = " ".join(command)
    print(line)
    if not print_:
        context.run(line, pty=sys.stdout.isatty())


namespace = Collection(fetch, matrix, explain, plan, deps)
