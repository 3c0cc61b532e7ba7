"""A plan as a shell script: bash reads it, and quotes nothing wrongly."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support.declared import ONE, declared
from tests.support.hosts import change_host
from tests.support.plans import LINUX, plan_base, plan_torch
from torchmill.cell.patches import read_patches
from torchmill.config.facts import Facts
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.script import plan_as_script


def script_of_base(
    small_facts: Facts,
    options: Options = NO_OPTIONS,
    patches: Mapping[str, bytes] = MappingProxyType({}),
) -> str:
    return plan_as_script(plan_base(small_facts, options=options), small_facts, LINUX, patches)


def run_bash(text: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a text as bash does, which must succeed; return what it prints."""
    done = subprocess.run(
        ["/bin/bash", "-euc", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_script_is_bash(small_facts: Facts) -> None:
    done = subprocess.run(
        ["bash", "-n"],
        input=script_of_base(small_facts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "/k/11.8,/k/cudnn 8"), ({"cuda_home": "/mine"}, "/mine,/k/cudnn 8")],
)
def test_toolkit_and_libraries_are_where_the_host_has_them_unless_the_user_names_others(
    shipped: Facts, tmp_path: Path, environment: dict[str, str], expected: str
) -> None:
    toolkits = {"homes": {"11.8": "/k/11.8"}, "provisioned": {"cudnn-8.5.0.96-cu11": "/k/cudnn 8"}}
    host = change_host(LINUX, toolkits=toolkits)
    options = Options(toolkit="11.8")
    plan = plan_torch(shipped, "wheel-3.10-cu117", "v1.13.1", host, options=options)
    lines = plan_as_script(plan, shipped, host, read_patches(plan, shipped.patches)).splitlines()
    exports = [line for line in lines if line.startswith(("export cuda_", "export cudnn_"))]
    exports.append('printf "%s,%s" "$cuda_home" "$cudnn_home"')
    assert run_bash("\n".join(exports), tmp_path, environment) == expected


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
def test_a_patch_is_in_the_script_to_the_byte(
    small_facts: Facts, tmp_path: Path, content: bytes
) -> None:
    name = "fix $(touch evil).patch"
    options = Options(patches={f"given/{name}": f"/patches/{name}"})
    script = script_of_base(small_facts, options, {f"given/{name}": content})
    commands = re.search(r'(?s)mkdir -p "\$patches".*?\nEND_OF_PATCH\n', script)
    assert commands is not None
    folder = tmp_path / "work"
    folder.mkdir()
    run_bash(f"patches=$PWD\n{commands[0]}", folder)
    assert (folder / "given" / name).read_bytes() == content
    assert [path.name for path in folder.rglob("*")] == ["given", name]


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
def test_a_setting_arrives_as_the_user_wrote_it(
    small_facts: Facts, tmp_path: Path, value: str
) -> None:
    lines = script_of_base(small_facts, Options(settings={"FLAGS": value})).splitlines()
    export = next(line for line in lines if line.startswith("export FLAGS="))
    assert run_bash(f'{export}\nprintf %s "$FLAGS"', tmp_path) == value
    assert not (tmp_path / "evil").exists()


def test_the_script_of_an_archive_checks_it_and_stamps_the_wheel(
    configs: Path, tmp_path: Path
) -> None:
    facts = declared(configs, ONE.replace('"abc"', f'"{"e" * 64}"'))
    release = facts.releases["base"][1]
    cell = cell_lookup.find_cell(facts, "scatter-3.10-cu124", "x86_64", release)
    plan = build_plan.compute_plan(facts, cell, LINUX, NO_OPTIONS)
    text = plan_as_script(plan, facts, LINUX, {})
    assert "git clone" not in text
    assert '--no-binary :all: \\\n      --dest "$work/archive" tiny-scatter==1.10\n' in text
    assert f"want={'e' * 64}\n" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    info = tmp_path / "tiny_scatter-1.10.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Name: tiny-scatter\nVersion: 1.10\nRequires-Dist: base>=1\nRequires-Dist: base-more\n\n"
        "Version: x\n"
    )
    run_bash(text[text.index("sed -E -i '0,/^$/") : text.index("promised=")], tmp_path)
    stamped = tmp_path / "tiny_scatter-1.10+cu124.base2.0.0.dist-info"
    assert (stamped / "METADATA").read_text() == (
        "Name: tiny-scatter\nVersion: 1.10+cu124.base2.0.0\nRequires-Dist: base==2.0.0+cu124\n"
        "Requires-Dist: base-more\n\nVersion: x\n"
    )
