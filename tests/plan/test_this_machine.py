"""Which logs are from this machine, and what the machine says about them then."""

import pytest

from tests.support.hosts import change_host
from torchmill.config import facts_reader
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.paths import CHECKOUT
from torchmill.host.host import Compiler, Host, HostResources
from torchmill.host.named_places import InstalledTorch
from torchmill.plan import causes
from torchmill.plan.diagnosis import answer, this_machine
from torchmill.plan.diagnosis.named_paths import NamedPath, PathCollector
from torchmill.plan.diagnosis.situation import Fact
from torchmill.plan.log_lines import LogLine

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
REFUSED = "host_config.h:1:2: error: #error -- unsupported GNU version!"
HERE = change_host(
    Host("x86_64", "linux", HostResources(8, 16 << 30)),
    platform={"glibc": "2.35", "distribution": LinuxDistribution("ubuntu", "22.04")},
    compilers={
        "default": Compiler("gcc", "11.4.0"),
        "by_command": {"g++-12": Compiler("gcc", "12.3.0")},
    },
    toolkits={"homes": {"11.8": "/usr/local/cuda-11.8", "12.4": "/usr/local/cuda-12.4"}},
    interpreters={"paths": {"3.10": "/usr/bin/python3.10"}},
)
WITNESS = NamedPath("/home/x/project", 1)


def read_paths(*lines: str) -> tuple[NamedPath, ...]:
    collector = PathCollector()
    for number, text in enumerate(lines, 1):
        collector.see(LogLine(number, text))
    return collector.paths()


def values_here(
    *lines: str, torch: InstalledTorch | None = None, usual_toolkit: str = ""
) -> dict[str, str]:
    facts = this_machine.machine_facts(
        HERE, read_paths(*lines), [], witness=WITNESS, torch=torch, usual_toolkit=usual_toolkit
    )
    return {fact.name: fact.value for fact in facts}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("c++ -I/usr/include/a -c b.cpp", "/usr/include/a"),
        ("-isystem /opt/x/include", "/opt/x/include"),
        ('  File "/home/x/p/setup.py", line 3, in f', "/home/x/p/setup.py"),
        ("CUDA_HOME=/usr/local/cuda-12.1:/x/y", "/usr/local/cuda-12.1"),
        ("/home/x/../y/z: No such file", "/home/y/z"),
        ("see https://github.com/pytorch/pytorch", None),
        ("a/b/c.cpp:3: error", None),
        ("/one", None),
        (r"\\server\share/a/b", None),
        ("//server/share", None),
    ],
)
def test_a_line_names_absolute_paths(line: str, path: str | None) -> None:
    paths = [entry.path for entry in read_paths(line)]
    assert paths[:1] == ([path] if path else [])


def test_paths_are_collected_at_both_ends_of_a_log_and_not_without_end() -> None:
    lines = ["/first/path"] + ["c++ -c /same/file"] * 5000 + ["/last/path"]
    paths = [entry.path for entry in read_paths(*lines)]
    assert paths == ["/first/path", "/same/file", "/last/path"]
    assert len(read_paths(*(f"/p/{number}" for number in range(9000)))) == 500


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/home/x/project/setup.py", True),
        ("/home/x/.local/lib/python3.10/site-packages", False),
        ("/home/x", False),
        ("/home/xy/project", False),
        ("/usr/bin/c++", False),
    ],
)
def test_a_path_of_the_users_own_is_one_that_no_other_machine_has(path: str, is_own: bool) -> None:
    assert bool(this_machine.own_paths([NamedPath(path, 1)], ["/home/x"])) is is_own


def test_tools_count_by_their_releases() -> None:
    paths = read_paths(
        "/usr/bin/c++ /usr/bin/g++-12 /usr/local/cuda-12.4/bin/nvcc /usr/local/cuda-12.4/include"
    )
    tools = [tool.path for tool in this_machine.named_tools(paths)]
    assert tools == ["/usr/bin/g++-12", "/usr/local/cuda-12.4"]


def test_of_several_tools_those_count_that_the_log_names() -> None:
    values = values_here(
        "/usr/local/cuda-12.4/bin/nvcc -ccbin /usr/bin/g++-12", "/usr/bin/python3.10"
    )
    assert (values["cuda"], values["gcc"], values["python"]) == ("12.4", "12.3.0", "3.10")
    assert "cuda" not in values_here("c++ -c a.cpp")
    assert values_here("c++ -c a.cpp")["gcc"] == "11.4.0"


def test_the_usual_folder_of_cuda_is_the_one_behind_its_link() -> None:
    line = "/usr/local/cuda/bin/nvcc -c a.cu"
    assert values_here(line, usual_toolkit="/usr/local/cuda-11.8")["cuda"] == "11.8"
    assert "cuda" not in values_here(line)


def test_the_installed_torch_is_a_fact() -> None:
    values = values_here("x", torch=InstalledTorch("2.5.1+cu124", "12.4", "3.11"))
    assert (values["torch"], values["torch_cuda"], values["python"]) == (
        "2.5.1+cu124",
        "12.4",
        "3.11",
    )
    values = values_here("x", torch=InstalledTorch("2.5.1+cpu", None, ""))
    assert (values["torch_kind"], values.get("torch_cuda")) == ("without CUDA", None)


def test_a_log_of_another_system_is_not_from_here() -> None:
    log = [Fact("distribution", "debian 11", "log", 3)]
    facts = this_machine.machine_facts(HERE, [], log, witness=WITNESS)
    assert [(fact.name, fact.value) for fact in facts] == [("distribution", "ubuntu 22.04")]
    tool = NamedPath("/usr/bin/g++-12", 1)
    assert this_machine.machine_facts(HERE, [], log, witness=tool) == []


@pytest.mark.parametrize(
    ("fact", "may_be"),
    [
        (Fact("container", "a container", "log"), False),
        (Fact("system", "windows", "log"), False),
        (Fact("system", "linux", "log"), True),
    ],
)
def test_what_a_container_or_another_system_wrote_is_not_from_here(
    fact: Fact, may_be: bool
) -> None:
    assert this_machine.may_be_from_here([fact], "linux") is may_be


def test_the_answer_says_which_facts_are_this_machines_and_why() -> None:
    lines = ["c++ -c /home/x/project/a.cpp", "/usr/local/cuda-11.8/bin/nvcc", REFUSED]
    diagnosis = causes.diagnose(
        FACTS.causes,
        lines,
        rules=FACTS,
        read_machine=lambda paths, known: this_machine.machine_facts(
            HERE, paths, known, witness=paths[0]
        ),
    )
    text = answer.diagnosis_as_text(diagnosis, "build.log")
    assert "this machine: gcc 11.4.0" in text
    assert "line 1 names /home/x/project/a.cpp" in text


def test_where_this_machine_contradicts_the_log_the_log_counts() -> None:
    lines = ["-- The CXX compiler identification is GNU 9.4.0", REFUSED]
    diagnosis = causes.diagnose(
        FACTS.causes,
        lines,
        rules=FACTS,
        read_machine=lambda paths, known: this_machine.machine_facts(
            HERE, paths, known, witness=WITNESS
        ),
    )
    assert diagnosis.situation.value("gcc") == "9.4.0"
    assert "this machine says gcc 11.4.0" in answer.diagnosis_as_text(diagnosis, "build.log")
