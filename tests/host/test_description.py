"""Machines described in a file are read strictly, and written so that they can be read."""

import os
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.refusals import refused
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.errors import ConfigError
from torchmill.host.description import describe_host, load_host, save_host
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostCrossing,
    HostGpus,
    HostInterpreters,
    HostPackages,
    HostPlatform,
    HostPrograms,
    HostResources,
    HostToolkits,
)

PAGE = Path(__file__).parents[2] / "docs/reference/host-file.md"


def write_description(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "host.toml"
    path.write_text(dedent(text))
    return path


def test_a_described_host_is_loaded(tmp_path: Path) -> None:
    path = write_description(
        tmp_path,
        """\
        arch = "x86_64"
        system = "linux"
        cores = 8
        memory = "16 GiB"
        disk = "100 GB"
        glibc = "2.35"
        compiler = "gcc 11.4.0"
        [tools]
        ninja = "/usr/bin/ninja"
        [toolkits]
        "11.8" = "/usr/local/cuda-11.8"
        [interpreters]
        "3.10" = "/usr/bin/python3.10"
        """,
    )
    assert load_host(path) == Host(
        arch="x86_64",
        system="linux",
        resources=HostResources(cores=8, memory=16 * 2**30, free_disk=100 * 10**9),
        platform=HostPlatform(glibc="2.35"),
        compilers=HostCompilers(default=Compiler("gcc", "11.4.0")),
        programs=HostPrograms(paths={"ninja": "/usr/bin/ninja"}),
        toolkits=HostToolkits(homes={"11.8": "/usr/local/cuda-11.8"}),
        interpreters=HostInterpreters(paths={"3.10": "/usr/bin/python3.10"}),
    )


FULL = Host(
    arch="aarch64",
    system="linux",
    resources=HostResources(
        cores=16,
        memory=64 * 2**30,
        free_disk=123_456_789_012,
        processor_seconds=3600,
        open_files=256,
        processes=1000,
        largest_file=2**31,
        shared_memory=2**26,
    ),
    platform=HostPlatform(
        glibc="2.31",
        distribution=LinuxDistribution("ubuntu", "20.04", ("debian",), "35.4.1"),
        translated=True,
        processor_features=("asimd", "fp"),
        missing_certificates=("SSL_CERT_FILE=/etc/x.pem",),
    ),
    compilers=HostCompilers(
        default=Compiler("gcc", "9.4.0"),
        cuda=Compiler("clang", "14.0.6"),
        by_command={
            "g++": Compiler("gcc", "9.4.0"),
            "/opt/rh/gcc-toolset-11/root/usr/bin/g++": Compiler("gcc", "11.2.1"),
        },
        fault="cannot find crt1.o",
    ),
    programs=HostPrograms(
        paths={"git": "/usr/bin/git", "c++": 'c++ "-m64" C:\\'},
        versions={"git": "2.25.1"},
        unanswered={"podman": "did not answer within 20 s"},
    ),
    packages=HostPackages(
        manager="apt",
        managers=("apt", "conda"),
        archives=("ubuntu",),
        may_use_root=False,
        installed={"build-essential": "12.8ubuntu1", "libnuma-dev": ""},
    ),
    toolkits=HostToolkits(
        libraries={"cudnn": "8.6.0", "cudnn@11.8": "8.9.7", "numa": ""},
        homes={"11.8": "/usr/local/cuda-11.8"},
        completed={"11.8": "/opt/cuda, completed with nvidia-cufft-cu11 10.9.0.58"},
        lacking_parts={"12.4": "cublas, cufft"},
        loader_libraries={"libcudnn.so.8": "/opt/cudnn/lib"},
        provisioned={
            "cudnn-8.5.0.96-cu11": "/home/u/.cache/torchmill/toolkits/cudnn-8.5.0.96-cu11"
        },
    ),
    interpreters=HostInterpreters(
        paths={"3.10": "/usr/bin/python3.10", "3.8": "/usr/bin/python3.8"},
        broken={"3.10": "/home/u/.pyenv/shims/python3.10"},
        lacking_modules={"3.8": "_ssl, _bz2"},
        without_headers={"3.8": "/usr/bin/python3.8"},
        translated={"3.9": "/opt/conda/bin/python3.9"},
    ),
    gpus=HostGpus(
        driver="535.104.05",
        kernel_driver="450.80.02",
        compat_folders=("/usr/local/cuda/compat",),
        stub_folders=("/usr/local/cuda/lib64/stubs",),
        compat_driver="530.30.02",
        devices=(Gpu("NVIDIA GeForce RTX 3090", "8.6"), Gpu("Tesla K80")),
    ),
    complete=True,
    crossings={
        "x86_64": HostCrossing(
            compilers={"x86_64-linux-gnu-g++-12": Compiler("gcc", "12.2.0")},
            glibc="2.36",
            toolkits={"13.0": "/home/u/.cache/torchmill/toolkits/13.0-crossing-1-x86_64"},
            lacking_parts={"13.0": "cupti"},
            emulator="/usr/bin/qemu-x86_64-static",
            system="/usr/x86_64-linux-gnu",
            interpreters={"3.12": "/srv/root/usr/bin/python3.12"},
        )
    },
)


# Fields that a description leaves out, each with the reason.
NOT_DESCRIBED = {
    "HostResources.disks": "they are those of one checkout's folders",
    "Host.crosses": "it is a view of a machine for one build",
    "Host.runs": "they are read from the manifests of the machine's own wheels",
}


def default_fields(value: object) -> Iterator[str]:
    """Yield the fields of a dataclass, and of the dataclasses in it, that have their default."""
    assert is_dataclass(value)
    for field in fields(value):
        name = f"{type(value).__name__}.{field.name}"
        content = getattr(value, field.name)
        default = field.default  # MISSING, which equals nothing, for a field that is required
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if is_dataclass(content):
            yield from default_fields(content)
        elif content == default:
            yield name


def test_the_full_description_has_every_field() -> None:
    """Without it, a field that --save forgets would be read back as its default unnoticed."""
    assert set(default_fields(FULL)) == NOT_DESCRIBED.keys()


def test_the_reference_lists_every_key_that_is_read(tmp_path: Path) -> None:
    tables = {
        "## Keys": "",
        "## Keys of `distribution`": "[distribution]\n",
        "## Keys of a table of `crossings`": "[crossings.aarch64]\n",
        "## Keys of `gpus`": "[[gpus]]\n",
    }
    text = PAGE.read_text(encoding="utf-8")
    for table, head in tables.items():
        _, _, rest = text.partition(f"{table}\n")
        listed = re.findall(r"^\| `(\w+)` \|", rest.partition("\n## ")[0], re.MULTILINE)
        path = write_description(tmp_path, f"{head}zzzzzzzz = 1\n")
        with refused("invalid-host-file") as caught:
            load_host(path)
        [keys] = re.findall(r"unknown key 'zzzzzzzz': expected one of (.*)", str(caught.value))
        assert sorted(listed) == sorted(keys.split(", ")), table


@pytest.mark.parametrize("machine", [FULL, Host("arm64", "macos", HostResources(8, 16 * 2**30))])
def test_a_written_description_is_read_back(tmp_path: Path, machine: Host) -> None:
    path = tmp_path / "host.toml"
    path.write_text(describe_host(machine), encoding="utf-8")
    assert load_host(path) == machine


def test_a_wrong_gpu_and_compiler_are_reported(tmp_path: Path) -> None:
    head = 'arch = "x86_64"\nsystem = "linux"\ncores = 1\nmemory = "1 GiB"\n'
    path = write_description(
        tmp_path, head + '[compilers]\n"g++" = "12.2.0"\n[[gpus]]\ncapability = "8.6"\nname = 1\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_host(path)
    compiler, gpu = str(caught.value).splitlines()
    assert compiler.startswith(
        "host.toml: compilers: 'g++' is '12.2.0', expected one of gcc, clang,"
    )
    assert gpu == "host.toml: gpus 1: 'name' is 1, expected a string"


def test_four_fields_are_enough(tmp_path: Path) -> None:
    path = write_description(
        tmp_path, 'arch = "x86_64"\nsystem = "linux"\ncores = 64\nmemory = "256 GiB"\n'
    )
    assert load_host(path) == Host("x86_64", "linux", HostResources(64, 2**38))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    path = write_description(
        tmp_path,
        """\
        system = "linus"
        cores = "8"
        memory = 32
        disc = "1 GiB"
        glibc = 2.35
        toolkits = ["11.8"]
        gpus = ["8.6"]
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_host(path)
    problems = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in problems] == ["host.toml"] * len(problems)
    for expected in (
        "key 'arch' is missing",
        "'system' is 'linus', expected one of linux, macos, windows",
        "'cores' is '8', expected a whole number from 1",
        "'memory' is 32, expected a string",
        "unknown key 'disc'; did you mean disk?",
        "'glibc' is the number 2.35",
        "'toolkits' is ['11.8'], expected a table",
        "'gpus' is ['8.6'], expected a list of tables",
    ):
        assert [line for line in problems if expected in line], (expected, problems)
    assert len(problems) == 8


def test_a_wrong_distribution_is_refused_and_the_valid_keys_are_listed(tmp_path: Path) -> None:
    head = (
        'arch = "arm64"\nsystem = "macos"\ncores = 1\nmemory = "1 GiB"\nroot = "yes"\nextras = 1\n'
    )
    path = write_description(
        tmp_path, f'{head}[distribution]\nversion = 22.04\nl4t = "R36"\nname = "Ubuntu"\n'
    )
    with refused("invalid-host-file") as caught:
        load_host(path)
    problems = str(caught.value)
    for expected in (
        "host.toml: 'root' is 'yes', expected true or false",
        "'distribution' is one of Linux, and 'system' is 'macos'",
        "distribution: key 'id' is missing",
        "distribution: 'version' is the number 22.04: quote it",
        "distribution: 'l4t' is 'R36', expected a release of Jetson Linux",
        "distribution: unknown key 'name': expected one of id, version, like, l4t",
        "host.toml: unknown key 'extras': expected one of system, compilers,",
    ):
        assert expected in problems


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cores = 1000001", "'cores' is 1000001, expected a whole number from 1 to 1000000"),
        (f"cores = 0x{'f' * 6000}", "'cores' is a number of some 6002 digits"),
        (f'cores = 1\ncompiler = "gcc {"9" * 5000}"', "expected one of gcc, clang"),
        (f'cores = 1\nglibc = "{"9" * 5000}"', "'glibc' is '9999"),
    ],
)
def test_numbers_that_no_machine_has_are_refused(tmp_path: Path, line: str, problem: str) -> None:
    text = f'arch = "x86_64"\nsystem = "linux"\nmemory = "1 GiB"\n{line}\n'
    with refused("invalid-host-file") as caught:
        load_host(write_description(tmp_path, text))
    assert problem in str(caught.value)


def test_a_pipe_is_no_description(tmp_path: Path) -> None:
    pipe = tmp_path / "host.toml"
    os.mkfifo(pipe)
    with refused("host-file-missing"):
        load_host(pipe)


def test_a_machine_without_memory_or_capability_is_refused(tmp_path: Path) -> None:
    path = write_description(
        tmp_path,
        """\
        arch = "x86_64"
        system = "linux"
        cores = 0
        memory = "0 B"
        [[gpus]]
        name = "Tesla K80"
        capability = "sm_37"
        """,
    )
    with refused("invalid-host-file") as caught:
        load_host(path)
    problems = str(caught.value)
    for expected in (
        "'cores' is 0, expected a whole number from 1",
        "'memory' is '0 B', expected bytes above 0",
        "'capability' of 'Tesla K80' is 'sm_37', expected one such as '8.6'",
    ):
        assert expected in problems


@pytest.mark.parametrize(
    ("arch", "system", "lines", "sentence"),
    [
        (
            "x86_64",
            "linux",
            'manager = "apt"\ndistribution = { id = "fedora", version = "42" }',
            "installed with dnf",
        ),
        (
            "x86_64",
            "linux",
            'manager = "dnf"\ndistribution = { id = "x", like = ["debian"] }',
            "installed with apt",
        ),
        (
            "x86_64",
            "linux",
            'glibc = "2.35"\ndistribution = { id = "alpine", version = "3.20" }',
            "3.20 is musl",
        ),
        (
            "x86_64",
            "linux",
            'distribution = { id = "ubuntu", l4t = "36.4.3" }',
            "Jetson boards, which are aarch64",
        ),
        ("arm64", "macos", 'glibc = "2.35"', "a C library of Linux"),
        (
            "arm64",
            "macos",
            'toolkits = { "11.8" = "/usr/local/cuda" }',
            "no CUDA toolkit for Apple silicon",
        ),
    ],
)
def test_an_impossible_host_is_refused_in_one_sentence(
    tmp_path: Path, arch: str, system: str, lines: str, sentence: str
) -> None:
    head = f'arch = "{arch}"\nsystem = "{system}"\ncores = 1\nmemory = "1 GiB"\n'
    with refused("invalid-host-file") as caught:
        load_host(write_description(tmp_path, head + lines + "\n"))
    (line,) = str(caught.value).splitlines()
    assert sentence in line


@pytest.mark.parametrize("cores", ["0", "true", "1.5"])
def test_cores_are_a_whole_number(tmp_path: Path, cores: str) -> None:
    path = write_description(
        tmp_path, f'arch = "x86_64"\nsystem = "linux"\ncores = {cores}\nmemory = "1 GiB"\n'
    )
    with refused("invalid-host-file"):
        load_host(path)


@pytest.mark.parametrize("key", ["interpreters", "broken_interpreters", "headless_interpreters"])
def test_interpreters_are_named_by_their_versions(tmp_path: Path, key: str) -> None:
    head = 'arch = "x86_64"\nsystem = "linux"\ncores = 1\nmemory = "1 GiB"\n'
    path = write_description(tmp_path, f'{head}[{key}]\npython3 = "/usr/bin/python3"\n')
    with refused("invalid-host-file"):
        load_host(path)


def test_a_missing_or_broken_description_is_named(tmp_path: Path) -> None:
    with refused("host-file-missing"):
        load_host(tmp_path / "gone.toml")
    with refused("invalid-host-file"):
        load_host(write_description(tmp_path, "arch = \n"))


@pytest.mark.parametrize(
    ("arch", "system", "expected"),
    [
        ("x86_64", "macos", "arm64"),
        ("arm64", "linux", "x86_64 or aarch64"),
        ("sparc", "linux", "x86_64 or aarch64"),
    ],
)
def test_an_arch_that_its_system_does_not_have_is_refused(
    tmp_path: Path, arch: str, system: str, expected: str
) -> None:
    path = write_description(
        tmp_path, f'arch = "{arch}"\nsystem = "{system}"\ncores = 1\nmemory = "1 GiB"\n'
    )
    with refused("invalid-host-file") as caught:
        load_host(path)
    assert f"expected {expected} if" in str(caught.value)


def test_an_unknown_arch_is_read_back(tmp_path: Path) -> None:
    foreign = Host("linux_riscv64", "linux", HostResources(4, 2**33))
    path = tmp_path / "host.toml"
    save_host(foreign, path)
    assert load_host(path) == foreign


@pytest.mark.parametrize(
    "line", ['glibc = "two"', 'driver = "abc"', 'compiler = "tcc 0.9"', 'compiler = "gcc new"']
)
def test_invalid_versions_are_refused(tmp_path: Path, line: str) -> None:
    head = 'arch = "x86_64"\nsystem = "linux"\ncores = 1\nmemory = "1 GiB"\n'
    with refused("invalid-host-file") as caught:
        load_host(write_description(tmp_path, head + line))
    assert str(caught.value).startswith(f"host.toml: '{line.split(maxsplit=1)[0]}' is ")
    assert "version" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('versions = { macos = "1..2" }', "macos"),
        ('versions = { ccache = "new" }', "ccache"),
        ('libraries = { "cudnn@11.8" = "eight" }', "cudnn@11.8"),
    ],
)
def test_invalid_versions_in_tables_are_refused(tmp_path: Path, line: str, name: str) -> None:
    head = 'arch = "x86_64"\nsystem = "linux"\ncores = 1\nmemory = "1 GiB"\n'
    with refused("invalid-host-file") as caught:
        load_host(write_description(tmp_path, head + line))
    assert str(caught.value).startswith(f"host.toml: '{name}' is ")


def test_invalid_toml_is_reported_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    for content in (b"\xff\xfea\x00", b"not toml ["):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_host(path)
        assert len(str(caught.value).splitlines()) == 1


def test_an_unwritable_file_is_reported(tmp_path: Path) -> None:
    with refused("not-writable"):
        save_host(FULL, tmp_path)
