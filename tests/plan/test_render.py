"""A plan as JSON and as a shell script."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.declared import ONE, declared
from tests.support.hosts import change_host
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, render, script
from torchmill.plan.build_options import Options
from torchmill.plan.plan import Plan

LINUX = Host(
    "x86_64", "linux", HostResources(cores=8, memory=2**35), platform=HostPlatform(glibc="2.36")
)


def written(known: Facts, settings: dict[str, str], patches: dict[str, str] | None = None) -> str:
    cell = cell_lookup.find_cell(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    options = Options(settings=settings, patches=patches or {})
    return script.plan_as_script(build_plan.compute_plan(known, cell, LINUX, options), known, LINUX)


def test_json_has_the_keys_that_programs_rely_on(known: Facts) -> None:
    cell = cell_lookup.find_cell(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    data = json.loads(
        json.dumps(render.plan_as_data(build_plan.compute_plan(known, cell, LINUX, Options())))
    )
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
    assert data["environment"]["passed"][:1] == ["PATH"]


KEPT = {"cudnn-8.5.0.96-cu11": "/k/cudnn 8"}


def with_cuda(shipped: Facts, host: Host) -> Plan:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.10-cu117", "x86_64", find_release(shipped, "torch", "v1.13.1")
    )
    return build_plan.compute_plan(shipped, cell, host, Options(toolkit="11.8"))


def test_the_toolkit_and_the_libraries_are_told_with_their_places(shipped: Facts) -> None:
    machine = change_host(LINUX, toolkits={"homes": {"11.8": "/k/11.8"}, "provisioned": KEPT})
    lines = render.plan_as_text(with_cuda(shipped, machine), machine).splitlines()
    assert lines[2:5] == [
        "with CUDA 11.8 in place of 11.7 in /k/11.8",
        "with cudnn 8.5.0.96 in /k/cudnn 8",
        "with nccl 2.14.3, which is not there yet",
    ]
    told = change_host(
        machine,
        toolkits={"completed": {"11.8": "/opt/cuda, completed with nvidia-cufft-cu11 10.9"}},
    )
    assert render.plan_as_text(with_cuda(shipped, told), told).splitlines()[2] == (
        "with CUDA 11.8 in place of 11.7 in /k/11.8 (/opt/cuda, completed with nvidia-cufft-cu11 10.9)"
    )


def test_the_script_looks_for_them_where_they_are_unless_it_is_told(shipped: Facts) -> None:
    machine = change_host(LINUX, toolkits={"homes": {"11.8": "/k/11.8"}, "provisioned": KEPT})
    text = script.plan_as_script(with_cuda(shipped, machine), shipped, machine)
    homes = [
        line for line in text.splitlines() if line.startswith(("export cuda_", "export cudnn_"))
    ]
    shown = 'printf "%s,%s" "$cuda_home" "$cudnn_home"'
    for environment, expected in (
        ({}, "/k/11.8,/k/cudnn 8"),
        ({"cuda_home": "/mine"}, "/mine,/k/cudnn 8"),
    ):
        done = subprocess.run(
            ["/bin/bash", "-c", "\n".join([*homes, shown])],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == expected


def test_the_script_is_bash(known: Facts, tmp_path: Path) -> None:
    file = tmp_path / "build.sh"
    file.write_text(written(known, {}))
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "content",
    [
        b"a\n+b\n",
        b"",
        b"no newline at the end",
        b"caf\xe9\n",
        b"a\r\n",
        b"a\0\n",
        b"a\nEND_OF_PATCH\ntouch evil\n",
    ],
)
def test_a_patch_is_in_the_script_to_the_byte(known: Facts, tmp_path: Path, content: bytes) -> None:
    patch = tmp_path / "fix $(touch evil).patch"
    patch.write_bytes(content)
    script = written(known, {}, {f"given/{patch.name}": str(patch)})
    commands = re.search(r'(?s)mkdir -p "\$patches".*?\nEND_OF_PATCH\n', script)
    assert commands is not None
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["bash", "-euc", f"patches=$PWD\n{commands[0]}"], cwd=work, check=True)
    assert (work / "given" / patch.name).read_bytes() == content
    assert [path.name for path in work.rglob("*")] == ["given", patch.name]


@pytest.mark.parametrize(
    "value",
    [
        "-O2 -g",
        "$ORIGIN/lib",
        "$(touch evil)",
        "`touch evil`",
        'say "hi"',
        "back\\slash",
        "${HOME}",
        "$$",
    ],
)
def test_what_the_user_sets_arrives_as_it_was_said(
    known: Facts, tmp_path: Path, value: str
) -> None:
    lines = written(known, {"FLAGS": value}).splitlines()
    export = next(line for line in lines if line.startswith("export FLAGS="))
    done = subprocess.run(
        ["bash", "-c", f'{export}\nprintf %s "$FLAGS"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == value
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(("system", "admits"), [("linux", True), ("windows", False)])
def test_the_text_says_what_decides_how_many_compilers_run(
    known: Facts, system: str, admits: bool
) -> None:
    cell = cell_lookup.find_cell(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    host = replace(LINUX, system=system)
    second = render.plan_as_text(
        build_plan.compute_plan(known, cell, LINUX, Options(jobs=3)), host
    ).splitlines()[1]
    assert "3 compilers at a time" in second
    assert ("when there is memory for it" in second) is admits


def test_the_script_of_an_archive_checks_it_and_stamps_the_wheel(
    configs: Path, tmp_path: Path
) -> None:
    known = declared(configs, ONE.replace('"abc"', f'"{"e" * 64}"'))
    cell = cell_lookup.find_cell(known, "scatter-3.10-cu124", "x86_64", known.releases["base"][1])
    text = script.plan_as_script(
        build_plan.compute_plan(known, cell, LINUX, Options()), known, LINUX
    )
    assert "git clone" not in text
    assert '--no-binary :all: \\\n      --dest "$work/archive" tiny-scatter==1.10\n' in text
    assert f"want={'e' * 64}\n" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    info = tmp_path / "tiny_scatter-1.10.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Name: tiny-scatter\nVersion: 1.10\nRequires-Dist: base>=1\nRequires-Dist: base-more\n\nVersion: x\n"
    )
    stamping = text[text.index("sed -E -i '0,/^$/") : text.index("promised=")]
    subprocess.run(["bash", "-eu"], input=stamping, text=True, check=True, cwd=tmp_path)
    assert (tmp_path / "tiny_scatter-1.10+cu124.base2.0.0.dist-info/METADATA").read_text() == (
        "Name: tiny-scatter\nVersion: 1.10+cu124.base2.0.0\nRequires-Dist: base==2.0.0+cu124\n"
        "Requires-Dist: base-more\n\nVersion: x\n"
    )
