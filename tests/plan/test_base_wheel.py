"""The doctor's finding on the torch that an extension is built against."""

import pytest

from torchmill.config.facts import Facts
from torchmill.config.release import Release
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


def make_context(
    facts: Facts,
    names: str,
    host: Host,
    wheels: tuple[str, ...] | None = (),
    torch: str | None = None,
) -> CheckContext:
    """Return the context of a build: `names` are its cell, package, and tag of torch."""
    identifier, package, tag = names.split()
    release: Release | None = find_release(facts, "torch", tag)
    if package != "torch" and release is not None:
        release = paired_release(facts, package, release)
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    plan = build_plan.compute_plan(facts, cell, host, Options(torch=torch))
    return CheckContext(facts, cell, host, plan, wheels=wheels)


def base_finding(
    facts: Facts, names: str, host: Host, wheels: tuple[str, ...] | None = ()
) -> Finding:
    (finding,) = check_base_wheel(make_context(facts, names, host, wheels))
    return finding


@pytest.mark.parametrize(
    ("names", "host", "cure"),
    [
        ("audio-3.8-cu102 torchaudio v1.8.0", BOARD, "nox -s wheel-3.8-cu102"),
        ("vision-3.10-cu122 torchvision v2.1.0", BOARD, "nox -s wheel-3.10-cu122"),
    ],
)
def test_a_torch_that_no_index_has_is_built_or_named(
    shipped: Facts, names: str, host: Host, cure: str
) -> None:
    finding = base_finding(shipped, names, host)
    assert (finding.verdict, finding.cure) == ("warning", cure)
    assert "no index with it is recorded" in finding.because
    assert "--torch WHEEL" in finding.other_cures[0]


# PyPI has the wheel for 12.1, but not under its local version.
@pytest.mark.parametrize("variant", ["cu121", "cu124"])
def test_a_torch_on_upstreams_index_is_downloaded_rather_than_built(
    shipped: Facts, variant: str
) -> None:
    finding = base_finding(shipped, f"vision-3.12-{variant} torchvision v2.4.1", SERVER)
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
def test_a_wheel_in_dist_serves_if_version_python_and_machine_match(
    shipped: Facts, wheel: str, verdict: str
) -> None:
    finding = base_finding(shipped, "vision-3.12-cu124 torchvision v2.4.1", SERVER, (wheel,))
    assert finding.verdict == verdict


@pytest.mark.parametrize(("python", "verdict"), [("3.13", "warning"), ("3.13t", "ok")])
def test_a_free_threaded_wheel_serves_its_own_python_alone(
    shipped: Facts, python: str, verdict: str
) -> None:
    wheel = "torch-2.6.0+cu124-cp313-cp313t-manylinux_2_35_x86_64.whl"
    finding = base_finding(shipped, f"vision-{python}-cu124 torchvision v2.6.0", SERVER, (wheel,))
    assert finding.verdict == verdict


def test_the_dist_of_a_described_machine_is_unknown(shipped: Facts) -> None:
    finding = base_finding(shipped, "vision-3.12-cu124 torchvision v2.4.1", SERVER, None)
    assert finding.state == "not described"


def test_there_is_no_finding_if_pip_finds_torch_on_pypi(shipped: Facts) -> None:
    names = "vision-3.12-cu121 torchvision v2.4.1"
    assert not list(check_base_wheel(make_context(shipped, names, SERVER, torch=PYPI)))


def test_there_is_no_finding_on_a_build_of_torch_itself(shipped: Facts) -> None:
    context = make_context(shipped, "wheel-3.12-cu124 torch v2.4.1", SERVER)
    assert not list(check_base_wheel(context))


def test_a_plan_downloads_no_wheel_that_torchmill_builds(shipped: Facts) -> None:
    plan = make_context(shipped, "audio-3.8-cu102 torchaudio v1.8.0", BOARD).plan
    lines = render.plan_as_text(plan, BOARD).splitlines()
    (download,) = [line for line in lines if "download them beforehand" in line]
    assert "torch==" not in download
    assert "  torch==1.8.0+cu102, a wheel in dist/" in lines
