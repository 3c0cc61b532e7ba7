"""What the doctor finds: through the real invoke, and without it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from millpress.errors import OptionError

from tests.support.commands import ROOT, InvokeHere, run
from tests.support.machines import gcc, made_up_programs
from tests.support.refusals import refused
from torchmill.commands import doctor, machine_report
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.core.paths import Layout
from torchmill.host import description
from torchmill.host.host import Host, HostResources, HostToolkits
from torchmill.plan.doctor.finding import Finding

HOSTS = ROOT / "tests" / "golden" / "hosts"
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
SAMPLE = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs")}


def visit(small_facts: Facts, name: str, identifier: str = "") -> machine_report.DoctorReport:
    release = small_facts.releases["torch"][-1] if not identifier else None
    return machine_report.examine_host(
        small_facts, None, description.load_host(HOSTS / f"{name}.toml"), identifier, release
    )


def test_the_table_ends_with_cures_and_the_outcome(tmp_path: Path) -> None:
    described = f"--host={HOSTS / 'debian-12.toml'}"
    process = run(
        "invoke", "doctor", "wheel-3.10-cu117", "--tag", "v1.13.1", described, home=tmp_path
    )
    assert process.returncode == 7
    header, *lines = process.stdout.splitlines()
    assert header.split() == ["verdict", "check", "found", "needed"]
    assert any(
        line.startswith("failure  host compiler of nvcc") and "gcc >=6,<12" in line
        for line in lines
    )
    assert "    invoke toolkit --compiler gcc-11" in lines
    assert lines[-1].startswith("wheel-3.10-cu117 (torch 1.13.1): ")
    assert ", 4 failures" in lines[-1]
    assert process.stderr.startswith(
        "error[machine-not-ready]: wheel-3.10-cu117 (torch 1.13.1) cannot be built here yet (host compiler"
    )
    page = (ROOT / "docs/how-to/check-a-machine.md").read_text(encoding="utf-8")
    assert (
        f"--host tests/golden/hosts/debian-12.toml\n{process.stdout}{process.stderr}```" in page
    ), "it is its example"


@pytest.mark.parametrize(
    ("host", "version", "cure"),
    [
        ("debian-12", "3.7", "    pyenv install 3.7"),  # has others of pyenv
        ("debian-12", "3.8", "    uv python install 3.8"),
        (
            "ubuntu-driver-450",
            "3.7",
            "    uv has none before 3.8; with https://github.com/pyenv/pyenv, `pyenv install 3.7`",
        ),
    ],
)
def test_a_python_comes_by_what_the_machine_has(
    invoke: InvokeHere, host: str, version: str, cure: str
) -> None:
    text = invoke(f"doctor wheel-{version}-cpu --tag v1.10.0 --host={HOSTS / host}.toml")[1]
    assert f"\n{cure}\n" in text


def test_json_for_programs(tmp_path: Path) -> None:
    described = f"--host={HOSTS / 'debian-12.toml'}"
    process = run(
        "invoke", "doctor", "--tag=v1.13.1", "wheel-3.10-cpu", described, "--json", home=tmp_path
    )
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout)
    assert (data["subject"], data["can_start"]) == ("wheel-3.10-cpu (torch 1.13.1)", True)
    keys = {"subject", "found", "needed", "verdict", "cure", "because", "runs_here", "other_cures"}
    assert set(data["findings"][0]) == keys


def test_this_machine_is_saved_and_examined_again(tmp_path: Path) -> None:
    saved = tmp_path / "host.toml"
    saving = run("invoke", "doctor", f"--save={saved}", home=tmp_path)
    assert saving.stdout.splitlines()[-1].startswith("this machine: ")
    described = description.load_host(saved)
    assert described.complete
    assert described.interpreters.paths[THIS]
    loaded = run("invoke", "doctor", f"--host={saved}", "--json", home=tmp_path)
    assert loaded.returncode == saving.returncode
    assert json.loads(loaded.stdout)["subject"] == "the machine"


@made_up_programs
def test_the_sample_with_a_compiler_from_the_environment(tmp_path: Path) -> None:
    compiler = gcc(tmp_path / "bin", "g++-99", "99.1.0")
    env = SAMPLE | {"CXX": str(compiler)}
    process = run(
        "invoke", "doctor", f"wheel-{THIS}-cpu", "--tag=v1.0.0", "--json", home=tmp_path, env=env
    )
    assert process.returncode == 0, process.stdout + process.stderr
    state = {
        finding["subject"]: finding["found"] for finding in json.loads(process.stdout)["findings"]
    }
    assert state["C++ compiler"] == "gcc 99.1.0"
    missing = run(
        "invoke",
        "doctor",
        f"wheel-{THIS}-cpu",
        "--tag=v1.0.0",
        home=tmp_path,
        env=env | {"CXX": "g++-98"},
    )
    assert missing.returncode == 7
    assert "(C++ compiler)" in missing.stderr


@made_up_programs
def test_the_compiler_that_a_setting_names_is_judged_and_no_other(tmp_path: Path) -> None:
    gcc(tmp_path / "own", "g++", "7.1.0")
    (mute := tmp_path / "mute").write_text("#!/bin/sh\n")
    mute.chmod(0o755)
    gone = tmp_path / "gone" / "g++"
    expected = {
        tmp_path / "own" / "g++": "gcc 7.1.0",
        mute: f"{mute}, which does not say what it is",
        gone: "none",
    }
    for place, state in expected.items():
        words = ("doctor", f"wheel-{THIS}-cpu", "--tag=v1.0.0", "--json", f"--set=CXX={place}")
        process = run("invoke", *words, home=tmp_path, env=SAMPLE)
        findings = {
            finding["subject"]: finding["found"]
            for finding in json.loads(process.stdout)["findings"]
        }
        assert findings["C++ compiler"] == state
        assert (process.returncode == 0) == (place != gone)


def test_an_impossible_build_is_refused_before_it_is_examined(tmp_path: Path) -> None:
    process = run("invoke", "doctor", "wheel-3.12-cpu", "--tag=v1.13.1", home=tmp_path)
    assert process.returncode == 3
    assert "was released for Python" in process.stderr


def test_a_machine_is_examined_for_itself(shipped: Facts) -> None:
    report = visit(shipped, "debian-12")
    by_subject = {finding.subject: finding for finding in report.findings}
    assert by_subject["CUDA 13.0"].state == "/usr/local/cuda-13.0, with gcc 12.2.0"
    assert by_subject["interpreters"].state == "3.10, 3.12"
    assert by_subject["can be built"].state.endswith(
        f" builds of {shipped.releases['torch'][-1].tag}"
    )
    report.require()
    assert report.subject == "the machine"


def test_a_bare_machine_can_build_nothing(shipped: Facts) -> None:
    report = visit(shipped, "bare")
    failed = {finding.subject for finding in report.findings if finding.verdict == "failure"}
    assert {"interpreters", "C++ compiler", "git", "disk"} <= failed
    assert {"Python 3.9", "Python 3.10"} <= {finding.subject for finding in report.findings}
    with refused("machine-not-ready"):
        report.require()


def test_every_described_machine_can_be_examined(shipped: Facts) -> None:
    for path in sorted(HOSTS.glob("*.toml")):
        findings = visit(shipped, path.stem).findings
        assert len({finding.subject for finding in findings}) >= 7


def test_a_build_is_examined_with_its_options(tmp_path: Path) -> None:
    described = f"--host={HOSTS / 'debian-12.toml'}"
    words = ("doctor", "vision-3.10-cu117", "--tag=v1.13.1", described, "--json", "--torch=PyPI")
    for options, needed in (((), "11.7"), (("--toolkit=11.8",), "11.8")):
        process = run("invoke", *words, *options, home=tmp_path)
        state = {finding["subject"]: finding for finding in json.loads(process.stdout)["findings"]}
        assert state["CUDA toolkit"]["needed"].partition(",")[0] == needed
    process = run("invoke", *words, "--arch-list=1.0", home=tmp_path)
    assert process.returncode == 3
    assert "1.0" in process.stderr


def test_options_of_no_build_are_refused(tmp_path: Path) -> None:
    process = run("invoke", "doctor", "--toolkit=11.8", home=tmp_path)
    assert process.returncode == 2
    assert "name the build" in process.stderr


def test_a_name_that_is_no_build_is_refused(shipped: Facts) -> None:
    with pytest.raises(ImpossibleBuildError):
        visit(shipped, "jetson", "wheel-3.15-cu90")


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_a_cure_is_a_command_of_that_system(shipped: Facts, system: str) -> None:
    arch = {"macos": "arm64", "windows": "amd64"}[system]
    bare = Host(
        arch,
        system,
        HostResources(8, 2**34),
        toolkits=HostToolkits(homes={"11.7": "/cuda"}),
        complete=True,
    )
    text = machine_report.examine_host(shipped, None, bare, "", None).as_text()
    assert "invoke deps" not in text.replace("invoke deps\n\nXcode", "")
    assert "apt-get" not in text
    assert "gcc" not in text


def test_builds_that_a_description_leaves_open_are_not_counted_as_none(shipped: Facts) -> None:
    first = visit(shipped, "macbook").findings[0]
    assert (first.verdict, first.state.split(" of ")[0]) == ("unknown", "not known which")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHMILL_SILENCE", "abc"),
        ("TORCHMILL_CACHE", "ftp://x"),
        ("TORCHMILL_WHEELS", "ftp://x"),
        ("TORCHMILL_KEYS", "/nowhere/key"),
        ("SOURCE_DATE_EPOCH", "yesterday"),
    ],
)
def test_a_setting_that_only_a_later_step_would_refuse_is_refused(
    monkeypatch: pytest.MonkeyPatch, shipped: Facts, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises((ConfigError, OptionError), match=f"(?:{name}|{value})"):
        doctor.show_examination(shipped, Layout(tmp_path, tmp_path / "cache"))


def test_all_is_only_recommended_for_fixes_that_it_shows() -> None:
    other = Finding("git", "none", "any", "warning", other_cures=("invoke deps",))
    recommended = [
        "--all" in machine_report.DoctorReport("wheel", [finding], "").as_text()
        for finding in (other, replace(other, cure="invoke deps --tag v1"))
    ]
    assert recommended == [False, True]


def test_the_refusal_points_to_fixes_only_if_there_are_some() -> None:
    fixed = Finding("git", "none", "any", "failure", cure="invoke deps")
    unfixed = Finding("glibc", "musl", "2.17", "failure")

    def refusal(*findings: Finding) -> str:
        with refused("machine-not-ready") as caught:
            machine_report.DoctorReport("wheel", findings, "cannot be built").require()
        return str(caught.value)

    assert refusal(fixed).endswith("(git): see the fixes above")
    assert refusal(replace(unfixed, cure="build on a system with glibc")).endswith(
        "(glibc): build on a system with glibc"
    )
    assert refusal(fixed, unfixed).endswith("see the fixes above; torchmill knows none for glibc")
    assert "above" not in refusal(unfixed)
