"""Ways to bring what a host lacks that the host can take: its packages, `invoke deps`, compilers, containers; pure."""

import re
from collections.abc import Sequence

from packaging.version import Version

from torchmill.config import cell_lookup, distributions, matrix
from torchmill.config.model import Compiler, Facts, Host
from torchmill.host.provisioned import COMPILER
from torchmill.plan import cuda_toolkit, system_packages
from torchmill.plan.doctor.finding import CheckContext, toolkit_command
from torchmill.plan.providers import has_other_libc
from torchmill.plan.system_packages import PACKAGES

_OLDEST, _NEWEST = 4, 20  # major versions of gcc that are looked through for one that fits
_OLDEST_GXX = 10  # of conda-forge's package gxx: https://anaconda.org/conda-forge/gxx/files
ENGINES = ("docker", "podman")


def host_manager(host: Host) -> str | None:
    """Return the package manager of a host: the one that it names, or the usual one of its distribution."""
    return host.manager or next(iter(distributions.usual_managers(host.distribution)), None)


def package_way(host: Host, names: Sequence[str]) -> str:
    """Return how to install system packages on a host: a command if that is known to work, else a sentence."""
    manager = host_manager(host)
    if manager is None:
        return f"install {' '.join(names)}"
    supply = system_packages.find_supply(manager, host.distribution, names)
    if missing := supply.missing_sentence(
        system_packages.describe_place(manager, host.distribution)
    ):
        return missing
    if system_packages.may_install(host, manager):
        return install_line(host, manager, supply.names, supply.archives)
    line = system_packages.install_command(
        manager, supply.names, sudo=False, archives=supply.archives
    )
    return f"ask whoever administers this machine to run `{line}`"


def install_line(
    host: Host, manager: str, names: Sequence[str], archives: Sequence[str] = ()
) -> str:
    """Return the command that installs packages on a host, through sudo unless its user is root."""
    sudo = "sudo" in host.tools or not (host.complete or host.root)
    return system_packages.install_command(manager, names, sudo=sudo, archives=archives)


def board_way(host: Host, name: str) -> str:
    """Return how to install a package of NVIDIA's archive for Jetson, which is set up on these boards."""
    if system_packages.may_install(host, "apt"):
        return install_line(host, "apt", [name])
    return f"ask whoever administers this machine to run `{system_packages.install_command('apt', [name], sudo=False)}`"


def item_way(
    host: Host, item: str, facts: Facts, cells: Sequence[matrix.Cell], provider: str | None = None
) -> str:
    """Return how to install an item of system_packages.toml, such as "git", on a host.

    That is `invoke deps` only if the packages that rules name for one of the cells have the item among them.
    """
    manager = host_manager(host)
    name = PACKAGES["item"][item].get(system_packages.names_of(manager))
    if name is None or manager is None:
        return f"install {'a C++ compiler' if item == 'compiler' else item}"
    supply = system_packages.find_supply(manager, host.distribution, [name])
    usable = supply.names and system_packages.may_install(host, manager)
    if usable and name in system_packages.required_packages(facts, cells, manager, provider):
        return "invoke deps"
    return package_way(host, [name])


def build_item_way(context: CheckContext, item: str) -> str:
    """Return how to install an item of system_packages.toml for a build."""
    provider = context.source.provider if context.source else None
    way = item_way(context.host, item, context.facts, [context.cell], provider)
    return (
        f"{way} --tag {cell_lookup.selecting_tag(context.facts, context.cell.release)}"
        if way == "invoke deps"
        else way
    )


