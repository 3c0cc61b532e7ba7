"""A plan as JSON and as text."""

import json
from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from tests.support.plans import LINUX, plan_base, plan_torch
from torchmill.config.facts import Facts
from torchmill.host.host import Host
from torchmill.plan import render
from torchmill.plan.build_options import Options


def test_json_has_the_keys_that_programs_rely_on(small_facts: Facts) -> None:
    data = json.loads(json.dumps(render.plan_as_data(plan_base(small_facts))))
    assert list(data) == [
        "identifier",
        "package",
        "tag",
        "commit",
        "source",
        "version",
        "environment",
        "toolkit",
        "libraries",
        "torch",
        "requirements",
        "kit",
        "patches",
        "lacks",
        "vulnerabilities",
        "differs",
        "published",
        "commands",
        "jobs",
        "wheel",
        "platform",
    ]
    assert data["environment"]["passed"][0] == "PATH"


def test_the_text_names_toolkit_and_libraries_with_their_places(shipped: Facts) -> None:
    toolkits = {"homes": {"11.8": "/k/11.8"}, "provisioned": {"cudnn-8.5.0.96-cu11": "/k/cudnn 8"}}
    host = change_host(LINUX, toolkits=toolkits)
    options = Options(toolkit="11.8")
    plan = plan_torch(shipped, "wheel-3.10-cu117", "v1.13.1", host, options=options)
    assert render.plan_as_text(plan, host).splitlines()[2:5] == [
        "with CUDA 11.8 in place of 11.7 in /k/11.8",
        "with cudnn 8.5.0.96 in /k/cudnn 8",
        "with nccl 2.14.3, which is missing",
    ]
    completed = {"11.8": "/opt/cuda, completed with nvidia-cufft-cu11 10.9"}
    host = change_host(host, toolkits={"completed": completed})
    assert render.plan_as_text(plan, host).splitlines()[2] == (
        "with CUDA 11.8 in place of 11.7 in /k/11.8 "
        "(/opt/cuda, completed with nvidia-cufft-cu11 10.9)"
    )


def missing_line(shipped: Facts, identifier: str, tag: str, host: Host) -> str:
    """Return what the summary of a plan says on missing needs, in one line."""
    plan = plan_torch(shipped, identifier, tag, host)
    text = render.plan_summary(shipped, plan, host, {}, tag=tag, options=())
    rows = text.splitlines()
    (first,) = [number for number, row in enumerate(rows) if row.startswith("missing ")]
    lines = [rows[first].removeprefix("missing ")]
    for row in rows[first + 1 :]:
        if not row.startswith(" "):
            break
        lines.append(row)
    return " ".join(" ".join(lines).split())


def test_a_build_brings_what_providers_have(shipped: Facts) -> None:
    line = missing_line(shipped, "wheel-3.10-cu117", "v1.13.1", LINUX)
    assert line.startswith("CUDA 11.7, ")
    assert line.endswith(": `invoke build wheel-3.10-cu117 --tag=v1.13.1` brings what is missing")


def test_a_build_does_not_bring_a_toolkit_that_no_provider_has(shipped: Facts) -> None:
    host = replace(LINUX, complete=True)
    line = missing_line(shipped, "wheel-3.7-cu92", "v1.5.0", host)
    assert line == (
        "Python 3.7, a C++ compiler, CUDA 9.2: no provider has CUDA 9.2 for this machine: install "
        "it by other means, and set CUDA_HOME to its folder; then `invoke build wheel-3.7-cu92 "
        "--tag=v1.5.0` brings the rest"
    )
    line = missing_line(shipped, "wheel-3.7-cu92", "v1.5.0", LINUX)
    assert "invoke build" not in line, "nothing else is missing"
    line = missing_line(shipped, "wheel-3.8-cu110", "v1.7.1", LINUX)
    assert "no provider has CUDA 11.0 for this machine" in line
    assert "`invoke toolkit --cuda 11.2`" in line, "the next one that a provider has"


def test_no_newer_toolkit_is_offered_with_which_a_release_does_not_build(shipped: Facts) -> None:
    host = replace(LINUX, arch="aarch64")
    line = missing_line(shipped, "wheel-3.8-cu113", "v1.10.0", host)
    assert "no provider has CUDA 11.3" in line
    assert "invoke toolkit" not in line
    assert "set CUDA_HOME to its folder" in line


def test_a_toolkit_that_the_machine_has_needs_no_provider(shipped: Facts) -> None:
    host = change_host(LINUX, toolkits={"homes": {"11.0": "/k/11.0"}})
    line = missing_line(shipped, "wheel-3.8-cu110", "v1.7.1", host)
    assert "no provider" not in line
    assert line.endswith("brings what is missing")


@pytest.mark.parametrize(("system", "guarded"), [("linux", True), ("windows", False)])
def test_the_text_tells_what_decides_on_the_number_of_compilers(
    small_facts: Facts, system: str, guarded: bool
) -> None:
    plan = plan_base(small_facts, options=Options(jobs=3))
    line = render.plan_as_text(plan, replace(LINUX, system=system)).splitlines()[1]
    assert "3 compilers at a time" in line
    assert ("when there is memory for it" in line) is guarded


def test_on_windows_the_launcher_of_python_downloads_the_requirements(small_facts: Facts) -> None:
    plan = plan_base(small_facts)
    assert " python3.10 -m pip wheel " in render.plan_as_text(plan, LINUX)
    for_windows = replace(plan, wheel=replace(plan.wheel, platform_tag="win_amd64"))
    text = render.plan_as_text(for_windows, replace(LINUX, system="windows"))
    assert " py -3.10 -m pip wheel " in text
