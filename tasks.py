"""The invoke namespace: what looks after the machine and the source."""

import inspect
import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from torchmill import archlist, budget, console, listing, options, preview, selection, source
from torchmill import deps as deps_
from torchmill import facts as facts_
from torchmill import host as hosts
from torchmill import matrix as matrix_
from torchmill import report as report_
from torchmill import upstream as upstream_
from torchmill.boundary import Body, say, translated
from torchmill.deliver.image import orders as image_orders
from torchmill.deliver.index import orders as index_orders
from torchmill.deliver.index import serving
from torchmill.deliver.provenance import orders as verifying
from torchmill.deliver.publish import orders as publishing
from torchmill.deliver.snippet import orders as snippet_orders
from torchmill.diagnosis import causes
from torchmill.diagnosis.logtext import read as read_log
from torchmill.foreign import consultation
from torchmill.housekeeping import orders
from torchmill.layout import Layout
from torchmill.model import Facts
from torchmill.options import named_after, needed_by
from torchmill.toolkit import orders as toolkits
from torchmill.toolkit import told

ROOT = Path(__file__).parent


def command(**options: Any) -> Callable[[Body], Body]:
    """Make a task; where our own errors stop it, it ends with one message and their exit code."""
    return lambda body: task(**options)(translated(body, lambda said, code: Exit(said, code=code)))


def _load() -> tuple[Facts, Layout]:
    return facts_.chosen(ROOT), Layout.of(ROOT)


def printed(body: Callable[..., object], **options: Any) -> Body:
    """Make a task of a function that takes facts, layout and its options, and returns what to print.

    Where that has a method `require`, it is called afterwards, and may fail.
    """

    def run(_: Context, *args: Any, **kwargs: Any) -> None:
        found = body(*_load(), *args, **kwargs)
        say(found)
        getattr(found, "require", lambda: None)()

    _, layout, *own = inspect.signature(body).parameters.values()
    signature = inspect.Signature([layout.replace(name="context"), *own])
    run.__name__, run.__doc__ = body.__name__, body.__doc__
    vars(run)["__signature__"] = signature
    return command(**options)(run)


@command(iterable=["package"], help=options.FETCH_HELP)
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
    names = [one.package for one in matrix_.releases_of(known, release)] if all_ else package or ()
    with console.progress() as progress:
        for request in source.requests(known, release, names, ref=ref, mirror=mirror, origin=from_):
            print(listing.of_source(source.fetch(request, layout, progress)))
    selection.select(layout, release)
    print(f"selected {release.package} {release.tag}: `nox -l` lists what this machine can build of it")


matrix = printed(listing.matrix, help=listing.MATRIX_HELP)
explain = printed(
    listing.explain, positional=needed_by("explain", sys.argv, "identifier"), help=listing.EXPLAIN_HELP
)


@command(positional=needed_by("plan", sys.argv, "identifier"), iterable=["set_"], help=options.PLAN_HELP)
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
    toolkit: str | None = None,
    plat: str | None = None,
) -> None:
    """Print everything that a session would do."""
    known, layout = _load()
    machine = hosts.load(Path(host)) if host else hosts.measure(layout.root)
    release = selection.selected(known, layout, tag)
    values = {"label": label, "arch_list": arch_list, "jobs": jobs, "memory": memory, "torch": torch}
    chosen = options.of_task("plan", set_ or (), **values, toolkit=toolkit, plat=plat)
    shown = preview.of(known, None if host else layout, machine, identifier, release, chosen)
    if release is None:
        print(shown.choice(), file=sys.stderr)
    print(shown.as_json() if json else shown.as_script() if sh else shown.as_text())


jobs = printed(budget.told, name="jobs", positional=named_after("jobs", sys.argv, "build"), help=budget.HELP)


@command(help=options.DEPS_HELP)
def deps(context: Context, tag: str = "", print_: bool = False, manager: str = "") -> None:
    """Install what the selected release needs from the system."""
    known, layout = _load()
    release = selection.selected_or_newest(known, layout, tag)
    line = deps_.installation(known, layout, release, manager or deps_.find_manager(os.environ))
    print(line)
    if not print_:
        context.run(line, pty=sys.stdout.isatty())


