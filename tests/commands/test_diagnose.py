"""`invoke diagnose` with the machine on which a build failed, and without a log."""

import json
import os
from pathlib import Path

import pytest

from tests.plan.test_collected_host import TORCH
from tests.support.commands import ROOT, InvokeHere

REFUSED = "host_config.h:1:2: error: #error -- unsupported GNU version! gcc versions later than {} are not supported!\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.log").write_text(REFUSED.format(10), encoding="utf-8")
    (tmp_path / "env.txt").write_text(TORCH, encoding="utf-8")
    return tmp_path


def facts_of(output: str) -> dict[str, dict[str, object]]:
    return {fact["name"]: fact for fact in json.loads(output)["facts"]}


def test_a_collect_env_says_where_the_build_failed(invoke: InvokeHere) -> None:
    code, output, errors = invoke("diagnose build.log --collect-env env.txt --json")
    assert code == 0
    assert "16 GiB are assumed" in errors
    facts = facts_of(output)
    assert (facts["gcc"]["value"], facts["gcc"]["origin"]) == ("11.4.0", "collect_env")
    assert "gcc-10" in str(json.loads(output)["cause"]["command"])


def test_a_host_file_that_contradicts_the_log_is_named(folder: Path, invoke: InvokeHere) -> None:
    (folder / "build.log").write_text(
        f"-- The CXX compiler identification is GNU 9.4.0\n{REFUSED.format(8)}", "utf-8"
    )
    host = ROOT / "tests/golden/hosts/debian-12.toml"
    _, output, _ = invoke(f"diagnose build.log --host {host} --json")
    assert facts_of(output)["gcc"]["value"] == "9.4.0"
    assert any("the log counts" in text for text in json.loads(output)["contradictions"])


def test_two_descriptions_of_one_machine_are_refused(invoke: InvokeHere) -> None:
    code, _, errors = invoke("diagnose build.log --collect-env env.txt --host host.toml")
    assert (code, "error[contradictory-options]" in errors) == (2, True)


def test_without_a_log_the_last_session_that_failed_is_diagnosed(
    folder: Path, invoke: InvokeHere
) -> None:
    logs = folder / ".torchmill" / "logs"
    logs.mkdir(parents=True)
    for age, name, text in (
        (30, "old", REFUSED.format(8)),
        (20, "failed", REFUSED.format(11)),
        (10, "went-well", "[2/2] Linking CXX shared library libc10.so\n"),
    ):
        log = logs / f"v1.0.0-{name}.log"
        log.write_text(text, encoding="utf-8")
        os.utime(log, (1_700_000_000 - age, 1_700_000_000 - age))
    code, output, _ = invoke("diagnose --json")
    assert code == 0
    assert json.loads(output)["log"].endswith("v1.0.0-failed.log")


def test_without_a_log_and_a_session_one_has_to_be_named(invoke: InvokeHere) -> None:
    code, _, errors = invoke("diagnose")
    assert (code, "error[no-log]" in errors) == (2, True)


def test_a_log_of_this_machine_is_judged_by_what_is_here(
    folder: Path, invoke: InvokeHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    site = folder / "project/env/lib/python3.11/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(
        "__version__ = '2.5.1+cu124'\ncuda: Optional[str] = '12.4'\n", encoding="utf-8"
    )
    # What a log names is not run.
    python = folder / "project/env/bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\ntouch {folder}/was-run\n", encoding="utf-8")
    python.chmod(0o755)
    (folder / "build.log").write_text(
        f"{python} -u setup.py build\n-I{site}/torch/include\n{REFUSED.format(10)}", "utf-8"
    )
    code, output, _ = invoke("diagnose build.log --json")
    assert code == 0
    facts = facts_of(output)
    assert (facts["torch"]["value"], facts["torch"]["origin"]) == ("2.5.1+cu124", "machine")
    assert facts["named_path"]["line"] == 1
    assert not (folder / "was-run").exists()
    host = ROOT / "tests/golden/hosts/debian-12.toml"
    _, output, _ = invoke(f"diagnose build.log --host {host} --json")
    assert "torch" not in facts_of(output)
