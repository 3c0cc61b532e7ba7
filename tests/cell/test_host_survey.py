"""This machine, asked for the packages and parts of toolkits that facts name."""

from dataclasses import replace
from pathlib import Path

from tests.support.machines import file, made_up_programs, only, program
from torchmill.cell.host_survey import find_host_manager, survey_host
from torchmill.config.facts import Facts
from torchmill.config.toolkit import ToolkitPart
from torchmill.host.host import Host, HostResources, HostToolkits

HOST = Host("x86_64", "linux", HostResources(1, 1))


@made_up_programs
def test_the_packages_that_rules_name_are_looked_up(shipped: Facts, tmp_path: Path) -> None:
    program(tmp_path, "apt-get")
    program(tmp_path, "dpkg-query", "installed git 1:2.39.5", "installed vim 9")
    packages = survey_host(shipped, HOST, only(tmp_path)).packages
    assert packages.manager == "apt"
    assert packages.installed["git"] == "1:2.39.5"
    assert packages.installed["build-essential"] == ""
    assert "vim" not in packages.installed
    packages = survey_host(shipped, HOST, only(tmp_path / "empty")).packages
    assert packages.manager is None
    assert packages.installed == {}


def test_conda_is_the_manager_only_in_an_environment(tmp_path: Path) -> None:
    program(tmp_path, "conda")
    program(tmp_path, "apt-get")
    environ = only(tmp_path, CONDA_PREFIX=str(tmp_path))
    assert find_host_manager(environ, None) == "conda"
    assert find_host_manager(only(tmp_path, CONDA_PREFIX=""), None) == "apt"


def make_part(name: str, header: str) -> ToolkitPart:
    return ToolkitPart(name, name, f"nvidia-{name}", (header,), (), None, "", "")


def test_the_parts_that_toolkits_lack_are_found(small_facts: Facts, tmp_path: Path) -> None:
    file(tmp_path / "include/cublas_v2.h")
    parts = (make_part("cublas", "cublas_v2.h"), make_part("cupti", "cupti.h"))
    host = replace(HOST, toolkits=HostToolkits(homes={"11.8": str(tmp_path)}))
    toolkits = survey_host(replace(small_facts, toolkit_parts=parts), host, {"PATH": ""}).toolkits
    assert toolkits.lacking_parts == {"11.8": "cupti"}
    assert survey_host(small_facts, host, {"PATH": ""}).toolkits.lacking_parts == {}