@command(positional=named_after("doctor", sys.argv, "build"), help=consultation.HELP)
def doctor(  # noqa: PLR0917 - every one is an option
    _: Context,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    json: bool = False,
    save: str = "",
    arch_list: str | None = None,
    torch: str | None = None,
    toolkit: str | None = None,
) -> None:
    """Examine this machine, for a build or for itself: found, needed, verdict, and what cures."""
    known, layout = _load()
    chosen = options.of_task("doctor", (), arch_list=arch_list, torch=torch, toolkit=toolkit)
    machine = consultation.patient(known, layout, host, save)
    release = selection.selected(known, layout, tag)
    visit = consultation.visit(known, None if host else layout, machine, build or "", release, chosen)
    print(json_.dumps(visit.as_data(), indent=1) if json else visit.as_text())
    visit.require()


@command(positional=named_after("arch", sys.argv, "list_"), iterable=["gpu"], help=archlist.HELP)
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


@command(positional=needed_by("diagnose", sys.argv, "log"), help=causes.HELP)
def diagnose(_: Context, log: str, tag: str = "", json: bool = False) -> None:
    """Say why a build failed, by its log, and what cures it."""
    known, layout = _load()
    release = selection.selected(known, layout, tag) if tag else None
    found = causes.diagnose(known.causes, read_log(log), release.version if release else None)
    print(json_.dumps(causes.as_data(found, log), indent=1) if json else causes.as_text(found, log))
    raise Exit(code=found.exit_code)


@command(positional=named_after("report", sys.argv, "build"), help=report_.HELP, auto_shortflags=False)
def report(_: Context, build: str | None = None, out: str = "") -> None:
    """Draw what a build did with memory and time: a picture, a trace for Perfetto, and words."""
    print(report_.make(build or "", Layout.of(ROOT), Path(out)))


@command(iterable=["release"], help=upstream_.HELP)
def facts(
    _: Context,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    write: bool = False,
    table: bool = False,
) -> None:
    """Say what build_configs/ holds; compare it with PyPI, draft what is new, write the generated pages."""
    from torchmill.upstream import maintenance  # noqa: PLC0415

    page = ROOT / "docs" / "compatibility.md" if table else None
    orders = maintenance.Orders(check, tuple(release or ()), new, write, page)
    print(maintenance.carry_out(orders, *_load()))


toolkit = printed(told.toolkit, iterable=["library"], help=toolkits.HELP, auto_shortflags=False)


@command(help=orders.STATUS_HELP)
def status(_: Context, json: bool = False) -> None:
    """Show what is stored where and how big, and who uses it."""
    found = orders.status(*_load())
    print(json_.dumps(found.as_data(), indent=1) if json else found.as_text())


@command(iterable=["kind"], help=orders.CLEAN_HELP)
def clean(  # noqa: PLR0917 - every one is an option
    _: Context,
    kind: list[str] | None = None,
    age: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Remove what can be made again, by kind, age, release or size, and nothing that is in use."""
    said = orders.Orders(tuple(kind or ()), age, release, free, dry_run)
    report = orders.clean(said, *_load())
    print(json_.dumps(report.as_data(), indent=1) if json else report.as_text())
    report.require()


index = printed(index_orders.index, **index_orders.OPTIONS)
serve = printed(serving.serve, **serving.OPTIONS)
image = printed(image_orders.image, **image_orders.OPTIONS)
verify = printed(verifying.verify, **verifying.OPTIONS)
publish = printed(publishing.publish, **publishing.OPTIONS)
snippet = printed(snippet_orders.snippet, **snippet_orders.OPTIONS)


KNOWN = (matrix, explain, plan, jobs, arch, facts)
MACHINE = (fetch, deps, doctor, toolkit, diagnose, report, status, clean)
DELIVERY = (index, serve, image, snippet, verify, publish)


namespace = Collection(*KNOWN, *MACHINE, *DELIVERY)
