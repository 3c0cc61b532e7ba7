"""Measure this machine: read what can be read, and run programs for the rest in parallel."""

import os
import platform
import shlex
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from millguard import limits
from millguard.limits import process_limit, process_room

from torchmill.config.build import CPU
from torchmill.core.paths import user_cache_folder
from torchmill.core.stat_cache import StatCache
from torchmill.core.system_errors import nearest_existing
from torchmill.host import (
    certificates,
    cuda_toolkits,
    distribution,
    gpu_driver,
    interpreters,
    libraries,
    native,
    programs,
    provisioned,
)
from torchmill.host.compilers import (
    command_words,
    compiler_command,
    compiler_fault,
    identify_compiler,
    installed_compilers,
    own_cxx_library,
)
from torchmill.host.crossing import measure_crossings
from torchmill.host.description import load_host
from torchmill.host.host import (
    Host,
    HostCompilers,
    HostGpus,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)
from torchmill.host.system_state import (
    is_translated,
    shared_memory_size,
    system_version,
    xcode_tools,
)

# More threads than many machines have cores: programs mostly wait for the disk.
_THREADS = 8


def read_or_measure_host(file: str, checkout: Path, identifier: str = "") -> Host:
    """Return the machine that a file describes, or this machine if `file` is "".

    Builds happen on the disk of `checkout`. `identifier` names the build in question: for one
    without CUDA the driver is not asked for GPUs. Raises ConfigError for a file that is missing or
    has mistakes.
    """
    if file:
        return load_host(Path(file))
    return measure_host(checkout, gpus=not is_for_cpu(identifier))


def is_for_cpu(identifier: str) -> bool:
    """Tell whether a session's name is of a build for the CPU: "wheel-3.10-cpu"."""
    return CPU in identifier.split("-")


def with_named_compiler(
    host: Host, settings: Mapping[str, str], environ: Mapping[str, str]
) -> Host:
    """Return a host that also knows the compiler that CXX names in the settings of a build.

    The default compiler stays: plans look the named one up by its command. If that command is no
    compiler, the host has no default compiler, as the build would have none.
    """
    name = settings.get("CXX")
    if not name:
        return host
    command = compiler_command({**environ, "CXX": name})
    compiler = identify_compiler(command, environ, programs.make_runner(environ))
    compilers = host.compilers
    if compiler is not None:
        by_command = {**compilers.by_command, name: compiler}
        return replace(host, compilers=replace(compilers, by_command=by_command))

    # Without its full path, a command is looked up by its name (`HostCompilers.of_command`): for
    # "/opt/broken/g++-11", the system's own g++-11 would be found.
    by_command = dict(compilers.by_command)
    by_command.pop(Path(name).name, None)
    paths = dict(host.programs.paths)
    paths.pop("c++", None)
    if command:
        paths["c++"] = shlex.join(command)
    return replace(
        host,
        compilers=replace(compilers, default=None, by_command=by_command),
        programs=replace(host.programs, paths=paths),
    )


def measure_basic_host(stat_cache: StatCache) -> Host:
    """Measure what decides the plan of a build without CUDA; the host is not complete.

    Programs whose files are unchanged are not run again: `stat_cache` has their answers.
    """
    run = programs.make_runner(os.environ, stat_cache)
    host = _measure_basis(os.environ, Path("/"), Path.home(), run)
    return replace(host, programs=replace(host.programs, unanswered=dict(run.unanswered)))


def measure_host(
    builds: Path,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
    *,
    gpus: bool = True,
) -> Host:
    """Measure the machine whose files lie below `root`; `builds` is the folder of builds.

    Without `gpus`, the driver is not asked for GPUs, which takes seconds: a build for the CPU does
    not depend on them. `home` is the user's folder. The host is complete, but for the disks, the
    earlier runs, and what `survey_host` in cell/ adds, for which callers ask.
    """
    home = home or Path.home()
    run = programs.make_runner(environ)
    tools = programs.find_tools(environ)
    cache = user_cache_folder(environ, home)
    cached = provisioned.provisioned_compilers(cache, native.native_arch())
    # Outer tasks wait for inner ones. In one pool, all threads could be waiting. The pool of the
    # inner tasks is closed last.
    with ThreadPoolExecutor(_THREADS) as inner, ThreadPoolExecutor(_THREADS) as outer:
        compilers = outer.submit(installed_compilers, environ, root, cached, run, inner)
        versions = outer.submit(programs.tool_versions, tools, run, inner)
        devices = outer.submit(gpu_driver.find_host_gpus, root, run) if gpus else None
        crossings = outer.submit(measure_crossings, environ, root, home, cache, run)
        shims = outer.submit(interpreters.broken_shims, environ, home)
        without_headers = outer.submit(interpreters.interpreters_without_headers, environ, home)
        host = _measure_basis(environ, root, home, run)
        pythons = interpreters.installed_interpreters(environ, home)

    tool_paths = {**host.programs.paths, **xcode_tools(tools, run), **_find_sudo(environ)}
    tool_versions = {**versions.result(), **system_version(root, run)}
    broken = interpreters.shadowing_shims(pythons, environ, home) | shims.result()
    free_disk = shutil.disk_usage(nearest_existing(builds)).free
    return replace(
        host,
        complete=True,
        resources=replace(
            host.resources, free_disk=free_disk, shared_memory=shared_memory_size(root)
        ),
        platform=replace(
            host.platform, missing_certificates=certificates.missing_certificates(environ, root)
        ),
        compilers=replace(host.compilers, by_command=compilers.result()),
        # By now every program has been run, and the ones that failed to answer are known.
        programs=HostPrograms(tool_paths, tool_versions, dict(run.unanswered)),
        # The doctor asks for the installed packages, if its findings depend on them.
        packages=HostPackages(
            managers=distribution.installed_managers(environ),
            may_use_root=distribution.may_use_root(environ),
        ),
        interpreters=HostInterpreters(
            paths=_as_strings(pythons),
            broken=_as_strings(broken),
            lacking_modules=interpreters.lacking_modules(pythons),
            without_headers=_as_strings(without_headers.result()),
            translated=_as_strings(interpreters.translated_interpreters(pythons, host.arch)),
        ),
        gpus=HostGpus(
            devices=devices.result() if devices else (),
            driver=gpu_driver.driver_library_version(environ, root),
            kernel_driver=gpu_driver.kernel_driver_version(root),
            compat_folders=gpu_driver.compat_folders(environ, root),
            stub_folders=gpu_driver.stub_folders(environ, root),
            compat_driver=gpu_driver.compat_driver_version(environ, root),
        ),
        crossings=crossings.result(),
    )


