"""Check what the settings of --set need of a machine, and what they change beyond the estimate."""

from collections.abc import Iterator

from torchmill.config.matrix import CellConstraints
from torchmill.plan import settings
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding, absence_verdict
from torchmill.plan.doctor.remedies import package_way

_PACKAGED = (
    "debian"  # the provider whose rules name the system's packages of torch's third-party libraries
)
_LINKERS = ("bfd", "gold", "lld", "mold")
_PACKAGES = ("lld", "mold")  # which are called so by all package managers


def check_settings(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the settings of a build."""
    yield from _linkers(context)
    yield from _system_libraries(context)
    heavier = settings.heavier_settings(context.plan.set)
    if heavier:
        names = ", ".join(setting.name for setting in heavier)
        what = ", ".join(dict.fromkeys(setting.addition for setting in heavier))
        because = f"it adds {what}; time, memory and disk were measured without: how much more it takes is not known"
        yield Finding("settings", names, "those of a measured build", "warning", because=because)


def _linkers(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each linker that a setting names: gcc and clang start the program ld.NAME."""
    for linker, setting in dict(settings.required_linkers(context.plan.set)).items():
        if linker not in _LINKERS:
            continue  # clang takes a path as well
        program = f"ld.{linker}"
        path = context.host.tools.get(program)
        if path:
            yield Finding("linker", path, program, "ok")
        else:
            packages = [package_way(context.host, [linker])] if linker in _PACKAGES else []
            ways = [*packages, f"leave -fuse-ld={linker} out of {setting}"]
            yield absence_finding(
                context.host, "linker", program, ways, "every link of the build would fail"
            )


def _system_libraries(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the libraries that a build with USE_SYSTEM_LIBS looks for.

    They are known by the names that the rules for Debian's source give, which has no copies of them either.
    """
    if not settings.takes_system_libraries(context.plan.set):
        return
    host, cell = context.host, cell_with_toolkit(context.cell, context.plan.toolkit)
    rules = CellConstraints(context.facts, cell, _PACKAGED).rules(context.compiler)
    packaged = [rule for rule in rules if rule.when.provider]
    names = [name for rule in packaged for name in rule.system_packages.get(host.manager or "", ())]
    subject, needed = (
        "system libraries",
        f"all that torch takes from third_party/ ({settings.SYSTEM_LIBRARIES})",
    )
    missing = [name for name in dict.fromkeys(names) if not host.packages.get(name)]
    if not names or any(name not in host.packages for name in missing):
        because = "which packages have them is not known here, and the configuration stops at the first that it lacks"
        yield Finding(subject, "cannot tell", needed, "unknown", because=because)
    elif missing:
        because = "the configuration stops at the first that it lacks"
        found = f"no {', '.join(missing)}"
        yield Finding(
            subject, found, needed, absence_verdict(host), package_way(host, missing), because
        )
    else:
        yield Finding(subject, f"{len(names)} packages of {host.manager}", needed, "ok")
