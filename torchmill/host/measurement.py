"""Measure this machine: read what can be read, run the rest in parallel; or describe one as TOML, and read that."""

import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from millguard import limits
from millguard.limits import process_limit

from torchmill.config.build import CPU
from torchmill.config.distributions import WITH_MUSL, usual_managers
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.versions import is_version
from torchmill.core.errors import ConfigError
from torchmill.core.paths import user_cache_folder
from torchmill.core.stat_cache import StatCache
from torchmill.core.system_errors import nearest_existing, report_unwritable
from torchmill.host import (
    cuda_toolkits,
    distribution,
    gpu_driver,
    interpreters,
    libraries,
    native,
    programs,
    provisioned,
)
from torchmill.host.host import Compiler, Host

FAMILIES = ("gcc", "clang", "apple-clang", "msvc")
_NO_VERSIONS = {"codename", "libstdc++"}  # of a Linux distribution, and where one lies
_THREADS = 8  # programs wait for their files more than they compute


def measure_basic_host(stat_cache: StatCache) -> Host:
    """Measure what the plan of a build without CUDA follows from; no compiler is asked twice."""
    run = programs.make_runner(os.environ, stat_cache)
    host = _measure_basis(os.environ, Path("/"), Path.home(), run)
    return replace(host, unanswered=dict(run.unanswered))


def with_named_compiler(
    host: Host, settings: Mapping[str, str], environ: Mapping[str, str]
) -> Host:
    """Return a host that also knows the compiler that CXX names in a build's settings, or that it has none of these."""
    if not (name := settings.get("CXX")):
        return host
    command = programs.compiler_command({**environ, "CXX": name})
    if named := programs.identify_compiler(command, environ, programs.make_runner(environ)):
        return replace(host, compilers={**host.compilers, name: named})
    tools = {tool: place for tool, place in host.tools.items() if tool != "c++"}
    tools |= {"c++": shlex.join(command)} if command else {}
    others = {
        other: compiler for other, compiler in host.compilers.items() if other != Path(name).name
    }
    return replace(host, compiler=None, compilers=others, tools=tools)


def _measure_basis(
    environ: Mapping[str, str], root: Path, home: Path, run: programs.RunProgram
) -> Host:
    """`run` asks compilers what they are."""
    native_arch = native.native_arch()
    translated = native_arch == "macos_x86_64" and programs.is_translated(
        programs.make_runner(environ)
    )
    arch = "arm64" if translated else native_arch
    libc, version = platform.libc_ver()
    meter = limits.LimitMeter(environ=environ)
    tools = programs.find_tools(environ)
    toolkits = cuda_toolkits.find_toolkits(environ, root, home, run)
    there = provisioned.list_provisioned(user_cache_folder(environ, home), arch).values()
    completed = provisioned.completed_toolkits(there)
    command = programs.compiler_command(environ)  # also one that does not say what it is
    return Host(
        arch=arch,
        system=native.native_system(),
        cores=meter.cores().count,
        memory=meter.memory().available,
        processor_seconds=process_limit("RLIMIT_CPU"),
        glibc=version if libc == "glibc" else None,
        distribution=distribution.measure_distribution(root)
        if native.native_system() == "linux"
        else None,
        translated=translated,
        processor=tuple(sorted(native.processor_flags(root))),
        compiler=programs.identify_compiler(command, environ, run),
        cuda_compiler=programs.identify_compiler(
            programs.command_words(environ, "CUDAHOSTCXX"), environ, run
        ),
        tools=tools | ({"c++": shlex.join(command)} if command else {}),
        libraries=libraries.find_libraries(environ, root, toolkits)
        | programs.own_cxx_library(command, run),
        toolkits=toolkits,
        completed={
            version: completed[place] for version, place in toolkits.items() if place in completed
        },
        kept={one.name: str(one.home) for one in there if one.record.kind != provisioned.TOOLKIT},
    )


