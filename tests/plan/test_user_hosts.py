"""Machines of users, and what the suite says of official wheels for them, held against what is so."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from tests.support.gpu_builds import build_context
from tests.support.processors import PROCESSORS
from torchmill.commands.build_question import other_wheel_for
from torchmill.commands.matrix import explain_cell_name
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.core.paths import Layout
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.plan import cell_choice
from torchmill.plan.cell_choice import BuildQuestion, choose_cells
from torchmill.plan.doctor import judgement

_TABLES = tomllib.loads(Path(__file__).with_name("user_hosts.toml").read_text(encoding="utf-8"))
SYSTEMS: dict[str, dict[str, Any]] = _TABLES["system"]
HOSTS: dict[str, dict[str, Any]] = _TABLES["host"]
QUESTIONS: list[dict[str, Any]] = _TABLES["question"]
_NO_KEYS = {"on", "best", "other", "why"}  # of a host's table, and not of a host file


def host_of(name: str, tmp_path: Path) -> Host:
    """Return a machine of the table, read from the file that a user would write."""
    written = HOSTS[name]
    system = SYSTEMS[written["on"]]
    keys = {"cores": 8, "memory": "32 GiB", "disk": "300 GiB", "complete": True}
    keys |= system
    keys |= {key: value for key, value in written.items() if key not in _NO_KEYS}
    processor = PROCESSORS.get(str(keys["arch"]))
    if processor:
        keys.setdefault("processor", list(processor))
    pythons = str(keys.pop("python")).split()
    keys["interpreters"] = {python: f"/usr/bin/python{python}" for python in pythons}
    keys["gpus"] = [{"name": gpu} for gpu in written.get("gpus", ())]
    file = tmp_path / "host.toml"
    file.write_text(tomlkit.dumps(keys), encoding="utf-8")
    return load_host(file)


def test_the_table_has_questions_on_many_generations_and_sources() -> None:
    assert len(QUESTIONS) >= 70
    for question in QUESTIONS:
        assert question["host"] in HOSTS
        # That a wheel fits, or would be installed at all, somebody has seen.
        assert question["fit"] != "fits" or question["file"].endswith(".whl")
    assert all(host["why"] for host in HOSTS.values() if "other" in host)


@pytest.mark.parametrize(
    "question", QUESTIONS, ids=lambda question: f"{question['host']}-{question['build']}"
)
def test_what_is_said_of_an_official_wheel_is_so(
    shipped: Facts, tmp_path: Path, question: dict[str, Any]
) -> None:
    host = host_of(question["host"], tmp_path)
    context = build_context(shipped, question["build"], host)
    wheel = context.plan.official.published
    if question["fit"] == "none":
        assert wheel is None
    else:
        assert wheel is not None
        assert wheel.requirement.split()[0] == question["wheel"]
        assert wheel.verdict.fit == question["fit"]
        assert question.get("because", "") in str(wheel)
    runs = judgement.runs_here(judgement.judge(context))
    assert runs is question.get("runs_here", True)


@pytest.mark.parametrize("name", [name for name in HOSTS if "best" in HOSTS[name]])
def test_what_invoke_build_chooses_runs_on_the_machine_that_asked(
    shipped: Facts, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_choice, "running_python", lambda: "3.11")
    host = host_of(name, tmp_path)
    gpus = known_capabilities(shipped, host.gpus.devices)
    (cell,) = choose_cells(shipped, BuildQuestion(gpus=gpus), host, None)
    assert f"{cell.build.identifier(host.arch)} {cell.release.tag}" == HOSTS[name]["best"]
    installed = set(host.interpreters.paths)
    assert cell.build.python in installed or installed.isdisjoint(cell.release.pythons)
    context = build_context(shipped, HOSTS[name]["best"], host)
    assert judgement.runs_here(judgement.judge(context))
    other = other_wheel_for(shipped, gpus, host, [cell], None)
    assert HOSTS[name].get("other", "") in other
    assert bool(other) is ("other" in HOSTS[name])


def test_an_official_wheel_without_cuda_has_no_vulnerability_of_cuda(
    shipped: Facts, tmp_path: Path
) -> None:
    host_of("rtx5090-580", tmp_path)
    unclear: dict[str, int] = {}
    for build in ("wheel-3.12-cpu", "wheel-3.12-cu128"):
        layout = Layout(tmp_path, tmp_path)
        answer = explain_cell_name(shipped, layout, build, "v2.8.0", str(tmp_path / "host.toml"))
        match = re.search(r"official wheel has .* (\d+) more unclear", answer.text)
        assert match is not None
        unclear[build] = int(match[1])
    assert unclear["wheel-3.12-cpu"] < unclear["wheel-3.12-cu128"]
