"""Which of the kept MAGMA a build is linked with."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from torchmill.config import cell_lookup, matrix
from torchmill.config.arch_list import unserved_capabilities
from torchmill.config.model import Facts, Host, Options, Plan
from torchmill.host import provisioned
from torchmill.plan import build_plan, cuda_libraries, cuda_selection

HOST = Host("x86_64", "linux", 8, 2**35, glibc="2.36", complete=True, toolkits={"11.8": "/k/11.8"})
SEVENTY, BOTH = "magma-2.6.1-cu118-7.0", "magma-2.6.1-cu118-7.0_8.6+PTX"


def planned(
    facts: Facts, kept: Sequence[str], listed: str = "7.0", *, host: Host = HOST, **said: str
) -> Plan:
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cu118", "x86_64", matrix.find_release(facts, "torch", "v2.1.0")
    )
    there = replace(host, kept={name: f"/k/{name}" for name in kept})
    return build_plan.compute_plan(facts, cell, there, Options(arch_list=listed, settings=said))


@pytest.mark.parametrize(
    ("code", "listed", "missed"),
    [
        ("7.0;8.6", "7.0;8.6+PTX", []),
        ("7.0;8.6", "7.5;8.9", []),  # code of a lower minor version runs
        ("7.0;8.6", "8.0;9.0;9.0a", ["8.0", "9.0"]),
        ("7.0+PTX", "8.0;12.0", []),  # a driver compiles it
        ("7.0", "8.7", ["8.7"]),
        ("8.0", "8.7", ["8.7"]),  # a system on a chip
        ("7.0", "", []),
    ],
)
def test_code_serves_what_it_runs_on(shipped: Facts, code: str, listed: str, missed: list[str]) -> None:
    assert unserved_capabilities(shipped, code, listed) == missed


def test_names_say_what_the_code_is_for() -> None:
    assert provisioned.magma_name("magma-2.6.1-cu118", "7.0;8.6+PTX") == BOTH
    names = (BOTH, "cudnn-8.5.0.96-cu11", "magma-2.6.1-cu121-9.0", "magma-2.6.1-cu118")
    (found,) = provisioned.provisioned_magma(names, "11.8")
    assert (found.version, found.code) == ("2.6.1", "7.0;8.6+PTX")


def test_a_kept_one_that_serves_the_list_is_taken(shipped: Facts) -> None:
    made = planned(shipped, [SEVENTY, BOTH, "magma-2.6.1-cu121-8.6"], "7.0;8.6")
    assert (made.set["USE_MAGMA"], made.set["MAGMA_HOME"]) == ("1", "${magma_home}")
    assert (made.libraries["magma"], made.kept["magma"]) == ("2.6.1", BOTH)
    assert (
        cuda_selection.cuda_placeholders(made, replace(HOST, kept={BOTH: "/k/both"}))["magma_home"]
        == "/k/both"
    )
    assert not any("torch.linalg" in reason for reason in made.reasons)


@pytest.mark.parametrize("kept", [[], [SEVENTY], ["magma-2.6.1-cu121-8.6"], ["magma-2.6.1-cu118"]])
def test_else_it_is_switched_off_with_what_is_lost(shipped: Facts, kept: list[str]) -> None:
    made = planned(shipped, kept, "8.6")
    assert made.set["USE_MAGMA"] == "0"
    assert "MAGMA_HOME" not in made.set
    assert "magma" not in made.libraries
    (reason,) = (one for one in made.reasons if "torch.linalg" in one)
    assert "`invoke toolkit --library magma-cuXYZ` brings one" in reason


def test_what_the_user_says_and_what_the_machine_has_goes_first(shipped: Facts) -> None:
    assert "magma" not in planned(shipped, [SEVENTY], USE_MAGMA="0").libraries
    assert planned(shipped, [SEVENTY], MAGMA_HOME="/opt/magma").set["MAGMA_HOME"] == "/opt/magma"
    own = planned(shipped, [SEVENTY], host=replace(HOST, libraries={"magma": "2.5.4"}))
    assert ("magma" not in own.libraries, "USE_MAGMA" not in own.set) == (True, True)


def test_the_official_version_goes_before_newer_ones(shipped: Facts) -> None:
    names = ["magma-2.7.2-cu118-7.0", SEVENTY, "magma-2.10.0-cu118-7.0"]
    for theirs, version in (("2.6.1", "2.6.1"), ("2.5.2", "2.10.0"), (None, "2.10.0")):
        best = cuda_libraries.best_magma(shipped, names, "11.8", "7.0", theirs)
        assert best is not None
        assert best.version == version


def test_an_older_release_has_no_switch(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.7-cu102", "x86_64", matrix.find_release(shipped, "torch", "v1.9.0")
    )
    there = replace(HOST, kept={"magma-2.5.2-cu102-3.7_7.0": "/k/magma"})
    made = build_plan.compute_plan(shipped, cell, there, Options(arch_list="7.0"))
    assert (made.set["MAGMA_HOME"], "USE_MAGMA" in made.set) == ("${magma_home}", False)