def compiler_ways(context: CheckContext) -> tuple[str, ...]:
    """Return the ways to build with a compiler that fits, the best first.

    One that is there goes first; then what needs no root, if the user is not root or the build has CUDA.
    """
    with_cuda = context.toolkit is not None
    terms, used, host = context.constraints, context.compiler, context.host
    untried = used is not None and cuda_toolkit.compiler_fits(
        terms, used
    )  # then only one that was tried is better
    every = host.compilers.items()
    better = {
        name: one for name, one in every if not (untried and cuda_toolkit.is_untried(terms, one))
    }
    if (command := cuda_toolkit.best_compiler(terms, better)) is not None:
        return (f"{_settings(command, with_cuda=with_cuda)} {context.session}",)
    majors = _fitting_majors(context)
    if not majors:
        return ()
    brought = _brought_compiler(context, majors)
    packages = _package_compiler(context, majors)
    rootless_first = with_cuda or host.root is False
    ways = [brought, packages] if rootless_first else [packages, brought]
    unknown = "" if packages else _unrecorded_compiler(context, majors)
    return (*ways, *_conda_compiler(context, majors), *container_ways(context), unknown)


def _brought_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return the command that brings the first of some gccs without root; "" if none is known to run on the host.

    It needs what other compilers there need too: headers of the C library, an assembler.
    """
    host, release = context.host, distributions.find_release(context.host.distribution)
    if release is None or not release.isl or not (host.compiler or host.compilers):
        return ""
    return next(
        (line for one in majors if (line := toolkit_command(context, COMPILER, f"gcc-{one}"))), ""
    )


def _settings(command: str, *, with_cuda: bool) -> str:
    variables = cuda_toolkit.variables_for_compiler(command, cuda=with_cuda)
    return " ".join(f"{name}={text}" for name, text in variables.items())


def _fitting_majors(context: CheckContext) -> list[int]:
    """Return the major versions of gcc that fit: those that were tried first, the nearest to what the machine has."""
    compiler = context.compiler
    has = Version(compiler.version).major if compiler and compiler.family == "gcc" else _NEWEST
    known = [(major, Compiler("gcc", f"{major}.99")) for major in range(_OLDEST, _NEWEST)]
    fitting = [
        (cuda_toolkit.is_untried(context.constraints, one), abs(major - has), major)
        for major, one in known
        if cuda_toolkit.compiler_fits(context.constraints, one)
    ]
    return [major for _, _, major in sorted(fitting)]


def _package_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return how to build with the first of some gccs that the system's packages are known to have; "" without any."""
    host, manager = context.host, host_manager(context.host)
    if manager == "conda":
        return _conda_line(context, majors)
    choice = _packaged_compiler(host, majors)
    if choice is None or manager is None:
        return ""
    names, command = choice
    start = f"{_settings(command, with_cuda=context.toolkit is not None)} {context.session}"
    if system_packages.may_install(host, manager):
        return f"{install_line(host, manager, names)} && {start}"
    line = system_packages.install_command(manager, names, sudo=False)
    return f"ask whoever administers this machine to run `{line}`, then `{start}`"


def _unrecorded_compiler(context: CheckContext, majors: Sequence[int]) -> str:
    """Return where to look for a gcc that fits, if the system's packages are not known to have any."""
    manager, release = (
        host_manager(context.host),
        distributions.find_release(context.host.distribution),
    )
    if manager is None:
        return f"install gcc {majors[0]}, and name it in CC and CXX"
    place = system_packages.describe_place(manager, context.host.distribution)
    usual = (release.manager if release else "") or manager  # descriptions of EL7 may call yum dnf
    packages = (release.compiler_packages if release else ()) or system_packages.gcc_packages(usual)
    elsewhere = release.look_for if release else {}
    major = next((major for major in majors if str(major) in elsewhere), None)
    if major is not None and context.host.root is not False:
        names = " and ".join(name.format(major=major) for name in packages)
        return f"look for it as {names} {elsewhere[str(major)]}, and name it in CC and CXX"
    unread = release is None or release.compilers is None
    if unread and not distributions.has_one_gcc(context.host.distribution):
        names = " and ".join(name.format(major=majors[0]) for name in packages)
        return f"look for it as {names} among the packages of {place}, and name it in CC and CXX"
    ways = [
        f"with docker or podman, `invoke build {context.build.identifier('')}` builds in a container"
    ]
    if (major := next((one for one in majors if one >= _OLDEST_GXX), None)) and not has_other_libc(
        context.host
    ):
        ways.insert(0, f"with conda, conda-forge's gxx={major} is another")
    return (
        f"{place} is not known to have a gcc that fits, such as gcc {majors[0]}: {'; '.join(ways)}"
    )


