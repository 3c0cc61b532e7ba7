"""The invoke namespace: what looks after the machine and the source."""

import functools
import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from torchwright import archlist, console, listing, lookup, render, selection, source, upstream
from torchwright import deps as deps_
from torchwright import facts as facts_
from torchwright import host as hosts
from torchwright import matrix as matrix_
from torchwright import plan as plan_
from torchwright.diagnosis import causes
from torchwright.diagnosis.logtext import read as read_log
from torchwright.doctor import consultation, survey
from torchwright.errors import ConfigError, ImpossibleBuildError, SuiteError
from torchwright.estimate import own, report
from torchwright.layout import Layout
from torchwright.model import Facts
from torchwright.options import DEPS_HELP, FETCH_HELP, MATRIX_HELP, PLAN_HELP, named_after, needed_by, parse

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
        except BrokenPipeError:  # whoever read what we print, such as `head`, has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return wrapper


def _load() -> tuple[Facts, Layout]:
    return facts_.chosen(ROOT), Layout.of(ROOT)


@task(
    iterable=["package"],
    help=FETCH_HELP,
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
        every = [one.package for one in matrix_.releases_of(known, release)]
        wanted_releases = matrix_.partners(known, release, every if all_ else package or ())
        if ref and len(wanted_releases) > 1:
            raise ConfigError("--ref names a commit of one package: fetch one at a time")
        for wanted in wanted_releases:
            request = source.Request(
                known.packages[wanted.package], wanted, ref or None, mirror or None, from_ or None
            )
            print(listing.of_source(source.fetch(request, layout, progress)))
    selection.select(layout, release)
    print(f"selected {release.package} {release.tag}: `nox -l` lists what this machine can build of it")


@task(help=MATRIX_HELP)
@reported
def matrix(_: Context, tag: str = "", arch: str = "", package: str = "", json: bool = False) -> None:
    """Print the whole grid; impossible cells with their reason."""
    known, layout = _load()
    release = selection.selected(known, layout, tag or None) or matrix_.newest(known)
    native = hosts.native_arch()
    cells = [
        cell
        for one in matrix_.releases_of(known, release)
        if package in {"", one.package, known.packages[one.package].session}
        for cell in matrix_.grid(known, one)
        if arch in {"", cell.build.arch}
    ]
    if not cells:
        raise ConfigError(
            f"{release.tag} has no build with --arch '{arch or 'any'}' and --package '{package or 'any'}'; "
            f"there is {', '.join(known.arches)}, and of packages {', '.join(known.packages)}"
        )
    print(json_.dumps(listing.as_data(cells, native), indent=1) if json else listing.as_text(cells))


@task(
    positional=needed_by("explain", sys.argv, "identifier"),
    help={"identifier": "such as wheel-3.12-cpu", "tag": "the release"},
)
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
    positional=needed_by("plan", sys.argv, "identifier"),
    iterable=["set_"],
    help=PLAN_HELP,
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
    options = parse(arguments, "invoke plan")
    computed = plan_.compute(known, cell, machine, options, fetched)
    seen = () if host else own.runs(known, layout.dist)
    if json:
        print(report.as_json(known, computed, seen))
    elif sh:
        print(render.as_script(computed, known, machine))
    else:
        print(render.as_text(computed, machine))
        print(report.as_text(known, computed, options.memory or machine.memory, seen))


@task(help=DEPS_HELP)
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


@task(positional=named_after("doctor", sys.argv, "build"), help=consultation.HELP)
@reported
def doctor(
    _: Context, build: str | None = None, tag: str = "", host: str = "", json: bool = False, save: str = ""
) -> None:
    """Examine this machine, for a build or for itself: found, needed, verdict, and what cures."""
    known, layout = _load()
    machine = hosts.load(Path(host)) if host else survey(known, hosts.measure(layout.root), os.environ)
    if save:
        hosts.save(machine, Path(save))
    release = selection.selected(known, layout, tag or None)
    visit = consultation.visit(known, None if host else layout, machine, build or "", release)
    print(json_.dumps(visit.as_data(), indent=1) if json else visit.as_text())
    visit.require()


@task(positional=named_after("arch", sys.argv, "list_"), iterable=["gpu"], help=archlist.HELP)
@reported
def arch(  # noqa: PLR0917 - every one is an option
    _: Context,
    list_: str | None = None,
    gpu: list[str] | None = None,
    local: bool = False,
    cuda: str = "",
    tag: str = "",
    json: bool = False,
) -> None:
    """Say which GPUs, toolkits and releases go with compute capabilities."""
    known, layout = _load()
    question = archlist.Question(list_ or "", tuple(gpu or ()), local, cuda, tag)
    found = archlist.answer(known, question, hosts.measure(layout.root))
    print(json_.dumps(found.data, indent=1) if json else found.text)


@task(positional=needed_by("diagnose", sys.argv, "log"), help=causes.HELP)
@reported
def diagnose(_: Context, log: str, tag: str = "", json: bool = False) -> None:
    """Say why a build failed, by its log, and what cures it."""
    known, layout = _load()
    release = selection.selected(known, layout, tag) if tag else None
    found = causes.diagnose(known.causes, read_log(log), release.version if release else None)
    print(json_.dumps(causes.as_data(found, log), indent=1) if json else causes.as_text(found, log))
    raise Exit(code=found.exit_code)


@task(iterable=["release"], help=upstream.HELP)
@reported
def facts(
    _: Context,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    write: bool = False,
    table: bool = False,
) -> None:
    """Say what build_configs/ holds; compare it with PyPI, draft what is new, write the generated pages."""
    from torchwright.upstream import maintenance  # noqa: PLC0415

    page = ROOT / "docs" / "compatibility.md" if table else None
    orders = maintenance.Orders(check, tuple(release or ()), new, write, page)
    print(maintenance.carry_out(orders, *_load()))


namespace = Collection(fetch, matrix, explain, plan, deps, doctor, arch, diagnose, facts)
