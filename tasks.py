"""The invoke namespace: what looks after the machine and the source."""

import functools
import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from torchwright import (
    archlist,
    budget,
    console,
    listing,
    lookup,
    options,
    preview,
    selection,
    source,
    upstream,
)
from torchwright import deps as deps_
from torchwright import facts as facts_
from torchwright import host as hosts
from torchwright import matrix as matrix_
from torchwright import report as report_
from torchwright.diagnosis import causes
from torchwright.diagnosis.logtext import read as read_log
from torchwright.doctor import consultation, survey
from torchwright.errors import SuiteError
from torchwright.layout import Layout
from torchwright.model import Facts
from torchwright.options import named_after, needed_by

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


@task(iterable=["package"], help=options.FETCH_HELP)
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
    release = selection.selected_or_newest(known, layout, tag)
    every = [one.package for one in matrix_.releases_of(known, release)]
    with console.progress() as progress:
        names = every if all_ else package or ()
        for request in source.requests(known, release, names, ref=ref, mirror=mirror, origin=from_):
            print(listing.of_source(source.fetch(request, layout, progress)))
    selection.select(layout, release)
    print(f"selected {release.package} {release.tag}: `nox -l` lists what this machine can build of it")


@task(help=options.MATRIX_HELP)
@reported
def matrix(_: Context, tag: str = "", arch: str = "", package: str = "", json: bool = False) -> None:
    """Print the whole grid; impossible cells with their reason."""
    known, layout = _load()
    cells = listing.cells(known, selection.selected_or_newest(known, layout, tag), arch, package)
    data = listing.as_data(cells, hosts.native_arch())
    print(json_.dumps(data, indent=1) if json else listing.as_text(cells))


@task(positional=needed_by("explain", sys.argv, "identifier"), help=options.EXPLAIN_HELP)
@reported
def explain(_: Context, identifier: str, tag: str = "") -> None:
    """Say whether a cell can be built, why not, and what can be built instead."""
    known, layout = _load()
    release = selection.selected(known, layout, tag)
    native = hosts.native_arch()
    lookup.find(known, identifier, native, release)
    print(lookup.explain(known, identifier, native, release))


@task(positional=needed_by("plan", sys.argv, "identifier"), iterable=["set_"], help=options.PLAN_HELP)
@reported
def plan(  # noqa: PLR0917 - every one is an option
    _: Context,
    identifier: str,
    tag: str = "",
    host: str = "",
    json: bool = False,
    sh: bool = False,
    set_: list[str] | None = None,
    label: str | None = None,
    arch_list: str | None = None,
    jobs: str | None = None,
    memory: str | None = None,
    torch: str | None = None,
) -> None:
    """Print everything that a session would do."""
    known, layout = _load()
    machine = hosts.load(Path(host)) if host else hosts.measure(layout.root)
    release = selection.selected(known, layout, tag)
    chosen = options.of_task(
        "plan", set_ or (), label=label, arch_list=arch_list, jobs=jobs, memory=memory, torch=torch
    )
    shown = preview.of(known, None if host else layout, machine, identifier, release, chosen)
    if release is None:
        print(
            f"no release is selected: {shown.plan.release.tag} is the newest that supports it",
            file=sys.stderr,
        )
    print(shown.as_json() if json else shown.as_script() if sh else shown.as_text())


@task(positional=named_after("jobs", sys.argv, "build"), help=budget.HELP)
@reported
def jobs(
    _: Context,
    build: str | None = None,
    tag: str = "",
    json: bool = False,
    jobs: str | None = None,
    memory: str | None = None,
) -> None:
    """Say what limits memory and processors here, and what follows for a build."""
    known, layout = _load()
    chosen = options.of_task("jobs", (), jobs=jobs, memory=memory)
    cells = budget.cells(known, build or "", hosts.native_arch(), selection.selected(known, layout, tag))
    found = budget.measure(budget.demands(known, cells), chosen)
    print(json_.dumps(found.as_data(), indent=1) if json else found.as_text())


@task(help=options.DEPS_HELP)
@reported
def deps(context: Context, tag: str = "", print_: bool = False, manager: str = "") -> None:
    """Install what the selected release needs from the system."""
    known, layout = _load()
    release = selection.selected_or_newest(known, layout, tag)
    chosen = manager or deps_.find_manager(os.environ)
    fetched = source.load(layout, release.package, release.tag)
    cells = matrix_.buildable(known, release, hosts.native_arch())
    names = deps_.packages(known, cells, chosen, fetched.provider if fetched else None)
    line = " ".join(deps_.command(chosen, names, root=deps_.is_root()))
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
    release = selection.selected(known, layout, tag)
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


@task(positional=named_after("report", sys.argv, "build"), help=report_.HELP, auto_shortflags=False)
@reported
def report(_: Context, build: str | None = None, out: str = "") -> None:
    """Draw what a build did with memory and time: a picture, a trace for Perfetto, and words."""
    print(report_.make(build or "", Layout.of(ROOT), Path(out)))


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


namespace = Collection(fetch, matrix, explain, plan, jobs, deps, doctor, arch, diagnose, facts, report)
