"""The invoke namespace: what looks after the machine and the source."""

import inspect
import json as json_
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Collection, Context, Exit, task

from tools.facts import HELP
from torchmill.commands import arch as arch_
from torchmill.commands import doctor as doctor_
from torchmill.commands import index as index_
from torchmill.commands import jobs as jobs_
from torchmill.commands import publish as publish_
from torchmill.commands import snippet as snippet_
from torchmill.commands import toolkit as toolkit_
from torchmill.commands import verify as verify_
from torchmill.commands.clean.command import (
    CLEAN_HELP,
    STATUS_HELP,
    CleanOptions,
    clean_storage,
    measure_storage,
)
from torchmill.commands.image import OPTIONS, write_image
from torchmill.commands.matrix import (
    EXPLAIN_HELP,
    MATRIX_HELP,
    describe_source,
    explain_cell_name,
    show_matrix,
)
from torchmill.commands.plan import preview_plan
from torchmill.commands.report import command as command_
from torchmill.config import facts_reader, selection
from torchmill.config.matrix import releases_of
from torchmill.config.model import Facts
from torchmill.core import console
from torchmill.core.errors import TaskBody, exit_with_error, print_now
from torchmill.core.paths import Layout
from torchmill.deliver.index import server
from torchmill.fetch.source import fetcher
from torchmill.fetch.source.request import source_requests
from torchmill.host.machine import load_host, measure_host
from torchmill.plan import system_packages
from torchmill.plan.diagnosis import causes
from torchmill.plan.diagnosis.log_text import read_log
from torchmill.plan.options import DEPS_HELP, FETCH_HELP, PLAN_HELP, named_after, needed_by, options_of_task

ROOT = Path(__file__).parent


def command(**options: Any) -> Callable[[TaskBody], TaskBody]:
    """Make a task; where our own errors stop it, it ends with one message and their exit code."""
    return lambda body: task(**options)(exit_with_error(body, lambda said, code: Exit(said, code=code)))


def _load() -> tuple[Facts, Layout]:
    return facts_reader.load_facts(ROOT), Layout.of_checkout(ROOT)


def printed(body: Callable[..., object], **options: Any) -> TaskBody:
    """Make a task of a function that takes facts, layout and its options, and returns what to print.

    Where that has a method `require`, it is called afterwards, and may fail.
    """

    def run(_: Context, *args: Any, **kwargs: Any) -> None:
        found = body(*_load(), *args, **kwargs)
        print_now(found)
        getattr(found, "require", lambda: None)()

    _, layout, *own = inspect.signature(body).parameters.values()
    signature = inspect.Signature([layout.replace(name="context"), *own])
    run.__name__, run.__doc__ = body.__name__, body.__doc__
    vars(run)["__signature__"] = signature
    return command(**options)(run)


@command(iterable=["package"], help=FETCH_HELP)
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
    names = [one.package for one in releases_of(known, release)] if all_ else package or ()
    with console.show_progress() as progress:
        for request in source_requests(known, release, names, ref=ref, mirror=mirror, origin=from_):
            print(describe_source(fetcher.fetch_source(request, layout, progress)))
    selection.select_release(layout, release)
    print(f"selected {release.package} {release.tag}: `nox -l` lists what this machine can build of it")


matrix = printed(show_matrix, name="matrix", help=MATRIX_HELP)
explain = printed(
    explain_cell_name,
    name="explain",
    positional=needed_by("explain", sys.argv, "identifier"),
    help=EXPLAIN_HELP,
)


@command(positional=needed_by("plan", sys.argv, "identifier"), iterable=["set_"], help=PLAN_HELP)
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
    machine = load_host(Path(host)) if host else measure_host(layout.root)
    release = selection.selected_release(known, layout, tag)
    values = {"label": label, "arch_list": arch_list, "jobs": jobs, "memory": memory, "torch": torch}
    chosen = options_of_task("plan", set_ or (), **values, toolkit=toolkit, plat=plat)
    shown = preview_plan(known, None if host else layout, machine, identifier, release, chosen)
    if release is None:
        print(shown.choice(), file=sys.stderr)
    print(shown.as_json() if json else shown.as_script() if sh else shown.as_text())


jobs = printed(
    jobs_.show_budget, name="jobs", positional=named_after("jobs", sys.argv, "build"), help=jobs_.HELP
)


