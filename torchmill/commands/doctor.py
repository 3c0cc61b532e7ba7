"""`invoke doctor`: examine a machine, for a build or in general; run its fixes."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from millpress.wheel_writer import source_date_epoch

from torchmill.commands.command import CommandOutput
from torchmill.commands.described_host import load_described_host
from torchmill.commands.doctor_fixes import local_walk_context, run_fixes
from torchmill.commands.machine_report import DoctorReport, examine_host, survey_machine
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_release
from torchmill.core import silence
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.deliver import offers, products
from torchmill.deliver.signature import read_trusted_keys
from torchmill.host import description
from torchmill.host.host import Host
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import Finding
from torchmill.toolchain import remote_cache


def show_examination(
    facts: Facts,
    layout: Layout,
    *,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    collect_env: str = "",
    json: bool = False,
    save: str = "",
    options: Options = NO_OPTIONS,
    fix: bool = False,
    yes: bool = False,
    all_: bool = False,
) -> CommandOutput:
    """Examine this machine, or that of a file, for a build or in general.

    `host` is a host file, `collect_env` a file with the output of a collect_env.

    With `fix`, run the fixes and examine it once more; with `json`, whose output a program reads,
    `fix` is refused. `save` is a file to which the machine is written, and `all_` shows all fixes
    of a finding. The output fails if a build cannot start.
    """
    if (fix and (host or collect_env or json)) or (yes and not fix):
        raise ConfigError(
            "doctor: --fix is for this machine, on a terminal; --yes needs --fix",
            code="fix-elsewhere",
        )
    release = selection.selected_release(facts, layout, tag)
    described = load_described_host(host, collect_env)
    if described is None:
        _refuse_wrong_settings()

    def examine() -> DoctorReport:
        # A machine that is saved is measured whole, with its GPUs: the file serves any build.
        cells = [build] if build and not save else []
        machine = described or survey_machine(facts, layout, cells)
        if save:
            description.save_host(machine, Path(save))
        own_layout = layout if described is None else None
        report = examine_host(facts, own_layout, machine, build or "", release, options)
        return replace(report, every_cure=all_)

    report = examine()
    if fix and find_cures(report.findings).commands:
        failure = _fix(facts, layout, build or "", release, options, yes=yes)
        if failure is not None:
            return failure
        report = examine()
    return CommandOutput(report.as_text(), report.as_data(), report.require)


def _refuse_wrong_settings() -> None:
    """Raise ConfigError for a variable of torchmill's that a later step would refuse.

    Each function reads a variable and raises the error; its result is not needed here.
    """
    silence.silence_limit(os.environ)
    silence.answer_limit("", os.environ)
    read_trusted_keys(os.environ)
    source_date_epoch(os.environ)
    offers.parse_places(os.environ.get(offers.VARIABLE, ""))
    remote_cache.parse_remote(os.environ.get(remote_cache.VARIABLE, ""))


def _fix(
    facts: Facts,
    layout: Layout,
    build: str,
    release: Release | None,
    options: Options,
    *,
    yes: bool,
) -> CommandOutput | None:
    """Run the fixes of this machine, for a build or in general.

    Returns None, or the output of a command that ends because a fix failed or the user said no.
    """
    cells = [build] if build else []
    host = survey_machine(facts, layout, cells)
    arch = host.arch
    releases = []
    if build:
        _, cell = products.product_cell(facts, build, host.arch, release)
        arch = cell.build.arch
        base = base_release(facts, cell.release)
        releases = [base] if base == cell.release else [base, cell.release]

    def examine(machine: Host) -> Sequence[Finding]:
        return examine_host(facts, layout, machine, build, release, options).findings

    context = local_walk_context(facts, layout, host, arch, releases)
    return run_fixes(
        context, layout, examine, lambda: survey_machine(facts, layout, cells), yes=yes
    )
