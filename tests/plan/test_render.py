"""A plan as JSON and as text."""

import json
from dataclasses import replace

import pytest

from tests.support.hosts import change_host
from tests.support.plans import LINUX, plan_base, plan_torch
from torchmill.config.facts import Facts
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


@pytest.mark.parametrize(("system", "guarded"), [("linux", True), ("windows", False)])
def test_the_text_tells_what_decides_on_the_number_of_compilers(
    small_facts: Facts, system: str, guarded: bool
) -> None:
    plan = plan_base(small_facts, options=Options(jobs=3))
    line = render.plan_as_text(plan, replace(LINUX, system=system)).splitlines()[1]
    assert "3 compilers at a time" in line
    assert ("when there is memory for it" in line) is guarded
