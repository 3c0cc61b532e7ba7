"""Measure this machine: what can be read is read, and what must be run is run side by side."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from torchmill import interpreters
from torchmill.guard import limits
from torchmill.host import apple, compilers, cuda, driver, kept, libraries, native, programs, pythons
from torchmill.layout import cache
from torchmill.model import Host

_THREADS = 8  # programs wait for their files more than they compute


def basis(environ: Mapping[str, str], root: Path, home: Path, run: programs.Run) -> Host:
    """Measure what the plan of a build without CUDA follows from; `run` asks compilers what they are."""
    arch, translated = _arch(programs.runner(environ))
    tools = programs.tools(environ)
    toolkits = cuda.toolkits(environ, root, home, run)
    there = kept.kept(cache(environ, home), arch).values()
    completed = kept.completed(there)
    return Host(
        arch=arch,
        system=native.native_system(),
        cores=limits.cores(environ=environ).count,
        memory=limits.memory(environ=environ).bytes,
        disk=None,
        glibc=_glibc(),
        translated=translated,
        compiler=compilers.used(environ, run),
        cuda_compiler=compilers.for_cuda(environ, run),
        tools=tools | _compiler(environ),
        libraries=libraries.found(environ, root, toolkits),
        toolkits=toolkits,
        completed={version: completed[place] for version, place in toolkits.items() if place in completed},
        kept=kept.beside_toolkits(there),
    )


def measure(builds: Path, environ: Mapping[str, str], root: Path, home: Path) -> Host:
    """Measure the machine whose files lie below `root`; `builds` is where builds will happen."""
    run = programs.runner(environ)
    tools = programs.tools(environ)
    brought = kept.compilers(cache(environ, home), native.native_arch())
    with ThreadPoolExecutor(_THREADS) as threads, ThreadPoolExecutor(_THREADS) as probes:
        known = threads.submit(compilers.installed, environ, root, brought, run, probes)
        versions = threads.submit(programs.versions, tools, run, probes)
        gpus = threads.submit(driver.gpus, root, run)
        broken = threads.submit(interpreters.broken, environ, home)
        headless = threads.submit(interpreters.headless, environ, home)
        host = basis(environ, root, home, run)
        places = interpreters.installed(environ, home)
        return replace(
            host,
            disk=_free(builds),
            complete=True,
            compilers=known.result(),
            tools={**host.tools, **apple.tools(tools, run)},
            versions=versions.result() | apple.versions(run),
            interpreters=_texts(places),
            broken_interpreters=_texts(pythons.shadowed(places, environ, home) | broken.result()),
            headless_interpreters=_texts(headless.result()),
            translated_interpreters=_texts(pythons.translated(places, host.arch)),
            driver=driver.library_version(environ, root),
            kernel_driver=driver.kernel_version(root),
            compat=driver.compat(environ, root),
            gpus=gpus.result(),
        )


def _arch(run: programs.Run) -> tuple[str, bool]:
    """Return the machine's arch, and whether this very process was made for another."""
    arch = native.native_arch()
    translated = arch == "macos_x86_64" and apple.is_translated(run)
    return ("arm64", True) if translated else (arch, False)


def _compiler(environ: Mapping[str, str]) -> dict[str, str]:
    command = compilers.command(environ)  # also one that does not say what it is
    return {"c++": shlex.join(command)} if command else {}


def _glibc() -> str | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else None
    except (ValueError, OSError):  # musl
        return None
    return text.split()[-1] if text else None


def _free(root: Path) -> int:
    """Return the free bytes where `root` is, or will be."""
    existing = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _texts(paths: Mapping[str, Path]) -> dict[str, str]:
    return {version: str(path) for version, path in paths.items()}
