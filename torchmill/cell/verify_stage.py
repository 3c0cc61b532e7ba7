"""The last stage of a cell: try the packed wheel in a clean environment, and publish it in dist/."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millpress import dependencies

from torchmill.cell import crossing, disk_space
from torchmill.cell.context import BuildContext, base_wheel, imported_wheel
from torchmill.cell.manifest import compose_manifest, recorded_git_version
from torchmill.cell.up_to_date import StageLog, StageRecord, stage_inputs
from torchmill.core.deletion import delete_paths
from torchmill.host import environments
from torchmill.plan.plan import expected_values
from torchmill.wheel import dist_files
from torchmill.wheel.verify import device_code, verification
from torchmill.wheel.verify.verification import TargetMachine


def verify_stage(
    context: BuildContext, stages: StageLog, packed: Path, note: Callable[[str], None]
) -> Path:
    """Check the packed wheel in a clean environment, record the checks, and return its file.

    `stages` is the record of the cell's stages. If the wheel is the published one in dist/, it is
    moved out first, because every wheel there has passed every check. Raises VerifyError if a check
    fails.
    """
    plan = context.plan
    published = context.layout.dist / packed.name
    if packed == published:
        packed = context.outputs.packed / packed.name
        dist_files.withdraw_wheel(published, packed)
    note(f"verifying {packed.name} in a clean environment")
    start = time.monotonic()
    inputs = stage_inputs(context, "verify", stages.valid)
    # If the user edited files, the plan does not know of it.
    git_version = recorded_git_version(context, stages)
    built = replace(plan, source=replace(plan.source, git_version=git_version))
    with context.log.open("a", encoding="utf-8") as log:
        checks, code_sizes = verification.verify_wheel(
            packed,
            plan.wheel,
            context.package,
            expected_values(built, context.package),
            python=context.interpreter,
            scratch=context.outputs.verify,
            extra=_check_requirements(context),
            log=log,
            targets=device_code.requested_targets(context.facts, plan.wheel, plan.arch_list),
            empty=context.layout.environments,
            machine=_target_machine(context),
        )
    # The other wheels in dist/ of the same version should require the same packages.
    differences = dependencies.sibling_differences(packed, dependencies.sibling_wheels(published))
    report: dict[str, Any] = {
        "unlike": differences,
        "checks": {name: asdict(check) for name, check in checks.items()},
        "device_code": dict(code_sizes),
        "seconds": {"verify": round(time.monotonic() - start, 1)},
    }
    if context.tree.source.exists():  # an emptied tree tells nothing about later builds
        report["disk"] = disk_space.written_bytes(context.folders)
    product = stages.valid["pack"].product
    stages.record("verify", StageRecord(inputs, product, {}, report))
    for difference in differences:
        note(difference)
    code = device_code.format_device_code(code_sizes)
    if code:
        note(f"code for GPUs: {code}")
    return packed


def _target_machine(context: BuildContext) -> TargetMachine | None:
    """Return how the wheel of a crossed build is tried; None for any other build."""
    packages = context.target_packages
    if packages is None:
        return None
    plan = context.plan

    def emulate(folder: Path, shared: Path) -> Path:
        site = environments.packages_folder(shared, plan.build.python)
        return crossing.make_emulated_environment(folder, site, plan, context.host)

    return TargetMachine(packages, lambda folder: crossing.pretend_target(folder, plan), emulate)


def publish_stage(context: BuildContext, stages: StageLog, packed: Path) -> Path:
    """Move the verified wheel into dist/, with the files beside it; return its file there.

    The environment of its checks is deleted.
    """
    # It may have a torch of PyPI, of almost 5 GB. After a failed check it stays, for a look at it.
    # Here and not in verify_stage, which a run does not repeat that follows an interrupted one.
    with contextlib.suppress(OSError):
        delete_paths([context.outputs.verify])
    wheel = context.layout.dist / packed.name
    manifest = compose_manifest(context, stages, wheel.name)
    documents = dist_files.compose_documents(manifest, packed)
    archive = dist_files.document_path(packed, dist_files.DEBUG_SUFFIX)
    dist_files.publish_wheel(
        packed,
        wheel,
        manifest,
        context.wheel,
        documents,
        debug_archive=archive if context.options.debug_info else None,
    )
    return wheel


def _check_requirements(context: BuildContext) -> list[Path | str]:
    """Return the wheels and requirements that are installed beside the wheel for its checks.

    These are the packages that the wheel works with, although its metadata may not require them.
    """
    requirements = context.plan.requirements
    to_install: list[Path | str] = []
    for requirement in requirements:
        # Its checks use NumPy of the version that it was compiled with.
        if requirement.startswith("numpy"):
            to_install.append(requirement)
    wheel = context.plan.wheel
    # A torch in a folder is lent to the environment, and not installed.
    if wheel.torch and not wheel.torch_folder and not context.plan.is_crossed:
        torch: Path | str = requirements[-1]  # a plan has torch last
        if context.options.torch is None:
            torch = base_wheel(context) or torch
        to_install.append(torch)
    for name in context.package.checks.imports:
        imported = imported_wheel(context, context.facts.packages[name])
        if imported is not None:
            to_install.append(imported)
    return to_install