def _packaged_compiler(host: Host, majors: Sequence[int]) -> tuple[list[str], str] | None:
    """Return the packages and the command of the first of some gccs that the host's distribution is known to have."""
    manager, release = host_manager(host), distributions.find_release(host.distribution)
    if manager is None or release is None:
        return None
    for major in majors:
        if release.has_gcc(major):
            names = release.compiler_packages or system_packages.gcc_packages(manager)
            command = release.compiler_command or system_packages.gcc_command(manager)
            return [name.format(major=major) for name in names], command.format(major=major)
        if release.gcc == str(major) and "g++" not in host.compilers:
            return [PACKAGES["item"]["compiler"][system_packages.names_of(manager)]], "g++"
    return None


def _conda_line(context: CheckContext, majors: Sequence[int]) -> str:
    """Return how to build with a gcc of conda-forge in the environment that is active; "" if it has none that fits."""
    major = next((one for one in majors if one >= _OLDEST_GXX), None)
    if major is None:
        return ""
    names = [one.format(major=major) for one in system_packages.gcc_packages("conda")]
    settings = _settings(
        system_packages.gcc_command("conda"), with_cuda=context.toolkit is not None
    )
    return f"{system_packages.install_command('conda', names, sudo=False)} && {settings} {context.session}"


def _conda_compiler(context: CheckContext, majors: Sequence[int]) -> tuple[str, ...]:
    """Return how to get a gcc from conda-forge if conda is there, and none of its environments is active."""
    program = next((one for one in ("conda", "micromamba") if one in context.host.managers), None)
    major = next((one for one in majors if one >= _OLDEST_GXX), None)
    if program is None or major is None or context.host.manager == "conda":
        return ()
    line = f"{program} create --yes --name gcc-{major} --channel conda-forge gxx={major}"
    return (f"activate an environment with another gcc (`{line}`), and ask again",)


def container_ways(context: CheckContext) -> tuple[str, ...]:
    """Return how to build in a container, if the host is known to have an engine."""
    if context.host.system != "linux" or not any(one in context.host.tools for one in ENGINES):
        return ()
    tag = cell_lookup.selecting_tag(context.facts, context.cell.release)
    return (f"in a container: `invoke build {context.build.identifier('')} --tag {tag}`",)


def glibc_way(context: CheckContext) -> str:
    """Return how to build on a system with glibc: in a container, or if the host has no engine, in another image."""
    if ways := container_ways(context):
        return ways[0]
    tag = cell_lookup.selecting_tag(context.facts, context.cell.release)
    variant = f" --toolkit {context.plan.toolkit}" if context.plan.toolkit else ""
    arch = f" --arch {context.build.arch}" if context.build.arch != context.host.arch else ""
    recipe = (
        f"`invoke image --kind builder --tag {tag} --python {context.build.python}{variant}{arch}`"
    )
    return f"build on a system with glibc, such as an image of Debian or AlmaLinux ({recipe} writes a Dockerfile)"


def named_compiler_ways(context: CheckContext) -> tuple[str, ...]:
    """Return the ways to get the C++ compiler that a host lacks: what CXX names, or the usual one if that fits."""
    host, release = context.host, distributions.find_release(context.host.distribution)
    if match := re.fullmatch(r"(?:.*/)?clang\+\+(-\d+)?", context.plan.set.get("CXX", "")):
        return (
            package_way(host, [f"clang{match[1]}"])
            if match[1]
            else build_item_way(context, "clang"),
        )
    usual = Compiler("gcc", f"{release.gcc}.99") if release and release.gcc else None
    if usual is None or cuda_toolkit.compiler_fits(context.constraints, usual):
        return (build_item_way(context, "compiler"), *container_ways(context))
    return compiler_ways(context)
