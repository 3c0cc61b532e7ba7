"""Plans that the compiled wheels of millpress's tests fulfil."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from press_support.compiled_wheels import ABI, ARCH, COMMIT, PLATFORM, PYTHON

from torchmill.config.build import Build
from torchmill.config.package import BuildSetup, Package, PackageChecks, PackageSource
from torchmill.config.release import Release, ReleaseProof
from torchmill.plan.plan import Plan, PlannedCuda, PlannedTree, SourceName
from torchmill.wheel.planned_wheel import PlannedWheel


def plan(
    name: str, version: str, switches: Mapping[str, str] | None = None, torch: str | None = None
) -> Plan:
    """Return a plan that the tiny wheels fulfil."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    release = Release(
        package=name,
        version=version.partition("+")[0],
        tag="v1",
        torch=None,
        pythons=(python,),
        arches=(ARCH,),
        source="",
        proof=ReleaseProof(COMMIT),
    )
    wheel = PlannedWheel(
        build=Build(name, "wheel", python, "cpu", ARCH),
        release=release,
        version=version,
        file_name=f"{name}-{version}-{PYTHON}-{ABI}-{PLATFORM}.whl",
        platform_tag=PLATFORM,
        torch=torch,
    )
    return Plan(
        identifier=f"wheel-{python}-cpu",
        wheel=wheel,
        source=SourceName(COMMIT, f"git{COMMIT[:7]}", COMMIT, f"commit {COMMIT[:8]}"),
        tree=PlannedTree(),
        cuda=PlannedCuda(),
        variables=switches or {},
        shell_patterns=(),
        requirements=(),
        commands=(),
        jobs=1,
    )


def package(name: str) -> Package:
    """Return what is known of a tiny package."""
    return Package(
        name=name,
        session="wheel",
        import_name=name,
        after=None,
        source=PackageSource(),
        setup=BuildSetup(version_variables={}, memory_per_job=0, disk=0),
        checks=PackageChecks(script="sample"),
    )
