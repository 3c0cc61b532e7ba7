"""How to get a C++ compiler that fits a build, as the host and its user can do it.

`majors` are throughout the major versions of gcc that fit, the best first. A release of a
distribution is "recorded" if the facts list the compilers among its packages.
"""

import re
from collections.abc import Sequence

from packaging.version import Version

from torchmill.config import distributions
from torchmill.host.host import Compiler, Host
from torchmill.host.provisioned import COMPILER
from torchmill.plan import host_compiler, system_packages
from torchmill.plan.doctor.container_cures import container_cures
from torchmill.plan.doctor.finding import CheckContext, toolkit_command
from torchmill.plan.doctor.package_cures import (
    ask_administrator,
    host_install_command,
    host_manager,
    item_cure_for_build,
    package_cure,
)
from torchmill.plan.providers import has_other_libc
from torchmill.plan.system_packages import PACKAGES

_MAJORS = range(4, 20)  # the major versions of gcc that are tried against a build's bounds
_OLDEST_GXX = 10  # of conda-forge's package gxx: https://anaconda.org/conda-forge/gxx/files


def compiler_cures(context: CheckContext) -> tuple[str, ...]:
    """Return how to build with a compiler that fits, the best first; "" stands for no cure.

    A compiler that the host has is the only cure. Of the others, those that need no root go first
    if the user cannot become root, or if the build has CUDA.
    """
    command = _present_compiler(context)
    if command is not None:
        return (f"{_assignments(context, command)} {context.session}",)
    majors = _fitting_majors(context)
    if not majors:
        return ()
    provisioned = _provisioned_compiler(context, majors)
    packages = _package_compiler(context, majors)
    without_root_first = context.toolkit is not None or context.host.packages.may_use_root is False
    cures = [packages, provisioned]
    if without_root_first:
        cures.reverse()
    cures += _new_environment(context, majors)
    cures += container_cures(context)
    if not packages:
        cures.append(_unrecorded_compiler(context, majors))
    return tuple(cures)


def _present_compiler(context: CheckContext) -> str | None:
    """Return the command of the host's best compiler that fits; None if there is none.

    If the compiler of the build fits, and is doubted only because nobody is known to have built the
    release with it, then other untried compilers are no better.
    """
    constraints = context.constraints
    compilers = dict(context.host.compilers.by_command)
    build_compiler = context.compiler
    if build_compiler is not None and host_compiler.compiler_fits(constraints, build_compiler):
        for command, compiler in context.host.compilers.by_command.items():
            if host_compiler.is_untried(constraints, compiler):
                del compilers[command]
    return host_compiler.best_compiler(constraints, compilers)


def _assignments(context: CheckContext, command: str) -> str:
    """Return the variables that give a build its compiler, as in a shell: "CC=gcc CXX=g++"."""
    variables = host_compiler.variables_for_compiler(command, cuda=context.toolkit is not None)
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _fitting_majors(context: CheckContext) -> list[int]:
    """Return the major versions of gcc that fit, the best first.

    Those that the release was built with go first, then those that are nearest to the host's. If
    the host's compiler is no gcc, the newest counts as nearest.
    """
    compiler = context.compiler
    nearest_to = _MAJORS.stop
    if compiler and compiler.family == "gcc":
        nearest_to = Version(compiler.version).major
    constraints = context.constraints
    ranked: list[tuple[bool, int, int]] = []
    release = distributions.find_recorded_release(context.host.platform.distribution)
    recorded = release.gcc_versions if release else {}
    for major in _MAJORS:
        gcc = _newest_gcc(major)
        if str(major) in recorded:
            gcc = Compiler("gcc", recorded[str(major)])
        if host_compiler.compiler_fits(constraints, gcc):
            is_untried = host_compiler.is_untried(constraints, gcc)
            ranked.append((is_untried, abs(major - nearest_to), major))
    return [major for _, _, major in sorted(ranked)]


def _newest_gcc(major: int | str) -> Compiler:
    """Return a gcc of a major version; its minor version is taken to be the newest."""
    return Compiler("gcc", f"{major}.99")


def _provisioned_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return the command of `invoke toolkit` that brings the first of the gccs, without root.

    "" if no such gcc is known to run on the host. Like any compiler, it needs the headers of the C
    library and an assembler, which a host has if it has another compiler.
    """
    host = context.host
    has_compiler = host.compilers.default is not None or bool(host.compilers.by_command)
    release = distributions.find_recorded_release(host.platform.distribution)
    # The gcc loads the system's libisl, whose version has to be known.
    if release is None or not release.isl or not has_compiler:
        return ""
    for major in majors:
        command = toolkit_command(context, COMPILER, f"gcc-{major}")
        if command:
            return command
    return ""


def _package_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return how to build with the first of the gccs that the system's packages have, or "".

    In an environment of conda, its packages stand for the system's.
    """
    host = context.host
    manager = host_manager(host)
    if manager == "conda":
        return _active_environment(context, majors)
    choice = _recorded_compiler(host, majors)
    if choice is None or manager is None:
        return ""
    names, command = choice
    start = f"{_assignments(context, command)} {context.session}"
    if system_packages.may_install(host, manager):
        return f"{host_install_command(host, manager, names)} && {start}"
    line = system_packages.install_command(manager, names, sudo=False)
    return f"{ask_administrator(line)}, then `{start}`"


