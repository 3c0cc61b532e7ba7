"""Each cause that is a matter of the machine is foreseen by the doctor, or it is said why not."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.plan.test_doctor_cuda import LINUX
from tests.support.hosts import change_host
from torchmill.config import facts_reader
from torchmill.config.build import Processor
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release_lookup import find_release
from torchmill.core.paths import CHECKOUT
from torchmill.host.host import Compiler, DiskSpace, Host, HostResources
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.doctor import examination, foresight
from torchmill.plan.doctor.finding import CheckContext, Finding

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
PLENTY = 1 << 40  # bytes
CUDA = "wheel-3.10-cu118"
CPU = "wheel-3.10-cpu"
TAG = "v2.4.1"
PYTHON = "/usr/bin/python3.10"
DISK = DiskSpace("/", PLENTY, {"tree": 0})
LIBRARIES = ("libnuma-dev", "libopenblas-dev", "libprotobuf-dev", "protobuf-compiler", "ccache")

# A machine that lacks nothing for builds of torch 2.4.1.
GOOD = change_host(
    LINUX,
    resources={"memory": 64 << 30, "disks": (DISK,)},
    platform={
        "glibc": "2.35",
        "distribution": LinuxDistribution("ubuntu", "22.04", ("debian",)),
        "processor_features": ("avx", "avx2", "fma", "avx512f", "avx512vnni"),
    },
    compilers={
        "default": Compiler("gcc", "11.4.0"),
        "by_command": {"g++": Compiler("gcc", "11.4.0")},
    },
    programs={"paths": {"git": "/usr/bin/git", "ld.lld": "/usr/bin/ld.lld", "c++": "c++"}},
    toolkits={"libraries": {"cudnn@11.8": "9.1.0", "nccl@11.8": "2.20.5", "magma@11.8": "2.6.1"}},
    interpreters={"paths": {"3.10": PYTHON}},
    gpus={"driver": "535.104.05", "devices": (Gpu("NVIDIA GeForce RTX 3090", "8.6"),)},
    packages={"manager": "apt"},
)
MAC = Host(
    "arm64",
    "macos",
    HostResources(8, 32 << 30),
    compilers=change_host(GOOD, compilers={"default": Compiler("apple-clang", "15.0.0")}).compilers,
    programs=change_host(
        GOOD, programs={"paths": {"xcode": "/x", "git": "/g"}, "versions": {"macos": "14.5"}}
    ).programs,
    complete=True,
)


def with_compiler(version: str) -> Host:
    compiler = Compiler("gcc", version)
    return change_host(GOOD, compilers={"default": compiler, "by_command": {"g++": compiler}})


def with_fault(fault: str) -> Host:
    return change_host(GOOD, compilers={"fault": fault})


def with_loaded(name: str) -> Host:
    return change_host(GOOD, toolkits={"loader_libraries": {name: "/opt/other/lib"}})


def with_disk(**values: object) -> Host:
    disk = DiskSpace(**{"folder": "/", "free": PLENTY, "present_bytes": {"tree": 0}, **values})  # type: ignore[arg-type]
    return change_host(GOOD, resources={"disks": (disk,)})


def with_gpu(name: str, capability: str) -> Host:
    return change_host(GOOD, gpus={"devices": (Gpu(name, capability),)})


def with_packages(host: Host, *, installed: bool) -> Host:
    """Return a host on which all packages of a build are known to be there, or to be missing."""
    names: set[str] = set()
    for rule in FACTS.packages["torch"].rules:
        names.update(rule.system_packages.get("apt", ()))
    version = "1.0" if installed else ""
    return change_host(host, packages={"installed": dict.fromkeys(sorted(names), version)})


WITHOUT_DRIVER = change_host(GOOD, gpus={"driver": None, "devices": ()})
OLD_DRIVER = change_host(GOOD, gpus={"driver": "390.46"})
SYSTEM_LIBS = Options(settings={"USE_SYSTEM_LIBS": "1"})
WITHOUT_PACKAGES = with_packages(GOOD, installed=False)
WITH_PACKAGES = with_packages(GOOD, installed=True)
CASCADE = Options(
    cpu="cascadelake", processor=Processor("cascadelake", (), needs=("avx512f", "avx512vnni"))
)
WIDE_LIST = ";".join(
    f"{name}+PTX"
    for name in ("3.5", "3.7", "5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0")
)
OLD_PROCESSOR = change_host(GOOD, platform={"processor_features": ("avx",)})


@dataclass(frozen=True)
class Case:
    """A machine on which the doctor foresees a cause, the build, and a machine on which it does not."""

    bad: Host
    build: str = CUDA
    tag: str = TAG
    options: Options = field(default_factory=Options)
    good: Host = GOOD
    good_options: Options | None = None  # None: the same


SYSTEM_LIBRARIES = Case(WITHOUT_PACKAGES, CPU, "v1.13.1", options=SYSTEM_LIBS, good=WITH_PACKAGES)
CASES = {
    "memory": Case(change_host(GOOD, resources={"memory": 1 << 30})),
    "processor-time": Case(change_host(GOOD, resources={"processor_seconds": 3600})),
    "disk-full": Case(with_disk(free=1 << 20, free_inodes=1, source_files=1000)),
    "quota": Case(change_host(GOOD, resources={"largest_file": 1 << 30})),
    "open-files": Case(change_host(GOOD, resources={"open_files": 32})),
    "processes": Case(change_host(GOOD, resources={"processes": 10})),
    "shared-memory": Case(change_host(GOOD, resources={"shared_memory": 64 << 20})),
    "read-only": Case(with_disk(read_only=True)),
    "permission": Case(with_disk(noexec=True)),
    "certificate": Case(
        change_host(GOOD, platform={"missing_certificates": ("SSL_CERT_FILE=/gone.pem",)})
    ),
    "python-without-ssl": Case(
        change_host(GOOD, interpreters={"lacking_modules": {"3.10": "_ssl"}})
    ),
    "python-without-a-module": Case(
        change_host(GOOD, interpreters={"lacking_modules": {"3.10": "_ctypes, _bz2"}})
    ),
    "python-headers": Case(change_host(GOOD, interpreters={"without_headers": {"3.10": PYTHON}})),
    "pyenv-shim": Case(
        change_host(
            GOOD, interpreters={"paths": {}, "broken": {"3.10": "/h/.pyenv/shims/python3.10"}}
        )
    ),
    "wrong-machine": Case(change_host(GOOD, interpreters={"translated": {"3.10": PYTHON}})),
    "compiler-missing": Case(
        change_host(
            GOOD,
            compilers={"default": None, "by_command": {}},
            programs={"paths": {"git": "/usr/bin/git"}},
        )
    ),
    "compiler-incomplete": Case(with_fault("g++: fatal error: cannot execute 'cc1plus'")),
    "compiler-does-not-work": Case(with_fault("/usr/bin/ld: cannot find crt1.o")),
    "c++-headers": Case(with_fault("fatal error: vector: No such file or directory")),
    "compiler-too-old": Case(with_compiler("8.5.0"), CPU),
    "compiler-before-c++11": Case(with_compiler("4.4.7"), CPU, "v1.13.1"),
    "missing-cstdint": Case(with_compiler("13.2.0"), CPU, "v1.12.1"),
    "gloo": Case(with_compiler("13.2.0"), CPU, "v1.12.1"),
    "c-errors": Case(with_compiler("14.2.0"), CPU, "v2.0.1"),
    "bundled-code": Case(with_compiler("15.1.0"), CPU),
    "compiler-too-new-for-cuda": Case(with_compiler("14.2.0")),
    "nvcc-and-visual-studio": Case(
        change_host(GOOD, compilers={"cuda": Compiler("clang", "19.1.0")})
    ),
    "glibc-too-new-for-nvcc": Case(change_host(GOOD, platform={"glibc": "2.41"})),
    "tool-missing": Case(change_host(GOOD, programs={"paths": {}})),
    "linker-of-fuse-ld": Case(
        change_host(GOOD, programs={"paths": {"git": "/usr/bin/git"}}),
        options=Options(settings={"LDFLAGS": "-fuse-ld=lld"}),
    ),
    "nvcc-arguments": Case(with_disk(misread_characters=" ")),
    "nvcc-missing": Case(change_host(GOOD, toolkits={"homes": {}})),
    "torch-with-cuda-without-toolkit": Case(
        change_host(GOOD, toolkits={"homes": {"12.4": "/usr/local/cuda-12.4"}})
    ),
    "cuda-header-missing": Case(change_host(GOOD, toolkits={"lacking_parts": {"11.8": "cublas"}})),
    "cuda-libraries-unseen": Case(
        change_host(GOOD, toolkits={"lacking_parts": {"11.8": "cusparse, cufft"}})
    ),
    "nvtoolsext": Case(change_host(GOOD, toolkits={"lacking_parts": {"11.8": "nvtx"}})),
    "cccl-headers": Case(change_host(GOOD, toolkits={"lacking_parts": {"11.8": "cccl"}})),
    "cudnn": Case(change_host(GOOD, toolkits={"libraries": {"nccl@11.8": "2.20.5"}})),
    "nccl": Case(
        change_host(GOOD, toolkits={"homes": {"11.7": "/c"}, "libraries": {}}),
        "wheel-3.10-cu117",
        "v1.13.1",
        good=change_host(
            GOOD,
            toolkits={"homes": {"11.7": "/c"}, "provisioned": {"nccl-2.14.3-cu11": "/n"}},
        ),
    ),
    "magma": Case(change_host(GOOD, toolkits={"libraries": {"cudnn@11.8": "9.1.0"}})),
    "blas": Case(
        change_host(GOOD, arch="aarch64"),
        CPU,
        good=change_host(GOOD, arch="aarch64", toolkits={"libraries": {"openblas": "0.3.20"}}),
    ),
    "numa": Case(WITHOUT_PACKAGES, CPU, good=WITH_PACKAGES),
    "library-of-a-known-package": SYSTEM_LIBRARIES,
    "header-of-a-known-package": SYSTEM_LIBRARIES,
    "cmake-package-known": SYSTEM_LIBRARIES,
    "musl": Case(
        change_host(
            GOOD, platform={"glibc": None, "distribution": LinuxDistribution("alpine", "3.20")}
        ),
        CPU,
    ),
    "driver-too-old": Case(OLD_DRIVER),
    "kernel-image-invalid": Case(OLD_DRIVER),
    "error-804": Case(
        change_host(
            GOOD, gpus={"kernel_driver": "450.80.02", "compat_folders": ("/usr/local/cuda/compat",)}
        )
    ),
    "driver-stub": Case(change_host(GOOD, gpus={"stub_folders": ("/usr/local/cuda/lib64/stubs",)})),
    "no-gpu": Case(WITHOUT_DRIVER),
    "driver-missing": Case(WITHOUT_DRIVER),
    "gpu-not-in-wheel": Case(
        with_gpu("NVIDIA GeForce RTX 3090", "8.6"),
        options=Options(arch_list="7.5"),
        good_options=Options(arch_list="8.6"),
    ),
    "invalid-device-function": Case(with_gpu("NVIDIA Tesla K40m", "3.5")),
    "gpu-of-another-toolkit": Case(with_gpu("NVIDIA GeForce RTX 5090", "12.0")),
    "gpu-not-in-toolkit": Case(with_gpu("GeForce GTX 580", "2.0")),
    "nccl-of-another-release": Case(with_loaded("libnccl.so.2")),
    "nvjitlink-of-another-release": Case(with_loaded("libnvJitLink.so.12")),
    "cuda-symbol-of-another-release": Case(with_loaded("libcublas.so.11")),
    "cudnn-of-another-release": Case(with_loaded("libcudnn.so.8")),
    "mkl-of-another-place": Case(with_loaded("libmkl_core.so.2"), CPU),
    "libstdc++-too-old": Case(with_loaded("libstdc++.so.6"), CPU),
    "relocation-overflow": Case(
        GOOD,
        options=Options(arch_list=WIDE_LIST, settings={"TORCH_NVCC_FLAGS": ""}),
        good_options=Options(arch_list="8.6"),
    ),
    "program-of-another-processor": Case(
        change_host(GOOD, arch="aarch64"), "wheel-3.10-cpu-x86_64"
    ),
    "processor-too-old": Case(OLD_PROCESSOR, CPU, options=CASCADE),
    "illegal-instruction": Case(OLD_PROCESSOR, CPU, options=CASCADE),
    "xcode": Case(change_host(MAC, programs={"paths": {"git": "/g"}}), CPU, good=MAC),
    "macos-target": Case(
        change_host(MAC, programs={"versions": {"macos": "10.15"}}), CPU, good=MAC
    ),
}


def findings(host: Host, case: Case, options: Options) -> dict[str, Finding]:
    """Return the findings of a build on a machine, by their subjects."""
    identifier, _, arch = case.build.partition("-x86_64")
    arch = "x86_64" if identifier != case.build else host.arch
    cell = cell_lookup.find_cell(FACTS, identifier, arch, find_release(FACTS, "torch", case.tag))
    plan = build_plan.compute_plan(FACTS, cell, host, options)
    context = CheckContext(FACTS, cell, host, plan)
    return {finding.subject: finding for finding in examination.examine_build(context)}


def is_alarm(finding: Finding | None) -> bool:
    """Tell whether a finding says that something is wrong, or that a driver is not there."""
    return finding is not None and (
        finding.verdict in {"failure", "warning"} or finding.state == "none"
    )


def test_each_cause_is_in_one_class() -> None:
    classified = Counter(
        [
            *foresight.foreseen_causes(),
            *foresight.unforeseen_causes(),
            *foresight.causes_elsewhere(),
        ]
    )
    assert [name for name, count in classified.items() if count > 1] == []
    assert set(classified) == {cause.name for cause in FACTS.causes}


def test_each_foreseen_cause_has_a_machine() -> None:
    assert set(CASES) == set(foresight.foreseen_causes())


@pytest.mark.parametrize("name", CASES)
def test_the_doctor_says_it_on_this_machine_and_not_on_that(name: str) -> None:
    case = CASES[name]
    said = findings(case.bad, case, case.options)
    silent = findings(case.good, case, case.good_options or case.options)
    for general in foresight.foreseen_causes()[name]:
        subject = general.replace("FOLDER", "/").replace("NAME", "cascadelake")
        assert is_alarm(said.get(subject)), f"no alarm of {subject}: {sorted(said)}"
        assert not is_alarm(silent.get(subject)), silent[subject].sentence()


def test_a_sentence_says_what_foresees_a_cause_or_why_nothing_does() -> None:
    assert foresight.foresight_sentence("memory").endswith("foresees it (memory)")
    assert "has no clock" in foresight.foresight_sentence("clock-skew")
    assert foresight.foresight_sentence("weights-only") == ""
