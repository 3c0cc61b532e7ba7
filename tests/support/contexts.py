"""A build on a made-up machine of four cores, of which nothing exists on the disk yet."""

from pathlib import Path

from torchmill.cell import context
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source.source import Source
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostInterpreters,
    HostPrograms,
    HostResources,
)
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options

HOST = Host(
    arch="x86_64",
    system="linux",
    resources=HostResources(cores=4, memory=2**34, free_disk=2**40),
    compilers=HostCompilers(default=Compiler("gcc", "12.2.0")),
    programs=HostPrograms(paths={"git": "/usr/bin/git", "c++": "c++"}),
    interpreters=HostInterpreters(paths={"3.10": "/usr/bin/python3.10"}),
    complete=True,
)


def job(
    small_facts: Facts,
    tmp_path: Path,
    host: Host,
    identifier: str = "wheel-3.10-cpu",
    options: Options = Options(),  # noqa: B008 (it is frozen)
) -> context.BuildContext:
    cell = cell_lookup.find_cell(
        small_facts, identifier, "x86_64", find_release(small_facts, "base", "v1.0.0")
    )
    fetched = Source(
        "base", "1.0.0", "v1.0.0", "git", "url", "1" * 40, tmp_path / "source", verified=True
    )
    computed = build_plan.compute_plan(small_facts, cell, host, options, fetched)
    layout = Layout(tmp_path, tmp_path / "cache")
    stat_cache = StatCache(tmp_path / "stat-cache.json")
    venv, python = tmp_path / "venv", Path("/python")
    return context.BuildContext(
        layout,
        small_facts,
        host,
        cell,
        options,
        fetched,
        computed,
        venv,
        python,
        {},
        {},
        stat_cache,
    )