def measure_host(
    builds: Path,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
    *,
    gpus: bool = True,
) -> Host:
    """Measure the machine whose files lie below `root`; `builds` is where builds will happen.

    Without `gpus` the driver is not asked for any: what is built for the CPU alone does not depend on them.
    """
    home = home or Path.home()
    run = programs.make_runner(environ)
    tools = programs.find_tools(environ)
    brought = provisioned.provisioned_compilers(
        user_cache_folder(environ, home), native.native_arch()
    )
    with ThreadPoolExecutor(_THREADS) as threads, ThreadPoolExecutor(_THREADS) as probes:
        known = threads.submit(programs.installed_compilers, environ, root, brought, run, probes)
        versions = threads.submit(programs.tool_versions, tools, run, probes)
        found = threads.submit(gpu_driver.find_host_gpus, root, run) if gpus else None
        broken = threads.submit(interpreters.broken_shims, environ, home)
        headless = threads.submit(interpreters.interpreters_without_headers, environ, home)
        host = _measure_basis(environ, root, home, run)
        places = interpreters.installed_interpreters(environ, home)
        host = replace(
            host,
            disk=shutil.disk_usage(nearest_existing(builds)).free,
            complete=True,
            compilers=known.result(),
            tools={**host.tools, **programs.xcode_tools(tools, run), **_sudo(environ)},
            versions=versions.result() | programs.system_version(root, run),
            managers=distribution.installed_managers(environ),
            root=distribution.may_use_root(environ),
            interpreters=_texts(places),
            broken_interpreters=_texts(
                interpreters.shadowing_shims(places, environ, home) | broken.result()
            ),
            headless_interpreters=_texts(headless.result()),
            translated_interpreters=_texts(interpreters.translated_interpreters(places, host.arch)),
            driver=gpu_driver.driver_library_version(environ, root),
            kernel_driver=gpu_driver.kernel_driver_version(root),
            compat=gpu_driver.compat_folders(environ, root),
            gpus=found.result() if found else (),
        )
    return replace(host, unanswered=dict(run.unanswered))