@command(help=DEPS_HELP)
def deps(context: Context, tag: str = "", print_: bool = False, manager: str = "") -> None:
    """Install what the selected release needs from the system."""
    known, layout = _load()
    release = selection.selected_or_newest(known, layout, tag)
    line = system_packages.install_command_for_release(
        known, layout, release, manager or system_packages.find_manager(os.environ)
    )
    print(line)
    if not print_:
        context.run(line, pty=sys.stdout.isatty())


@command(positional=named_after("doctor", sys.argv, "build"), help=doctor_.HELP)
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
    chosen = options_of_task("doctor", (), arch_list=arch_list, torch=torch, toolkit=toolkit)
    machine = doctor_.load_host_to_examine(known, layout, host, save)
    release = selection.selected_release(known, layout, tag)
    visit = doctor_.examine_for_any_arch(
        known, None if host else layout, machine, build or "", release, chosen
    )
    print(json_.dumps(visit.as_data(), indent=1) if json else visit.as_text())
    visit.require()


@command(positional=named_after("arch", sys.argv, "list_"), iterable=["gpu"], help=arch_.HELP)
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
    question = arch_.ArchQuestion(list_ or "", tuple(gpu or ()), local, cuda, tag)
    found = arch_.answer_arch(known, question, measure_host(layout.root))
    print(json_.dumps(found.data, indent=1) if json else found.text)


@command(positional=needed_by("diagnose", sys.argv, "log"), help=causes.HELP)
def diagnose(_: Context, log: str, tag: str = "", json: bool = False) -> None:
    """Say why a build failed, by its log, and what cures it."""
    known, layout = _load()
    release = selection.selected_release(known, layout, tag) if tag else None
    found = causes.diagnose(known.causes, read_log(log), release.version if release else None)
    print(
        json_.dumps(causes.diagnosis_as_data(found, log), indent=1)
        if json
        else causes.diagnosis_as_text(found, log)
    )
    raise Exit(code=found.exit_code)


@command(positional=named_after("report", sys.argv, "build"), help=command_.HELP, auto_shortflags=False)
def report(_: Context, build: str | None = None, out: str = "") -> None:
    """Draw what a build did with memory and time: a picture, a trace for Perfetto, and words."""
    print(command_.write_report(build or "", Layout.of_checkout(ROOT), Path(out)))


@command(iterable=["release"], help=HELP)
def facts(
    _: Context,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    write: bool = False,
    table: bool = False,
) -> None:
    """Say what build_configs/ holds; compare it with PyPI, draft what is new, write the generated pages."""
    from tools.facts import FactsOptions, run_facts

    page = ROOT / "docs" / "compatibility.md" if table else None
    orders = FactsOptions(check, tuple(release or ()), new, write, page)
    print(run_facts(orders, *_load()))


toolkit = printed(
    toolkit_.show_or_bring, name="toolkit", iterable=["library"], help=toolkit_.HELP, auto_shortflags=False
)


@command(help=STATUS_HELP)
def status(_: Context, json: bool = False) -> None:
    """Show what is stored where and how big, and who uses it."""
    found = measure_storage(*_load())
    print(json_.dumps(found.as_data(), indent=1) if json else found.as_text())


@command(iterable=["kind"], help=CLEAN_HELP)
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
    said = CleanOptions(tuple(kind or ()), age, release, free, dry_run)
    report = clean_storage(said, *_load())
    print(json_.dumps(report.as_data(), indent=1) if json else report.as_text())
    report.require()


index = printed(index_.write_index, name="index", **index_.OPTIONS)
serve = printed(server.serve_index, name="serve", **server.OPTIONS)
image = printed(write_image, name="image", **OPTIONS)
verify = printed(verify_.verify_wheels, name="verify", **verify_.OPTIONS)
publish = printed(publish_.publish_wheels, name="publish", **publish_.OPTIONS)
snippet = printed(snippet_.write_snippet, name="snippet", **snippet_.OPTIONS)


KNOWN = (matrix, explain, plan, jobs, arch, facts)
MACHINE = (fetch, deps, doctor, toolkit, diagnose, report, status, clean)
DELIVERY = (index, serve, image, snippet, verify, publish)


namespace = Collection(*KNOWN, *MACHINE, *DELIVERY)
