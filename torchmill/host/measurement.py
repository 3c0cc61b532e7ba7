"""Measure this machine: read what can be read, run the rest in parallel."""

import os
import platform
import shlex
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from torchmill.config.model import Host
from torchmill.core.files import nearest_existing
from torchmill.core.paths import user_cache_folder
from torchmill.core.stat_cache import StatCache
from torchmill.host import cuda_toolkits, gpu_driver, interpreters, libraries, limits, native, programs, provisioned

_THREADS = 8  # programs wait for their files more than they compute


def measure_basic_host(stat_cache: StatCache) -> Host:
    """Measure what the plan of a build without CUDA follows from; no compiler is asked twice."""
    run = programs.make_caching_runner(os.environ, stat_cache)
    return _measure_basis(os.environ, Path("/"), Path.home(), run)


def _measure_basis(environ: Mapping[str, str], root: Path, home: Path, run: programs.RunProgram) -> Host:
    """`run` asks compilers what they are."""
    native_arch = native.native_arch()
    translated = native_arch == "macos_x86_64" and programs.is_translated(programs.make_runner(environ))
    arch = "arm64" if translated else native_arch
    libc, version = platform.libc_ver()
    tools = programs.find_tools(environ)
    toolkits = cuda_toolkits.find_toolkits(environ, root, home, run)
    there = provisioned.list_provisioned(user_cache_folder(environ, home), arch).values()
    completed = provisioned.completed_toolkits(there)
    command = programs.compiler_command(environ)  # also one that does not say what it is
    return Host(
        arch=arch,
        system=native.native_system(),
        cores=limits.measure_cores(environ=environ).count,
        memory=limits.measure_memory(environ=environ).available,
        disk=None,
        glibc=version if libc == "glibc" else None,
        translated=translated,
        processor=tuple(sorted(native.processor_flags(root))),
        compiler=programs.used_compiler(environ, run),
        cuda_compiler=programs.cuda_host_compiler(environ, run),
        tools=tools | ({"c++": shlex.join(command)} if command else {}),
        libraries=libraries.find_libraries(environ, root, toolkits),
        toolkits=toolkits,
        completed={version: completed[place] for version, place in toolkits.items() if place in completed},
        kept=provisioned.provisioned_libraries(there),
    )


def measure_host(
    builds: Path,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
) -> Host:
    """Measure the machine whose files lie below `root`; `builds` is where builds will happen."""
    home = home or Path.home()
    run = programs.make_runner(environ)
    tools = programs.find_tools(environ)
    brought = provisioned.provisioned_compilers(user_cache_folder(environ, home), native.native_arch())
    with ThreadPoolExecutor(_THREADS) as threads, ThreadPoolExecutor(_THREADS) as probes:
        known = threads.submit(programs.installed_compilers, environ, root, brought, run, probes)
        versions = threads.submit(programs.tool_versions, tools, run, probes)
        gpus = threads.submit(gpu_driver.find_host_gpus, root, run)
        broken = threads.submit(interpreters.broken_shims, environ, home)
        headless = threads.submit(interpreters.interpreters_without_headers, environ, home)
        host = _measure_basis(environ, root, home, run)
        places = interpreters.installed_interpreters(environ, home)
        return replace(
            host,
            disk=shutil.disk_usage(nearest_existing(builds)).free,
            complete=True,
            compilers=known.result(),
            tools={**host.tools, **programs.xcode_tools(tools, run)},
            versions=versions.result() | programs.macos_version(run) | programs.system_codename(),
            interpreters=_texts(places),
            broken_interpreters=_texts(interpreters.shadowing_shims(places, environ, home) | broken.result()),
            headless_interpreters=_texts(headless.result()),
            translated_interpreters=_texts(interpreters.translated_interpreters(places, host.arch)),
            driver=gpu_driver.driver_library_version(environ, root),
            kernel_driver=gpu_driver.kernel_driver_version(root),
            compat=gpu_driver.compat_folders(environ, root),
            gpus=gpus.result(),
        )


def _texts(paths: Mapping[str, Path]) -> dict[str, str]:
    return {version: str(path) for version, path in paths.items()}