def _sudo(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where sudo is; nothing for root, who needs none."""
    place = None if distribution.is_root() else shutil.which("sudo", path=environ.get("PATH"))
    return {"sudo": place} if place else {}


def _texts(paths: Mapping[str, Path]) -> dict[str, str]:
    return {version: str(path) for version, path in paths.items()}


def read_or_measure_host(file: str, root: Path, identifier: str = "") -> Host:
    """Return the machine that a file describes, and without one this machine, for a checkout in `root`.

    `identifier` names the build that is asked about: one for the CPU does not ask for GPUs.
    """
    return load_host(Path(file)) if file else measure_host(root, gpus=not is_for_cpu(identifier))


def is_for_cpu(identifier: str) -> bool:
    """Tell whether a session's name is of a build for the CPU: "wheel-3.10-cpu"."""
    return CPU in identifier.split("-")


def load_host(path: Path) -> Host:
    """Read a host from a TOML file with the fields of model.Host; raise ConfigError with all mistakes."""
    if not path.is_file():
        raise ConfigError(
            f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: write one with "
            "`invoke doctor --save FILE`, or leave --host out",
            code="host-file-missing",
        )
    problems: list[str] = []
    table = read_toml(path, problems)
    if problems:
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    system, compilers = (
        table.choice("system", native.SYSTEMS.values()),
        table.map("compilers", _compiler),
    )
    host = table.read(
        Host,
        arch=_arch(table, system),
        system=system,
        cores=_cores(table),
        compiler=_compiler(table, "compiler"),
        cuda_compiler=_compiler(table, "cuda_compiler"),
        compilers={name: compiler for name, compiler in compilers.items() if compiler is not None},
        gpus=table.read_each("gpus", Gpu),
        distribution=_distribution(table, system),
        rooms=(),
        runs=(),
    )
    for name, version in {**host.versions, **host.libraries}.items():
        if version and name not in _NO_VERSIONS and not is_version(version):
            table.problem(f"'{name}' is '{version}', expected a version, such as '2.35' (PEP 440)")
    if not problems and host.memory <= 0:
        table.problem("'memory' is nothing: expected what the machine has, such as '16 GiB'")
    for gpu in host.gpus:
        if gpu.capability and not re.fullmatch(r"\d+\.\d", gpu.capability):
            table.problem(f"'capability' is '{gpu.capability}', expected one such as '8.6'")
    for problem in contradictions(host):
        table.problem(problem)
    if problems:
        raise ConfigError("\n".join(problems), code="invalid-host-file")
    return host


def contradictions(host: Host) -> Iterator[str]:
    """Yield what in the description of a host cannot be so, each as a sentence."""
    found, manager = host.distribution, host.manager
    usual = usual_managers(found)
    if usual and manager and manager not in {*usual, "conda", "brew"}:
        yield f"'manager' is '{manager}', and packages of {found} are installed with {usual[0]}: correct one of the two"
    if host.glibc and host.system in native.ARCHES and host.system != "linux":
        yield f"'glibc' is a C library of Linux, and 'system' is '{host.system}': leave it out"
    if host.glibc and found and found.id in WITH_MUSL:
        yield f"'glibc' is given, and the C library of {found} is musl: leave it out"
    if found and found.l4t and host.arch != "aarch64":
        yield f"'l4t' is for Jetson boards, which are aarch64, and 'arch' is '{host.arch}': correct one of the two"
    if host.toolkits and host.system == "macos" and host.arch == "arm64":
        yield "'toolkits' is given, and there is no CUDA toolkit for Apple silicon: leave it out"


def save_host(host: Host, path: Path) -> None:
    """Write a host to a file that `load_host` reads. Raises HostError where it cannot be written."""
    with report_unwritable(path):
        path.write_text(describe_host(host), encoding="utf-8")


def describe_host(host: Host) -> str:
    """Return the TOML from which `load_host` reads this host again."""
    import tomlkit  # which only who writes one needs

    told: dict[str, Any] = {one.name: getattr(host, one.name) for one in fields(host)}
    told |= {name: f"{told[name]} B" for name in ("memory", "disk") if told[name]}
    told |= {name: str(told[name]) for name in ("compiler", "cuda_compiler") if told[name]}
    told["compilers"] = {name: str(one) for name, one in host.compilers.items()}
    told["gpus"] = [
        {key: value for key, value in asdict(gpu).items() if value} for gpu in host.gpus
    ]
    if host.distribution is not None:
        told["distribution"] = {
            key: value for key, value in asdict(host.distribution).items() if value
        }
    kept = {name: value for name, value in told.items() if value and name not in {"rooms", "runs"}}
    kept |= {} if host.root is None else {"root": host.root}  # false says something too
    first = "# A machine, as `invoke doctor --save` wrote it; examine it with `invoke doctor --host FILE`\n"
    return first + tomlkit.dumps(kept)


def _arch(table: TomlTable, system: str) -> str:
    """Take the arch: one that the system has, or one that `native_arch` made a name for."""
    arch, usual = table.text("arch"), native.ARCHES.get(system, ())
    if arch and usual and arch not in usual and not arch.startswith(f"{system}_"):
        table.problem(
            f"'arch' is '{arch}', expected {' or '.join(usual)} where 'system' is '{system}'"
        )
    return arch


def _distribution(table: TomlTable, system: str) -> LinuxDistribution | None:
    """Take the distribution, a table with at least an `id`."""
    if "distribution" not in table.data:
        table.requested.append("distribution")
        return None
    if system in native.ARCHES and system != "linux":
        table.problem(f"'distribution' is one of Linux, and 'system' is '{system}': leave it out")
    inner = table.table("distribution")
    found = inner.read(LinuxDistribution)
    if found.l4t and not is_version(found.l4t):
        inner.problem(
            f"'l4t' is '{found.l4t}', expected a release of Jetson Linux, such as '36.4.3'"
        )
    return found


def _compiler(table: TomlTable, key: str) -> Compiler | None:
    """Take a compiler, written as "gcc 12.2.0"."""
    text = table.optional(key)
    family, _, version = (text or "").partition(" ")
    if text and (family not in FAMILIES or not is_version(version)):
        families = ", ".join(FAMILIES)
        table.problem(
            f"'{key}' is '{text}', expected one of {families} and a version, as in 'gcc 12.2.0'"
        )
        return None
    return Compiler(family, version) if text else None


def _cores(table: TomlTable) -> int:
    value = table.take("cores", int, "a whole number from 1")
    if value is not None and value < 1:
        table.problem(f"'cores' is {value}, expected a whole number from 1")
    return value or 1