def with_compiler_fault(host: Host, environ: Mapping[str, str] = os.environ) -> Host:
    """Return a measured host that also says why its C++ compiler cannot make an empty program.

    To try takes a fifth of a second, so that only what examines a machine asks for it. A compiler
    that did not tell its version is not tried: it would be waited for once more.
    """
    if host.compilers.default is None:
        return host
    fault = compiler_fault(compiler_command(environ), environ)
    return replace(host, compilers=replace(host.compilers, fault=fault))


def _measure_basis(
    environ: Mapping[str, str], root: Path, home: Path, run: programs.RunProgram
) -> Host:
    """Measure what every plan needs; `run` asks compilers for their versions."""
    arch = native.native_arch()
    # sysctl is not asked through `run`, which may have cached answers: they do not say whether this
    # very process is run by Rosetta 2, Apple's translator of programs for Intel.
    translated = arch == "macos_x86_64" and is_translated(programs.make_runner(environ))
    if translated:
        arch = "arm64"
    system = native.native_system()
    meter = limits.LimitMeter(environ=environ)
    command = compiler_command(environ)  # known even if the compiler cannot be identified
    cuda_command = command_words(environ, "CUDAHOSTCXX")
    tools = programs.find_tools(environ)
    # A command of several words, "ccache g++", so that it can be run as it is.
    if command:
        tools["c++"] = shlex.join(command)
    return Host(
        arch=arch,
        system=system,
        resources=HostResources(
            cores=meter.cores().count,
            memory=meter.memory().available,
            processor_seconds=process_limit("RLIMIT_CPU"),
            open_files=process_limit("RLIMIT_NOFILE"),
            processes=process_room(root),
            largest_file=process_limit("RLIMIT_FSIZE"),
        ),
        platform=HostPlatform(
            glibc=_glibc_version(),
            distribution=distribution.measure_distribution(root) if system == "linux" else None,
            translated=translated,
            processor_features=tuple(sorted(native.processor_flags(root))),
        ),
        compilers=HostCompilers(
            default=identify_compiler(command, environ, run),
            cuda=identify_compiler(cuda_command, environ, run),
        ),
        programs=HostPrograms(paths=tools),
        toolkits=_measure_toolkits(arch, command, environ, root=root, home=home, run=run),
    )


def _measure_toolkits(
    arch: str,
    command: list[str] | None,
    environ: Mapping[str, str],
    *,
    root: Path,
    home: Path,
    run: programs.RunProgram,
) -> HostToolkits:
    """Return the toolkits and libraries that a build with the compiler `command` would find."""
    homes = cuda_toolkits.find_toolkits(environ, root, home, run)
    cache = user_cache_folder(environ, home)
    folders = provisioned.list_provisioned(cache, arch).values()
    origins = provisioned.completed_toolkits(folders)  # by the home of a complete copy
    libraries_and_compilers = {}
    for folder in folders:
        if folder.record.kind != provisioned.TOOLKIT:
            libraries_and_compilers[folder.name] = str(folder.home)
    return HostToolkits(
        homes=homes,
        completed={version: origins[path] for version, path in homes.items() if path in origins},
        provisioned=libraries_and_compilers,
        libraries=libraries.find_libraries(environ, root, homes) | own_cxx_library(command, run),
        loader_libraries=libraries.loader_libraries(environ, root),
    )


def _glibc_version() -> str | None:
    """Return the version of glibc that this process runs with; None for another C library."""
    library, version = platform.libc_ver()
    return version if library == "glibc" else None


def _find_sudo(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {"sudo": path}, or {} for root and if there is no sudo."""
    if distribution.is_root():
        return {}
    path = shutil.which("sudo", path=environ.get("PATH"))
    return {"sudo": path} if path else {}


def _as_strings(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return paths as strings, with the same keys."""
    return {version: str(path) for version, path in paths.items()}