def _recorded_compiler(host: Host, majors: Sequence[int]) -> tuple[list[str], str] | None:
    """Return the packages and the g++ command of the first of the gccs that a distribution has.

    None if it is not known to have any of them.
    """
    manager = host_manager(host)
    release = distributions.find_recorded_release(host.platform.distribution)
    if manager is None or release is None:
        return None
    for major in majors:
        if release.has_gcc(major):
            names = release.compiler_packages or system_packages.gcc_packages(manager)
            command = release.compiler_command or system_packages.gcc_command(manager)
            return [name.format(major=major) for name in names], command.format(major=major)
        # The usual gcc has no version in the names of its packages. If there is a g++ already, to
        # install these changes nothing.
        if release.gcc == str(major) and "g++" not in host.compilers.by_command:
            return [PACKAGES["item"]["compiler"][system_packages.naming_manager(manager)]], "g++"
    return None


def _unrecorded_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return where to look for a gcc that fits, if no recorded package of the system has one."""
    host = context.host
    manager = host_manager(host)
    release = distributions.find_recorded_release(host.platform.distribution)
    if manager is None:
        return f"install gcc {majors[0]}, and name it in CC and CXX"
    place = system_packages.describe_place(manager, host.platform.distribution)
    # Descriptions of EL7 may call yum dnf, whose names for gcc are those of EL8.
    usual_manager = (release.manager if release else "") or manager
    packages = release.compiler_packages if release else ()
    packages = tuple(packages or system_packages.gcc_packages(usual_manager))
    # "11" -> "in Software Collections (…)": archives that root has to switch on first.
    archives = release.look_for if release else {}
    major = next((major for major in majors if str(major) in archives), None)
    if major is not None and host.packages.may_use_root is not False:
        names = " and ".join(name.format(major=major) for name in packages)
        return f"look for it as {names} {archives[str(major)]}, and name it in CC and CXX"
    is_unrecorded = release is None or release.compilers is None
    if is_unrecorded and not distributions.has_one_gcc(host.platform.distribution):
        names = " and ".join(name.format(major=majors[0]) for name in packages)
        return f"look for it as {names} among the packages of {place}, and name it in CC and CXX"
    return _foreign_compiler(context, place, majors)


def _foreign_compiler(context: CheckContext, place: str, majors: Sequence[int]) -> str:
    """Return how to get a gcc that fits without the system's packages, which have none."""
    identifier = context.build.identifier("")
    cures = [f"with docker or podman, `invoke build {identifier}` builds in a container"]
    major = _gxx_major(majors)
    if major is not None and not has_other_libc(context.host):
        cures.insert(0, f"with conda, conda-forge has gxx={major}")
    listed = "; ".join(cures)
    compiler = context.compiler
    present_major = 0
    if compiler is not None and compiler.family == "gcc":
        present_major = Version(compiler.version).major
    # "Such as gcc 4" helps nobody whose gcc 4.8 is to be replaced by 4.9.
    example = next((major for major in majors if major != present_major), majors[0])
    return f"{place} is not known to have a gcc that fits, such as gcc {example}: {listed}"


def _gxx_major(majors: Sequence[int]) -> int | None:
    """Return the first of the gccs that conda-forge has; None if it has none of them."""
    return next((major for major in majors if major >= _OLDEST_GXX), None)


def _active_environment(context: CheckContext, majors: Sequence[int]) -> str:
    """Return how to build with conda-forge's gcc in the active environment; "" if none fits."""
    major = _gxx_major(majors)
    if major is None:
        return ""
    names = [name.format(major=major) for name in system_packages.gcc_packages("conda")]
    install = system_packages.install_command("conda", names, sudo=False)
    assignments = _assignments(context, system_packages.gcc_command("conda"))
    return f"{install} && {assignments} {context.session}"


def _new_environment(context: CheckContext, majors: Sequence[int]) -> tuple[str, ...]:
    """Return how to get conda-forge's gcc in a new environment, as the only element.

    () if conda is not installed, if it has no gcc that fits, or if an environment is active
    already.
    """
    managers = [name for name in ("conda", "micromamba") if name in context.host.packages.managers]
    major = _gxx_major(majors)
    if not managers or major is None or context.host.packages.manager == "conda":
        return ()
    line = f"{managers[0]} create --yes --name gcc-{major} --channel conda-forge gxx={major}"
    return (f"activate an environment with another gcc (`{line}`), and ask again",)


def missing_compiler_cures(context: CheckContext) -> tuple[str, ...]:
    """Return how to get a C++ compiler on a host that has none.

    That is the compiler that CXX names in the plan. Without CXX it is the distribution's usual one
    if that fits, else a gcc that does.
    """
    host = context.host
    clang = re.fullmatch(r"(?:.*/)?clang\+\+(-\d+)?", context.plan.variables.get("CXX", ""))
    if clang and clang[1]:
        return (package_cure(host, [f"clang{clang[1]}"]),)
    if clang:
        return (item_cure_for_build(context, "clang"),)
    release = distributions.find_recorded_release(host.platform.distribution)
    if release is not None and release.gcc:
        usual = _newest_gcc(release.gcc)
        if not host_compiler.compiler_fits(context.constraints, usual):
            return compiler_cures(context)
    return (item_cure_for_build(context, "compiler"), *container_cures(context))
