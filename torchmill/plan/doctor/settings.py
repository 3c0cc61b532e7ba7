"""Check the settings of --set: their needs of a machine, and what makes a build heavier."""

from collections.abc import Iterator

from torchmill.plan import settings
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding, absence_verdict
from torchmill.plan.doctor.package_cures import package_cure
from torchmill.plan.rules import CellConstraints
from torchmill.plan.system_packages import naming_manager

# The provider whose rules name the system's packages of torch's third-party libraries.
_PACKAGED = "debian"
_LINKERS = ("bfd", "gold", "lld", "mold")
_LINKER_PACKAGES = ("lld", "mold")  # all package managers call them so; binutils has the others


def check_settings(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the settings of a build."""
    yield from _check_linkers(context)
    yield from _check_system_libraries(context)
    heavier = settings.heavier_settings(context.plan.variables)
    if heavier:
        additions = ", ".join(dict.fromkeys(setting.addition for setting in heavier))
        yield Finding(
            "settings",
            ", ".join(setting.name for setting in heavier),
            "those of a measured build",
            "warning",
            because=f"it adds {additions}; time, memory and disk were measured without: "
            "how much more it takes is not known",
        )


def _check_linkers(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each linker that a setting names: compilers start the program ld.NAME."""
    # If several settings name one linker, the last is the one to change.
    required = dict(settings.required_linkers(context.plan.variables))
    for linker, setting in required.items():
        if linker not in _LINKERS:
            continue  # the path of a linker, which clang takes as well
        program = f"ld.{linker}"
        path = context.host.programs.paths.get(program)
        if path:
            yield Finding("linker", path, program, "ok")
            continue
        cures = [f"leave -fuse-ld={linker} out of {setting}"]
        if linker in _LINKER_PACKAGES:
            cures.insert(0, package_cure(context.host, [linker]))
        yield absence_finding(
            context.host,
            "linker",
            program,
            cures=cures,
            because="every link of the build would fail",
        )


def _check_system_libraries(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the libraries that a build with USE_SYSTEM_LIBS looks for.

    Their packages are those that the rules for Debian's source name: it has no copies of these
    libraries either.
    """
    if not settings.takes_system_libraries(context.plan.variables):
        return
    host = context.host
    subject = "system libraries"
    needed = f"all that torch takes from third_party/ ({settings.SYSTEM_LIBRARIES})"
    stops = "the configuration stops at the first that it lacks"
    names = _library_packages(context)
    missing = [name for name in names if not host.packages.installed.get(name)]
    if not names or any(name not in host.packages.installed for name in missing):
        because = f"which packages have them is not known here, and {stops}"
        yield Finding(subject, "cannot tell", needed, "unknown", because=because)
    elif missing:
        yield Finding(
            subject,
            f"no {', '.join(missing)}",
            needed,
            absence_verdict(host),
            cure=package_cure(host, missing),
            because=stops,
        )
    else:
        yield Finding(subject, f"{len(names)} packages of {host.packages.manager}", needed, "ok")


def _library_packages(context: CheckContext) -> list[str]:
    """Return the system packages that have the third-party libraries of a release.

    [] if the rules name none for the host's package manager.
    """
    manager = naming_manager(context.host.packages.manager)
    cell = cell_with_toolkit(context.cell, context.plan.cuda.toolkit)
    names: dict[str, None] = {}  # an ordered set
    for rule in CellConstraints(context.facts, cell, _PACKAGED).rules(context.compiler):
        if rule.when.provider:
            names |= dict.fromkeys(rule.system_packages.get(manager, ()))
    return list(names)
