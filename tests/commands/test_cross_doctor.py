"""What the doctor finds for a build in a container, and what emulation costs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands.test_cross_build import OTHER, SAMPLE, path
from tests.support import stand_in_engine
from tests.support.commands import ROOT, InvokeHere, run
from tests.support.stand_in_engine import AARCH64
from torchmill.cell.containers.engine import Engine, EngineHost
from torchmill.commands import cross_build
from torchmill.commands.cross_build import ContainerFacts
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.errors import HostError
from torchmill.fetch.source.source import Source
from torchmill.host.description import load_host
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import CheckContext, Finding

HOSTS = ROOT / "tests" / "golden" / "hosts"
BUILDAH = Engine("buildah", "/usr/bin/buildah", (), "1.28.2")
HERE = EngineHost("x86_64", is_rootless=False, is_remote=False)
READY = ContainerFacts(BUILDAH, HERE, "debian-arm64", "{}", handlers={"qemu-aarch64": AARCH64})


def make_context(facts: Facts) -> CheckContext:
    release = find_release(facts, "torch", "v1.13.1")
    cell = cell_lookup.find_cell(facts, "wheel-3.10-cpu-aarch64", "x86_64", release)
    host = load_host(HOSTS / "debian-12.toml")
    return CheckContext(facts, cell, host, build_plan.compute_plan(facts, cell, host, Options()))


def findings_of(facts: Facts, container: ContainerFacts) -> dict[str, Finding]:
    return {
        finding.subject: finding
        for finding in cross_build.container_findings(make_context(facts), container)
    }


def test_all_that_a_session_needs_is_examined(shipped: Facts) -> None:
    findings = findings_of(shipped, READY)
    assert {name: finding.verdict for name, finding in findings.items()} == {
        "container engine": "ok",
        "programs for aarch64": "warning",
        "image": "ok",
        "source": "warning",
        "disk": "ok",
        "memory": "ok",
        "compilers, Pythons": "unknown",
    }
    emulated = findings["programs for aarch64"]
    assert emulated.state == "emulated by qemu-aarch64"
    assert "12 to 15 times as long" in emulated.because
    assert "expect about" in emulated.because
    assert emulated.cure.startswith("faster: an image with cross compilers")
    assert emulated.cure.partition("), ")[2].startswith(
        "a machine that is aarch64, or GitHub's runner"
    )
    assert findings["source"].cure == "invoke fetch --tag v1.13.1"


MISSING = {
    "engine": (
        ContainerFacts(
            HostError(
                "docker is installed but does not answer (ERROR: no daemon)",
                code="no-container-engine",
                cure="install one (apt-get)",
            ),
            handlers={},
        ),
        {
            "container engine": "install one (apt-get)",
            "programs for aarch64": "register QEMU with it, by `docker",
        },
    ),
    "emulation": (
        replace(READY, handlers={}),
        {"programs for aarch64": "register QEMU with it, by `docker run"},
    ),
    "image": (
        replace(READY, image="mine", described=None),
        {"image": "invoke image --kind builder --tag v1.13.1 --arch aarch64 --build"},
    ),
    "files": (
        replace(READY, engine_host=replace(HERE, is_remote=True)),
        {"engine's machine": "run the command there, or unset DOCKER_HOST and CONTAINER_HOST"},
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_a_failure_with_its_cure(name: str, shipped: Facts) -> None:
    container, cures = MISSING[name]
    findings = findings_of(shipped, container)
    failures = {
        subject: finding for subject, finding in findings.items() if finding.verdict == "failure"
    }
    assert failures.keys() == cures.keys()
    for subject, cure in cures.items():
        assert failures[subject].cure.startswith(cure)
    if name == "engine":  # a colon in the words of an engine does not end the reason
        assert failures["container engine"].because.endswith("(ERROR: no daemon)")


@pytest.mark.parametrize("provider", ["git", "debian"])
def test_the_command_for_an_image_can_be_pasted_and_makes_what_is_looked_for(
    shipped: Facts, invoke: InvokeHere, provider: str
) -> None:
    fetched = Source(
        "torch", "1.13.1", "v1.13.1", provider, "there", None, Path("/src"), verified=False
    )
    context = replace(make_context(shipped), source=fetched)
    engine = Engine("podman", "/bin/false", (), "4.3.1")  # has no image
    without_image = cross_build.look_for_image(engine, HERE, context, "")
    (image,) = (
        finding
        for finding in cross_build.container_findings(context, without_image)
        if finding.subject == "image"
    )
    assert list(find_cures([image]).commands) == [image.cure], "a command, whole"
    assert image.cure.endswith(" --build")
    code, printed, error = invoke(image.cure.removeprefix("invoke ").removesuffix(" --build"))
    assert code == 0, error
    assert f"docker build --tag {without_image.image} " in printed
    assert image.state == f"no {without_image.image}"


def test_a_source_of_debian_is_built_in_a_builder_of_it(shipped: Facts) -> None:
    context = make_context(shipped)
    fetched = Source(
        "torch", "1.13.1", "v1.13.1", "debian", "archive", None, Path("/src"), verified=False
    )
    without_image = replace(READY, image="mine", described=None)
    findings = {
        finding.subject: finding
        for finding in cross_build.container_findings(
            replace(context, source=fetched), without_image
        )
    }
    assert findings["image"].cure.endswith(" --arch aarch64 --purpose debian --build")
    first = next(cross_build.builder_images(replace(context, source=fetched)))
    assert first == "localhost/torch-builder:1.13.1-cpu-aarch64-debian"


def test_where_the_engine_runs_on_such_a_machine_nothing_is_emulated(shipped: Facts) -> None:
    findings = findings_of(shipped, replace(READY, engine_host=replace(HERE, arch="aarch64")))
    assert findings["programs for aarch64"].verdict == "ok"


def test_what_emulation_costs_is_estimated_where_it_was_measured(shipped: Facts) -> None:
    context = make_context(shipped)
    first, expected, faster = cross_build.describe_pace(
        shipped, context.plan, emulated=True, crossed=False
    )
    assert first.endswith("compilers take 12 to 15 times as long as natively")
    assert re.fullmatch(
        r"expect about \S+ h \(\S+ h to \S+ h\) with an empty compiler cache", expected
    )
    assert "a machine that is aarch64, or GitHub's runner ubuntu-24.04-arm" in faster
    arch = replace(shipped.arches["aarch64"], emulated=None)
    unmeasured = replace(shipped, arches={**shipped.arches, "aarch64": arch})
    first, faster = cross_build.describe_pace(
        unmeasured, context.plan, emulated=True, crossed=False
    )
    assert first.endswith("compilers take many times as long as natively")
    (native,) = cross_build.describe_pace(shipped, context.plan, emulated=False, crossed=False)
    assert native == "the container's machine is aarch64 itself: nothing is emulated"


def test_cross_compilers_of_an_image_count_where_they_run(shipped: Facts) -> None:
    described = '[{"Config":{"Labels":{"torchmill.cross-compilers":"x86_64"}}}]'
    crossed = replace(READY, described=described)
    assert crossed.is_crossed
    assert not replace(crossed, engine_host=replace(HERE, arch="aarch64")).is_crossed
    assert not replace(crossed, engine_host=None).is_crossed
    assert not READY.is_crossed
    findings = findings_of(shipped, crossed)["programs for aarch64"]
    assert "12 to 15 times" not in findings.because
    assert (
        "programs for aarch64 are emulated here, but not the image's compilers: they take 1."
        in findings.because
    )
    assert findings.cure.startswith("faster: a machine that is aarch64")


def test_the_real_doctor_answers(tmp_path: Path) -> None:
    stand_in_engine.podman(tmp_path, OTHER, OTHER)
    env = SAMPLE | {"PATH": path(tmp_path), "TORCHMILL_IMAGE": f"debian-{OTHER}"}
    words = ("invoke", "doctor", f"wheel-3.10-cpu-{OTHER}")
    process = run(*words, "--json", home=tmp_path / "home", env=env)
    findings = {finding["subject"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert (findings["container engine"]["found"], findings["image"]["verdict"]) == (
        "podman 4.3.1",
        "ok",
    )
    assert findings[f"programs for {OTHER}"]["found"] == "run by the processor"
    assert process.returncode == 0, process.stderr
    (tmp_path / "none").mkdir()
    no_engine = run(*words, home=tmp_path / "home", env=env | {"PATH": path(tmp_path / "none")})
    assert no_engine.returncode == 7
    assert "cannot be built here yet (container engine" in no_engine.stderr
    assert (
        "container engine: none of docker, podman and buildah is on PATH\n    install a"
        in no_engine.stdout
    )


def test_a_mac_is_no_container(tmp_path: Path) -> None:
    process = run("invoke", "doctor", "wheel-3.10-cpu-arm64", "--tag=v1.13.1", home=tmp_path)
    assert "machine: a build is for the machine that it runs on" in process.stdout
