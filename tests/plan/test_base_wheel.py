"""What a dependent package is built against: where pip finds that wheel is told before anything starts."""

import pytest

from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, render
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.doctor.base_wheel import check_base_wheel
from torchmill.plan.doctor.finding import CheckContext, Finding

BOARD = Host(
    "aarch64", "linux", HostResources(6, 2**33), platform=HostPlatform(glibc="2.27"), complete=True
)
SERVER = Host(
    "x86_64", "linux", HostResources(16, 2**36), platform=HostPlatform(glibc="2.35"), complete=True
)


def question(
    facts: Facts,
    named: str,
    host: Host,
    wheels: tuple[str, ...] | None = (),
    torch: str | None = None,
) -> CheckContext:
    cell, package, tag = named.split()
    release = find_release(facts, "torch", tag)
    chosen = release if package == "torch" else paired_release(facts, package, release)
    built = cell_lookup.find_cell(facts, cell, host.arch, chosen)
    plan = build_plan.compute_plan(facts, built, host, Options(torch=torch))
    return CheckContext(facts, built, host, plan, wheels=wheels)


def found(facts: Facts, named: str, host: Host, wheels: tuple[str, ...] | None = ()) -> Finding:
    (finding,) = check_base_wheel(question(facts, named, host, wheels))
    return finding


@pytest.mark.parametrize(
    ("named", "host", "first"),
    [
        ("audio-3.8-cu102 torchaudio v1.8.0", BOARD, "nox -s wheel-3.8-cu102"),
        ("vision-3.10-cu122 torchvision v2.1.0", BOARD, "nox -s wheel-3.10-cu122"),
    ],
)
def test_a_torch_that_no_index_has_is_built_first_or_given(
    shipped: Facts, named: str, host: Host, first: str
) -> None:
    finding = found(shipped, named, host)
    assert (finding.verdict, finding.cure) == ("warning", first)
    assert "no index with it is recorded" in finding.because
    assert "--torch WHEEL" in finding.other_cures[0]


@pytest.mark.parametrize(
    "variant", ["cu121", "cu124"]
)  # PyPI has the first, without the local version
def test_a_wheel_that_upstreams_index_has_is_not_built_for_hours(
    shipped: Facts, variant: str
) -> None:
    finding = found(shipped, f"vision-3.12-{variant} torchvision v2.4.1", SERVER)
    index = f"https://download.pytorch.org/whl/{variant}"
    assert finding.cure == f"PIP_EXTRA_INDEX_URL={index} nox -s vision-3.12-{variant}"
    assert finding.other_cures[0] == f"nox -s wheel-3.12-{variant}"
    assert "no index" not in finding.because


@pytest.mark.parametrize(
    ("wheel", "verdict"),
    [
        ("torch-2.4.1+cu124-cp312-cp312-manylinux_2_35_x86_64.whl", "ok"),
        ("torch-2.4.1+cu121-cp312-cp312-manylinux_2_35_x86_64.whl", "warning"),
        ("torch-2.4.1+cu124-cp311-cp311-manylinux_2_35_x86_64.whl", "warning"),
        ("torch-2.4.1+cu124-cp312-cp312-manylinux_2_35_aarch64.whl", "warning"),
    ],
)
def test_a_wheel_in_dist_is_taken_if_it_is_that_one(
    shipped: Facts, wheel: str, verdict: str
) -> None:
    assert (
        found(shipped, "vision-3.12-cu124 torchvision v2.4.1", SERVER, (wheel,)).verdict == verdict
    )


def test_of_another_machine_it_is_not_said_what_is_in_dist(shipped: Facts) -> None:
    assert (
        found(shipped, "vision-3.12-cu124 torchvision v2.4.1", SERVER, None).state
        == "not described"
    )


def test_what_pip_finds_on_pypi_needs_no_word(shipped: Facts) -> None:
    assert not [
        *check_base_wheel(
            question(shipped, "vision-3.12-cu121 torchvision v2.4.1", SERVER, torch=PYPI)
        )
    ]
    assert not [*check_base_wheel(question(shipped, "wheel-3.12-cu124 torch v2.4.1", SERVER))]


def test_a_plan_does_not_send_to_an_index_for_a_wheel_of_ours(shipped: Facts) -> None:
    plan = question(shipped, "audio-3.8-cu102 torchaudio v1.8.0", BOARD).plan
    lines = render.plan_as_text(plan, BOARD).splitlines()
    (download,) = [line for line in lines if "download them first" in line]
    assert "torch==" not in download
    assert "  torch==1.8.0+cu102, a wheel in dist/" in lines
