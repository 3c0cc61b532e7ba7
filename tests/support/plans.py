"""Plans of cells for a Linux machine, present in no test but described here."""

from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell import Cell
from torchmill.plan.options import NamedFiles, parse_words
from torchmill.plan.plan import Plan

GIB = 2**30
LINUX = Host(
    "x86_64", "linux", HostResources(cores=8, memory=32 * GIB), platform=HostPlatform(glibc="2.36")
)
MACOS = Host("arm64", "macos", HostResources(cores=8, memory=32 * GIB))


def options_of(*words: str) -> Options:
    """Return the options of a command line that names no files."""
    options, files = parse_words(words, "test", {})
    assert files == NamedFiles()
    return options


def find_torch_cell(facts: Facts, identifier: str, tag: str, arch: str = "x86_64") -> Cell:
    """Return a cell of the shipped facts that goes with a release of torch."""
    return cell_lookup.find_cell(facts, identifier, arch, find_release(facts, "torch", tag))


def plan_torch(
    facts: Facts,
    identifier: str,
    tag: str,
    host: Host = LINUX,
    *,
    options: Options = NO_OPTIONS,
    source: Source | None = None,
) -> Plan:
    """Return the plan of a cell of the shipped facts that goes with a release of torch."""
    cell = find_torch_cell(facts, identifier, tag, host.arch)
    return build_plan.compute_plan(facts, cell, host, options, source)


def plan_base(
    small_facts: Facts,
    identifier: str = "wheel-3.10-cpu",
    tag: str = "v1.0.0",
    host: Host = LINUX,
    *,
    options: Options = NO_OPTIONS,
    source: Source | None = None,
) -> Plan:
    """Return the plan of a cell of the small facts, whose base package is called base."""
    release = find_release(small_facts, "base", tag)
    cell = cell_lookup.find_cell(small_facts, identifier, host.arch, release)
    return build_plan.compute_plan(small_facts, cell, host, options, source)
