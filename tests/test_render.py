"""A plan as JSON and as a shell script."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from torchwright import lookup, plan, render
from torchwright.model import Facts, Host, Options

LINUX = Host("x86_64", "linux", cores=8, memory=2**35, glibc="2.36")


def script(known: Facts, settings: dict[str, str]) -> str:
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    return render.as_script(plan.compute(known, cell, LINUX, Options(settings=settings)), known, LINUX)


def test_json_has_the_keys_that_programs_rely_on(known: Facts) -> None:
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    data = json.loads(json.dumps(render.as_data(plan.compute(known, cell, LINUX, Options()))))
    assert list(data) == [
        "identifier",
        "package",
        "tag",
        "commit",
        "version",
        "environment",
        "requirements",
        "kit",
        "patches",
        "commands",
        "jobs",
        "wheel",
    ]
    assert data["environment"]["unset"] == ["USE_*"]


def test_the_script_is_bash(known: Facts, tmp_path: Path) -> None:
    file = tmp_path / "build.sh"
    file.write_text(script(known, {}))
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "value",
    ["-O2 -g", "$ORIGIN/lib", "$(touch evil)", "`touch evil`", 'say "hi"', "back\\slash", "${HOME}", "$$"],
)
def test_what_the_user_sets_arrives_as_it_was_said(known: Facts, tmp_path: Path, value: str) -> None:
    lines = script(known, {"FLAGS": value}).splitlines()
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
def test_the_text_says_what_decides_how_many_compilers_run(known: Facts, system: str, admits: bool) -> None:
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    host = replace(LINUX, system=system)
    second = render.as_text(plan.compute(known, cell, LINUX, Options(jobs=3)), host).splitlines()[1]
    assert "3 compilers at a time" in second
    assert ("when there is memory for it" in second) is admits
