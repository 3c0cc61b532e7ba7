"""Builds on machines with GPUs, with the options that a build has by default."""

from typing import Any

from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.local_gpus import with_local_gpus

HOST = Host(
    "x86_64", "linux", HostResources(16, 2**36), platform=HostPlatform(glibc="2.35"), complete=True
)


def host_with_gpus(*names: str, driver: str = "580.65.06") -> Host:
    devices = tuple(Gpu(name) for name in names)
    gpus = {"devices": devices, "kernel_driver": driver, "driver": driver}
    return change_host(HOST, gpus=gpus)


def build_context(facts: Facts, names: str, host: Host, **options: Any) -> CheckContext:
    """Return the context of a build: `names` are its cell and the tag of torch."""
    identifier, tag = names.split()
    release = find_release(facts, "torch", tag)
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    with_defaults = with_local_gpus(facts, cell, host, Options(**options))
    plan = build_plan.compute_plan(facts, cell, host, with_defaults)
    return CheckContext(facts, cell, host, plan)
