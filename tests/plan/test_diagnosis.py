"""One error has several reasons: the facts of the log and of the machine choose between them."""

import re
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from packaging.version import Version

from torchmill.config import facts_reader
from torchmill.config.facts import CauseCandidate, FailureCause
from torchmill.config.toolkit import Toolkit
from torchmill.core.paths import CHECKOUT
from torchmill.plan import causes
from torchmill.plan.causes import Diagnosis
from torchmill.plan.diagnosis import answer, cure_order, log_facts
from torchmill.plan.diagnosis.candidates import condition_problem, judge, meets
from torchmill.plan.diagnosis.log_facts import FactCollector
from torchmill.plan.diagnosis.project_commands import find_project, known_projects
from torchmill.plan.diagnosis.shell_words import adapt_commands
from torchmill.plan.diagnosis.situation import Fact, make_situation
from torchmill.plan.diagnosis.templates import facts_in, fill_cure, fill_facts
from torchmill.plan.log_lines import LogLine

FACTS = facts_reader.read_facts(CHECKOUT / "build_configs")
GCC_REFUSED = (
    "host_config.h:119:2: error: #error -- unsupported GNU version! "
    "gcc versions later than {} are not supported!"
)
GPU_REFUSED = "nvcc fatal   : Unsupported gpu architecture 'compute_{}'"
VISUAL_STUDIO_REFUSED = (
    "fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version! "
    "Only the versions between 2017 and 2019 (inclusive) are supported!"
)
NVCC = "Cuda compilation tools, release {}, V{}.1"

_PREFIXES = ("", "older_", "other_")  # of the facts of a gcc

for_each_cause = pytest.mark.parametrize("cause", FACTS.causes, ids=lambda cause: cause.name)


def diagnose(*lines: str, further_facts: Sequence[Fact] = ()) -> Diagnosis:
    return causes.diagnose(FACTS.causes, lines, rules=FACTS, machine_facts=further_facts)


def reason(*lines: str) -> str | None:
    """Return the reason that a log's facts support; None if they support none."""
    match = diagnose(*lines).match
    assert match is not None
    best = match.ranking.answer
    return best.candidate.name if best else None


def first_command(*lines: str) -> str:
    match = diagnose(*lines).match
    assert match is not None
    return cure_order.first_command(match.cause.cure)


def read_facts(*lines: str) -> dict[str, str]:
    collector = FactCollector()
    for number, text in enumerate(lines, 1):
        collector.see(LogLine(number, text))
    return {fact.name: fact.value for fact in collector.facts()}


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("Cuda compilation tools, release 11.3, V11.3.109", "cuda", "11.3"),
        ("/usr/local/cuda-12.1/bin/nvcc -c a.cu", "cuda", "12.1"),
        ("-- The CUDA compiler identification is NVIDIA 12.4.99", "cuda", "12.4"),
        ("| NVIDIA-SMI 535.1  Driver Version: 535.104.05  CUDA Version: 12.2 |", "cuda", None),
        ("| NVIDIA-SMI 535.1  Driver Version: 535.104.05  CUDA Version: 12.2 |", "driver", "535.104.05"),
        ("torch.__version__  = 2.0.1+cu117", "torch", "2.0.1+cu117"),
        ("torch.__version__  = 2.0.1+cu117", "torch_cuda", "11.7"),
        ("PyTorch                 1.9.0+cu102 @/x/torch", "torch_cuda", "10.2"),
        ("[conda] pytorch 1.8.0 py3.8_cuda11.1_cudnn8.0.5_0 pytorch", "torch_cuda", "11.1"),
        ("-- The CXX compiler identification is GNU 13.2.0", "gcc", "13.2.0"),
        ("/usr/include/c++/11/bits/std_function.h:435:145: error: x", "gcc", "11"),
        ("Python 3.8.16 (default, Mar 2 2023) [GCC 11.2.0]", "gcc", None),
        ("  - GCC 7.3", "gcc", None),
        ("Libc version: glibc-2.35", "glibc", "2.35"),
        ("Python platform: Linux-5.4.0-x86_64-with-glibc2.27", "glibc", "2.27"),
        ("creating build/lib.linux-x86_64-cpython-310", "python", "3.10"),
        ("c++ (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0", "distribution", "ubuntu 18.04"),
        ("c++ (Debian 6.3.0-18+deb9u1) 6.3.0", "distribution", "debian 9"),
        ("C:\\Users\\x\\torch\\utils\\cpp_extension.py", "system", "windows"),
        ("/x/pip-build-env-abc/overlay/lib/python3.11/site-packages/x.py", "isolation", "isolated"),
        ("ERROR: Failed building wheel for torch-spline-conv", "project", "torch-spline-conv"),
        ("GPU 0: NVIDIA GeForce RTX 3090", "gpu", "GeForce RTX 3090"),
        ("c++ -std=c++14 -O2 -c a.cpp", "cxx_standard", "14"),
    ],
)  # fmt: skip
def test_a_line_shows_a_fact(line: str, fact: str, value: str | None) -> None:
    assert read_facts(line).get(fact) == value


def test_what_a_tool_prints_counts_more_than_what_a_person_wrote() -> None:
    assert read_facts("my CUDA version: 12.1", NVCC.format("11.3", "11.3"))["cuda"] == "11.3"
    assert read_facts(NVCC.format("11.3", "11.3"), "my CUDA version: 12.1")["cuda"] == "11.3"


def test_each_fact_of_a_log_has_its_line() -> None:
    situation = diagnose("a", NVCC.format("11.3", "11.3"), GCC_REFUSED.format(10)).situation
    assert situation.facts["cuda"].line == 2
    assert situation.facts["newest_gcc"].basis == (situation.facts["gcc_limit"],)


def test_the_nvcc_in_usr_bin_is_that_of_the_distribution() -> None:
    lines = (
        "Ubuntu 18.04, CUDA 10.2",
        "error: command '/usr/bin/nvcc' failed",
        GPU_REFUSED.format(75),
    )
    assert diagnose(*lines).situation.value("cuda") == "9.1"


@pytest.mark.parametrize("limit", [6, 7, 8, 10, 11, 12, 13])
def test_the_gcc_of_the_cure_is_one_that_nvcc_takes(limit: int) -> None:
    command = first_command(GCC_REFUSED.format(limit))
    majors = [int(major) for major in re.findall(r"g\+\+-(\d+)", command)]
    assert majors
    assert max(majors) <= limit


@pytest.mark.parametrize("toolkit", FACTS.toolkits, ids=lambda toolkit: toolkit.version)
@pytest.mark.parametrize("system", ["Ubuntu 20.04", "Ubuntu 22.04", "Debian 12", "Fedora 41", ""])
def test_the_gcc_of_the_cure_fits_each_toolkit(toolkit: Toolkit, system: str) -> None:
    refused = "/usr/local/cuda-{0}/include/crt/host_config.h:1:2: error: #error -- unsupported GNU version!"
    diagnosis = diagnose(refused.format(toolkit.version), f"system: {system}")
    major = diagnosis.situation.value("good_gcc")
    if major is None:
        match = diagnosis.match
        assert match is not None
        assert match.ranking.candidates[0].candidate.name == "no-gcc-here-that-nvcc-takes"
        return
    assert any(meets(str(toolkit.gcc), f"{major}.{minor}") for minor in ("0", "1", "99"))


def test_a_package_of_the_distribution_is_named_only_if_it_has_it() -> None:
    refused = GCC_REFUSED.format(8)
    assert "g++-8" in first_command("OS: Ubuntu 20.04.6 LTS", refused)
    # Ubuntu 22.04 has gcc 9 to 12, and conda-forge 10 and newer: a newer toolkit is left.
    assert (
        first_command("OS: Ubuntu 22.04.1 LTS", "gcc 11.4.0", refused)
        == "invoke toolkit --cuda 11.6"
    )


def test_the_reason_of_a_refused_gpu_depends_on_nvcc_and_torch() -> None:
    refused = GPU_REFUSED.format(75)
    nvcc = NVCC.format("9.0", "9.0")
    assert reason(nvcc, "- CUDA Runtime 10.1", refused) == "nvcc-older-than-torch"
    assert reason(nvcc, "GPU 0: TITAN RTX (arch=7.5)", refused) == "toolkit-older-than-the-gpu"
    listed = 'export TORCH_CUDA_ARCH_LIST="6.1;7.5"'
    assert reason(nvcc, "GPU 0: X (arch=6.1)", refused) == "other-gpu-in-setup-py"
    assert reason(nvcc, "GPU 0: X (arch=6.1)", listed, refused) == "another-gpu-in-the-list"
    newer = NVCC.format("11.2", "11.2")
    assert reason(newer, GPU_REFUSED.format(30)) == "dropped-gpu-in-setup-py"
    assert reason(newer, listed, GPU_REFUSED.format(30)) == "dropped-gpu-in-the-list"


def test_the_toolkit_of_torch_is_filled_into_the_command() -> None:
    command = first_command(
        NVCC.format("9.0", "9.0"), "- CUDA Runtime 10.1", GPU_REFUSED.format(75)
    )
    assert command.startswith("export CUDA_HOME=/usr/local/cuda-10.1 ")


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ("C:\\Users\\x", "toolkit-missing-on-windows"),
        ("/Users/x/flash", "no-cuda-on-a-mac"),
        ("Step 4/9 : RUN pip install flash-attn", "toolkit-missing-in-the-image"),
        ("/home/x/miniconda3/envs/a/bin/python", "toolkit-missing-in-conda"),
        ("torch.__version__ = 2.1.0+cpu", "torch-for-cpus"),
        ("/home/x/venv/bin/python", "toolkit-missing-on-linux"),
    ],
)
def test_where_nvcc_comes_from_depends_on_the_machine(context: str, name: str) -> None:
    assert (
        reason(context, "RuntimeError: flash_attn was requested, but nvcc was not found.") == name
    )


@pytest.mark.parametrize(
    ("context", "command"),
    [
        ("uv pip install flash-attn", "uv pip install"),
        ("pip-install-ab12/flash-attn_4b6759/setup.py", "pip install torch"),
        ("pip install flash-attn --no-build-isolation", "python -m pip install torch"),
    ],
)
def test_how_torch_is_seen_depends_on_the_installer(context: str, command: str) -> None:
    assert first_command(context, "ModuleNotFoundError: No module named 'torch'").startswith(
        command
    )


@pytest.mark.parametrize(
    ("standard", "fit"),
    [("98", "too low"), ("03", "too low"), ("1y", "too low"), ("2b", "fits"), ("1x", None)],
)
def test_a_standard_is_compared_by_its_year(standard: str, fit: str | None) -> None:
    situation = diagnose("torch.__version__ = 2.3.0", f"g++ -std=c++{standard} -c a.cpp").situation
    assert situation.value("standard_fit") == fit


def test_a_standard_that_a_flag_lowers_is_told_from_a_compiler_that_does_not_know_it() -> None:
    lacks = "a.h:4:2: error: #error C++17 or later compatible compiler is required to use PyTorch."
    torch = "torch.__version__ = 2.3.0"
    assert reason(torch, "g++ -std=c++14 -c a.cpp", lacks) == "flag-lowers-the-standard"
    old = "-- The CXX compiler identification is GNU 7.5.0"
    assert (
        reason(torch, "g++ -std=c++17 -c a.cpp", old, lacks)
        == "compiler-does-not-know-the-standard"
    )
    assert "c++17" in first_command(torch, "g++ -std=c++14 -c a.cpp", lacks)
    newer = "a.h:4:2: error: #error C++20 or later compatible compiler is required to use PyTorch."
    assert "c++20" in first_command("torch.__version__ = 2.15.0", "g++ -std=c++17 -c a.cpp", newer)


def test_nothing_is_decided_without_a_fact_that_decides() -> None:
    diagnosis = diagnose("nvcc fatal   : Unsupported gpu architecture 'compute_87'")
    match = diagnosis.match
    assert match is not None
    if match.ranking.answer is None:
        assert "`" in answer.open_question(match)


def test_the_log_counts_where_a_description_contradicts_it() -> None:
    described = Fact("gcc", "12.2.0", "host")
    diagnosis = diagnose(
        "-- The CXX compiler identification is GNU 9.4.0",
        GCC_REFUSED.format(8),
        further_facts=[described],
    )
    assert diagnosis.situation.value("gcc") == "9.4.0"
    text = answer.diagnosis_as_text(diagnosis, "x.log")
    assert "says gcc 12.2.0, and line 1 of the log 9.4.0: the log counts" in text


def test_fewer_parts_of_a_version_contradict_nothing() -> None:
    facts = [Fact("gcc", "11", "log", 3), Fact("gcc", "11.4.0", "host")]
    assert make_situation(facts).contradictions == ()


def test_a_condition_that_fails_refutes() -> None:
    candidates = [
        CauseCandidate("first", "a", "b", {"gcc": "<9"}),
        CauseCandidate("second", "a", "b", {"gcc": ">=9", "cuda": "*"}),
        CauseCandidate("third", "a", "b", {"conda": "conda"}),
    ]
    ranking = judge(candidates, {"gcc": "11.2", "cuda": "12.1"})
    assert [judged.candidate.name for judged in ranking.candidates] == ["second", "third"]
    assert ranking.answer is not None
    assert judge(candidates[:2], {}).answer is None
    assert judge(candidates[:2], {}).missing_fact == "gcc"


def test_parts_of_a_cure_for_other_machines_are_left_out() -> None:
    cure = "`a`; Windows: `b`; macOS: `c`; conda: `d`; then `e`"
    assert cure_order.order_cure(cure, {"system": "linux"}) == "`a`; conda: `d`; then `e`"
    conda = cure_order.order_cure(cure, {"system": "linux", "conda": "conda"})
    assert conda == "conda: `d`; then `e`; `a`"
    assert cure_order.order_cure(cure, {}) == cure


def test_places_that_are_no_facts_stay() -> None:
    text = "extra_compile_args={'cxx': [1]} {name} cuda-{torch_cuda|X.Y}"
    assert fill_facts(text, {}) == "extra_compile_args={'cxx': [1]} {name} cuda-X.Y"
    assert fill_facts(text, {"torch_cuda": "12.1"}).endswith("cuda-12.1")


def test_a_shell_reads_a_fact_that_the_log_does_not_show() -> None:
    cure = "`export CUDA_HOME=/x/cuda-{torch_cuda|X.Y} PATH=/x/cuda-{torch_cuda|X.Y}/bin:$PATH`, CUDA {torch_cuda|X.Y}"
    read = "CUDA=$(python -c 'import torch; print(torch.version.cuda)')"
    assert fill_cure(cure, {}) == (
        f"`{read} && export CUDA_HOME=/x/cuda-$CUDA PATH=/x/cuda-$CUDA/bin:$PATH`, CUDA X.Y"
    )
    assert "cuda-12.1/bin" in fill_cure(cure, {"torch_cuda": "12.1"})
    assert fill_cure(cure, {"system": "windows"}) == fill_facts(cure, {})


@pytest.mark.parametrize(
    "command",
    [
        "FROM nvidia/cuda:{torch_cuda|X.Y}.0-devel",
        "-- --arch-list {gpu_capability|X.Y}",
        "pip install 'torch=={torch_version|VERSION}'",
        "export A=cuda-{torch_cuda|X.Y} B=cuda-{torch_cuda_dashed|X-Y}",
        "pip install {project|NAME}",
    ],
)
def test_a_place_that_no_shell_can_fill_keeps_its_fallback(command: str) -> None:
    assert fill_cure(f"`{command}`", {}) == fill_facts(f"`{command}`", {})


def test_a_word_of_a_condition_may_end_in_any_characters() -> None:
    assert meets("TH/*|THC/*", "THC/THC.h")
    assert not meets("TH/*", "THC/THC.h")
    assert not meets("a.c", "abc")


MISSING_HEADER = (
    "/x/ATen/cuda/CUDAContext.h:6:10: fatal error: cusparse.h: No such file or directory"
)


@pytest.mark.parametrize(
    ("context", "command"),
    [
        ("/usr/local/cuda-11.7/bin/nvcc -c a.cu", "sudo apt-get install cuda-libraries-dev-11-7"),
        (
            "OS: Rocky Linux 9\n/usr/local/cuda-11.7/bin/nvcc -c a.cu",
            "sudo dnf install cuda-libraries-devel-11-7",
        ),
        (
            "error: command '/home/u/miniconda3/envs/a/bin/nvcc' failed",
            "conda install -c nvidia cuda-libraries-dev",
        ),
        (
            "error: command '/usr/bin/nvcc' failed with exit code 1",
            "sudo apt-get install nvidia-cuda-dev",
        ),
        ("CUDA_HOME=/usr/ nvcc", "sudo apt-get install nvidia-cuda-dev"),
    ],
)
def test_headers_of_a_toolkit_are_installed_by_its_maker(context: str, command: str) -> None:
    assert first_command(*context.split("\n"), MISSING_HEADER).startswith(command)


@pytest.mark.parametrize(
    ("context", "root"),
    [
        ("error: command '/opt/cuda/bin/nvcc' failed with exit code 1", "/opt/cuda"),
        (r"error: command 'C:\cuda\bin\nvcc.exe' failed with exit code 1", r"C:\cuda"),
        ("error: command 'nvcc' failed with exit code 1", None),
        ("CUDA_HOME=/opt/cuda-a:/opt/cuda-b", None),
    ],
)
def test_the_folder_of_a_toolkit_is_known_from_whole_paths_only(
    context: str, root: str | None
) -> None:
    situation = diagnose(context, MISSING_HEADER).situation
    assert situation.value("cuda_root") == root
    if root is None:
        assert situation.value("toolkit_parts") is None


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (
            ["a.cpp:3:10: fatal error: torch/library.h: No such file or directory"],
            "pip install --upgrade 'torch>=1.6'",
        ),
        (
            ['a.cu(3): error: class "cudaDeviceProp" has no member "clockRate"'],
            "invoke toolkit --cuda 12.9",
        ),
        (
            [
                "nvcc fatal   : Unsupported gpu architecture 'compute_89'",
                "torch.__version__ = 2.1.0+cu121",
            ],
            "invoke toolkit --cuda 12.1",
        ),
        (
            ['a.cu(37): error: namespace "thrust" has no member "sort"'],
            "sed -i '1i #include <thrust/sort.h>' a.cu",
        ),
        (
            [
                "ld: a.o: undefined reference to symbol 'x'",
                "ld: /x/libtinfo.so.6: error adding symbols: DSO missing from command line",
            ],
            "export LDFLAGS='-Wl,--no-as-needed -ltinfo'",
        ),
        (
            [
                "a.cpp:1: undefined reference to `c10::Error::Error(std::__cxx11::basic_string<char>)'"
            ],
            "cmake -DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0",
        ),
        (
            [
                "cl.exe /c a.cu",
                "all.h:4:2: fatal error C1189: #error:  C++17 or later compatible compiler is required to use PyTorch.",
            ],
            "set _CL_=/std:c++17",
        ),
        (
            [
                "1.11.1",
                "C:\\x",
                "LINK : fatal error LNK1181: cannot open input file 'C:\\x\\a.obj'",
            ],
            "pip install --force-reinstall --no-deps torch",
        ),
        (
            [
                'a.h(4): error: namespace "std" has no member "uintptr_t"',
                "-DTORCH_EXTENSION_NAME=_C",
            ],
            "export CFLAGS='-include cstdint'",
        ),
        (
            [
                "c++ (GCC) 9.4.0",
                "a.cpp:5:1: internal compiler error: in maybe_undo_parenthesized_ref, at cp/semantics.c:1740",
            ],
            "sudo apt-get install g++-",
        ),
        (
            [
                "c++ -I:/usr/local/cuda-10.1/include -c a.cpp",
                "a.cpp:5:10: fatal error: cuda_runtime_api.h: No such file or directory",
            ],
            "export CUDA_HOME=/usr/local/cuda-10.1",
        ),
        (
            [
                "1.9.0",
                ">>> torch.__version__",
                "'1.9.0'",
                "a.cpp:1:10: fatal error: torch/extension.h: No such file or directory",
            ],
            "export CPATH=$(python -c",
        ),
        (["/usr/bin/ld: cannot find -lrccl"], "export LIBRARY_PATH=/opt/rocm/lib"),
        (
            [
                VISUAL_STUDIO_REFUSED,
                "CUDA\\v11.2\\include\\crt/host_config.h(160)",
                "MSVC\\14.38.33130",
            ],
            "vcvarsall.bat x64 -vcvars_ver=14.29",
        ),
        (
            [
                "ImportError: /x/site-packages/torch/lib/libshm.so: undefined symbol: _ZTI24THRefcountedMapAllocator"
            ],
            "pip uninstall -y torch",
        ),
        (
            ["/x/foo.cpython-37m-x86_64-linux-gnu.so: undefined symbol: _ZN2at5ErrorE"],
            "rm -rf build",
        ),
        (
            [
                "nvcc fatal   : Unsupported gpu architecture 'compute_30'",
                "caffe2/CMakeFiles/x",
                NVCC.format("11.1", "11.1"),
            ],
            "GPU=$(nvidia-smi -i 0 --query-gpu=compute_cap",
        ),
    ],
)
def test_the_first_command_mends(lines: list[str], command: str) -> None:
    assert first_command(*lines).startswith(command)


def test_visual_studios_tools_are_those_that_nvcc_takes() -> None:
    log = (
        "release 11.3, V11.3.1",
        "C:\\x",
        "fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version!",
    )
    assert "vcvars_ver=14.29" in first_command("Cuda compilation tools, " + log[0], *log[1:])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "['-O3', '-gencode=arch=compute_35,code=sm_35', '-gencode=arch=compute_70,code=sm_70']",
            "['-O3',  '-gencode=arch=compute_70,code=sm_70']",
        ),
        (
            "['-gencode', 'arch=compute_35,code=sm_35', '-gencode', 'arch=compute_70,code=sm_70']",
            "[ '-gencode', 'arch=compute_70,code=sm_70']",
        ),
        (
            "ARCH = -gencode arch=compute_35,code=sm_35 -gencode arch=compute_70,code=sm_70",
            "ARCH =  -gencode arch=compute_70,code=sm_70",
        ),
    ],
)
def test_a_gpu_that_setup_py_names_is_taken_out(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "setup.py").write_text(before)
    command = first_command(NVCC.format("12.2", "12.2"), GPU_REFUSED.format(35))
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "setup.py").read_text() == after


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("src/a_cuda.cpp:2:10: fatal error: THC/THC.h: No such file or directory", "src/a_cuda.cpp"),
        ('src/kernels.cuh(481): error: namespace "thrust" has no member class "unary_function"', "src/kernels.cuh"),
        ('C:/x y/a.cu(7): error: identifier "AT_CHECK" is undefined', None),
        ('C:/x/a.cu(7): error: identifier "AT_CHECK" is undefined', "C:/x/a.cu"),
    ],
)  # fmt: skip
def test_the_file_of_an_error_is_known(line: str, file: str | None) -> None:
    assert diagnose(line).situation.value("file") == file


def known_facts() -> set[str]:
    """Return the names of all facts: of those that logs show, and those that rules compute."""
    folder = CHECKOUT / "torchmill/plan/diagnosis"
    source = "\n".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    computed = set(
        re.findall(r'(?:_computed\(\s*situation,\s*|\.computed\(\s*|Fact\(\s*)f?"(\w+)"', source)
    )
    table_names = {
        f"{name}_{part}"
        for name in ("named", "gpu")
        for part in ("fit", "toolkits", "first_toolkit", "last_toolkit")
    }
    gccs = {f"{prefix}gcc_{part}" for prefix in _PREFIXES for part in ("install", "exports")}
    computed_names = {"torchvision", "torchaudio", "good_gcc", "older_gcc", "other_gcc"}
    of_line = {"name", "came_in", "gone_since", "came_in_cuda", "gone_in_cuda", "file"}
    return {*log_facts.FACT_TABLES, *computed, *table_names, *gccs, *computed_names, *of_line}


@for_each_cause
def test_each_cause_asks_for_facts_that_exist(cause: FailureCause) -> None:
    names = known_facts()
    texts = chain(
        [cause.cause, cause.cure],
        *((candidate.cause, candidate.cure) for candidate in cause.candidates),
    )
    places = {fact for text in texts for fact in facts_in(text)}
    for candidate in cause.candidates:
        places.update(candidate.when)
        assert not [text for text in candidate.when.values() if condition_problem(text)]
    assert places <= names


def test_no_release_of_gcc_is_written_into_the_cure_of_a_refused_compiler() -> None:
    by_name = {cause.name: cause for cause in FACTS.causes}
    for name in ("compiler-too-new-for-cuda", "compiler-too-old"):
        cause = by_name[name]
        texts = [cause.cure, *(candidate.cure for candidate in cause.candidates)]
        assert [text for text in texts if re.search(r"(?:gcc|g\+\+|gxx)[-=]\d", text)] == []


def test_a_line_of_a_megabyte_takes_a_moment() -> None:
    collector = FactCollector()
    collector.see(LogLine(1, "-std=c++14 cuda gcc python torch " * 40_000))
    assert {fact.name for fact in collector.facts()} >= {"cxx_standard"}


def test_the_newest_torch_for_a_gpu_is_newer_than_the_gpu() -> None:
    situation = diagnose(
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."
    ).situation
    release = situation.value("gpu_torch")
    assert release is not None
    assert Version(release) >= Version("2.7")


UNDEFINED = (
    "ImportError: /h/lib/python3.10/site-packages/{}: undefined symbol: _ZN3c104cuda9SetDeviceEi"
)
PYTHON_3_10 = "cpython-310-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        (f"flash_attn_2_cuda.{PYTHON_3_10}", "flash-attn"),
        (f"detectron2/_C.{PYTHON_3_10}", "git+https://github.com/facebookresearch/detectron2"),
        (f"pytorch3d-0.7.5-py3.10-linux-x86_64.egg/pytorch3d/_C.{PYTHON_3_10}", "pytorch3d"),
        (f"selective_scan_cuda.{PYTHON_3_10}", "mamba-ssm"),
        (f"mmcv/_ext.{PYTHON_3_10}", "mim install mmcv"),
    ],
)
def test_an_extension_of_another_torch_is_installed_again_by_its_name(
    file: str, installed: str
) -> None:
    assert installed in first_command(UNDEFINED.format(file))


def test_wheels_of_a_page_for_each_torch_are_those_of_the_installed_one() -> None:
    line = UNDEFINED.format("torch_sparse/_version_cuda.so")
    assert "torch-2.1.0+cu121.html" in first_command("torch==2.1.2+cu121", line)
    assert "--no-binary" in first_command(line)


def test_an_extension_that_was_compiled_on_first_use_is_compiled_again() -> None:
    line = (
        "ImportError: /root/.cache/torch_extensions/py310_cu121/fused/fused.so: "
        "undefined symbol: _ZN3c104cuda9SetDeviceEi"
    )
    assert first_command(line) == "rm -rf ~/.cache/torch_extensions"


def test_the_project_of_the_failing_line_counts_and_not_another_of_the_log() -> None:
    log = ("ERROR: Failed building wheel for scipy", UNDEFINED.format(f"mmcv/_ext.{PYTHON_3_10}"))
    assert "mmcv" in first_command(*log)


NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"


@pytest.mark.parametrize(
    ("context", "index"),
    [
        ("torch==2.4.0+cpu", "torch==2.4.0 torchvision==0.19.0 torchaudio==2.4.0 --index-url https://download.pytorch.org/whl/cu121"),
        ("torch==1.13.1+cpu\nDriver Version: 450.80.02  CUDA Version: 11.0", "whl/cu117"),
        ("torch==2.7.0+cpu\nGPU 0: NVIDIA GeForce RTX 5090", "whl/cu128"),
        ("Jetson Orin, JetPack 6.2", "pypi.jetson-ai-lab.io/jp6"),
    ],
)  # fmt: skip
def test_a_torch_with_cuda_is_one_for_the_driver_and_the_gpu(context: str, index: str) -> None:
    assert index in first_command(*context.splitlines(), NO_CUDA)


def test_no_torch_with_cuda_is_offered_for_a_mac() -> None:
    assert reason("/Users/x/venv/bin/python", NO_CUDA) == "no-cuda-on-a-mac"


def test_the_drivers_cuda_is_read_out_of_torchs_message() -> None:
    line = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."
    assert read_facts(line)["driver_cuda"] == "11.4"
    assert "whl/cu118" in first_command("torch==2.1.0+cu121", line)


def test_a_name_that_came_later_needs_a_newer_torch_and_one_that_went_a_newer_package() -> None:
    newer = "AttributeError: module 'torch.library' has no attribute 'register_fake'"
    assert first_command(newer).startswith("pip install -U 'torch>=2.4'")
    frame = '  File "/h/lib/python3.10/site-packages/timm/models/helpers.py", line 9, in <module>'
    gone = "ModuleNotFoundError: No module named 'torch._six'"
    assert first_command(frame, gone) == "pip install -U timm"


GLIBCXX = "ImportError: {}/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by {}/x.so)"


@pytest.mark.parametrize(
    ("loaded", "needing", "name"),
    [
        ("/lib/x86_64-linux-gnu", "/opt/conda/lib", "newer-libstdc++-in-conda"),
        ("/opt/conda/lib", "/usr/lib", "older-libstdc++-in-conda"),
    ],
)
def test_which_libstdcxx_is_older_depends_on_the_paths(
    loaded: str, needing: str, name: str
) -> None:
    assert reason(GLIBCXX.format(loaded, needing)) == name


def test_a_torch_for_an_older_glibc_is_found() -> None:
    line = (
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found "
        "(required by /h/lib/python3.9/site-packages/torch/lib/libtorch_cpu.so)"
    )
    version = re.search(r"torch==(\S+)", first_command(line))
    assert version is not None
    assert Version("2.0") < Version(version[1]) < Version("2.7")


@pytest.mark.parametrize(
    ("command", "adapted"),
    [
        ("pip install -U x", "uv pip install -U x"),
        ("python -m pip install x && pip list", "uv pip install x && uv pip list"),
        ("pip install --ignore-installed x", "pip install --ignore-installed x"),
        ("pip install -U pip", "pip install -U pip"),
        ("pip cache purge", "pip cache purge"),
        ("uv pip install x", "uv pip install x"),
    ],
)
def test_a_command_of_pip_is_one_of_uv_for_who_uses_it(command: str, adapted: str) -> None:
    assert adapt_commands(f"`{command}`", {"installer": "uv"}) == f"`{adapted}`"


@pytest.mark.parametrize(
    ("command", "cmd", "powershell"),
    [
        (
            "A=1 B='x y' pip install z",
            'set "A=1" && set "B=x y" && pip install z',
            "$env:A='1'; $env:B='x y'; pip install z",
        ),
        ("export A=1", 'set "A=1"', "$env:A='1'"),
        ("unset A B", 'set "A=" && set "B="', "$env:A=''; $env:B=''"),
        (
            "rm -rf build && pip install .",
            "rmdir /s /q build && pip install .",
            "Remove-Item -Recurse -Force build; pip install .",
        ),
        ("pip install 'numpy<2'", 'pip install "numpy<2"', "pip install 'numpy<2'"),
        (
            "export CUDA_HOME=/usr/local/cuda",
            "export CUDA_HOME=/usr/local/cuda",
            "export CUDA_HOME=/usr/local/cuda",
        ),
    ],
)
def test_a_command_is_in_the_words_of_the_shell_of_windows(
    command: str, cmd: str, powershell: str
) -> None:
    values = {"system": "windows"}
    assert adapt_commands(f"`{command}`", values) == f"`{cmd}`"
    values["shell"] = "PowerShell"
    assert adapt_commands(f"`{command}`", values) == f"`{powershell}`"
    assert adapt_commands(f"`{command}`", {"system": "linux"}) == f"`{command}`"


def test_each_known_project_is_found_by_its_modules_and_has_a_command() -> None:
    for project in known_projects():
        assert find_project(project.name) == project
        assert project.again[-1].when == {}, project.name
        for entry in project.again:
            assert set(facts_in(entry.command)) <= known_facts()
            assert set(entry.when) <= known_facts()


def test_packages_of_another_manager_are_left_out() -> None:
    cure = "`apt-get install a`; Red Hat: `dnf install b`"
    assert cure_order.order_cure(cure, {"system": "linux", "manager": "dnf"}) == (
        "Red Hat: `dnf install b`"
    )
    assert (
        cure_order.order_cure(cure, {"system": "linux", "manager": "apt"}) == "`apt-get install a`"
    )


FROM_VERSIONS = (
    "ERROR: Could not find a version that satisfies the requirement {0} (from versions: {1})",
    "ERROR: No matching distribution found for {0}",
)


def not_found(requirement: str, versions: str) -> list[str]:
    return [line.format(requirement, versions) for line in FROM_VERSIONS]


@pytest.mark.parametrize(
    ("context", "requirement", "versions", "command"),
    [
        ("", "torch==1.8.1", "1.13.0, 2.0.0, 2.8.0", "uv venv --python 3.9"),
        ("windows 11, python 3.11", "torch==1.13.1", "2.0.0, 2.4.1", "uv venv --python 3.10"),
        ("", "torch==1.11.0+cu113", "none", "uv venv --python 3.10"),
        (
            "/Library/Frameworks/Python.framework/Versions/3.11/bin/pip",
            "torch==2.6.0",
            "2.0.0, 2.2.2",
            "pip install torch==2.2.2",
        ),
        (
            "",
            "torch==2.0.0+cu113",
            "1.13.1, 2.0.0, 2.6.0",
            "pip install torch==2.0.0 --index-url https://download.pytorch.org/whl/cu117",
        ),
        (
            "Looking in indexes: https://download.pytorch.org/whl/cu131",
            "torch==2.10.0",
            "none",
            "pip install torch==2.10.0 --index-url https://download.pytorch.org/whl/cu130",
        ),
        ("/Users/x/venv", "torch==2.1.2+cu118", "2.1.1, 2.1.2", "pip install torch==2.1.2"),
        ("", "numpy==1.19.5", "1.21.0, 2.0.0", "pip install 'numpy>=1.21.0'"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by x",
            "einops",
            "none",
            "export https_proxy=http://HOST:PORT",
        ),
    ],
)
def test_what_pip_saw_decides_which_version_or_python_to_take(
    context: str, requirement: str, versions: str, command: str
) -> None:
    assert first_command(context, *not_found(requirement, versions)) == command


def test_a_python_within_the_bounds_of_a_package_is_named() -> None:
    refused = "ERROR: Package 'x' requires a different Python: 3.13.1 not in '<3.11,>=3.8'"
    assert first_command(refused) == "uv venv --python 3.10"


@pytest.mark.parametrize(
    ("name", "python", "command"),
    [
        ("float", "3.10", "pip install 'numpy<1.24'"),
        ("float", "3.12", "grep -rlE"),
        ("trapz", "3.12", "pip install 'numpy<2'"),
        ("exceptions", "3.10", "pip install -U numpy"),
    ],
)
def test_the_name_that_numpy_lacks_decides_which_numpy_to_take(
    name: str, python: str, command: str
) -> None:
    line = f"AttributeError: module 'numpy' has no attribute '{name}'."
    assert first_command(f"Python {python}", line).startswith(command)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (("RuntimeError: Ninja is required to load C++ extensions",), "ninja-missing"),
        (("/bin/sh: 1: git: not found",), "git-missing"),
        (
            ("fatal: unable to access 'https://github.com/x.git/': Connection timed out",),
            "clone-cut-off",
        ),
        (
            (
                "pip._vendor.urllib3.exceptions.ReadTimeoutError: host='files.pythonhosted.org': Read timed out.",
            ),
            "download-of-pip-cut-off",
        ),
        (
            ("fatal: unable to access 'https://x.git/': Failed to connect to 127.0.0.1 port 7890",),
            "proxy-that-does-not-answer",
        ),
        (
            (
                "ModuleNotFoundError: No module named 'pkg_resources'",
                "/x/pip-build-env-ab/overlay/x.py",
            ),
            "isolated-build-took-the-newest-setuptools",
        ),
        (
            ("ModuleNotFoundError: No module named 'triton'", "C:\\Users\\x\\a.py"),
            "triton-on-windows",
        ),
        (
            ("ERROR: Cannot uninstall blinker 1.4, RECORD file not found.",),
            "package-of-the-system-or-conda",
        ),
        (
            ("E: Unable to locate package cuda-toolkit-12-4", "OS: Ubuntu 22.04"),
            "cuda-package-without-nvidias-repository",
        ),
        (("E: Unable to locate package python3.9-dev", "OS: Ubuntu 22.04"), "python-of-deadsnakes"),
        (
            ("RuntimeError: No CUDA GPUs are available", "#8 RUN python setup.py"),
            "container-without-the-gpu",
        ),
        (
            ("RuntimeError: No CUDA GPUs are available", "google.colab"),
            "gpu-hidden-or-not-there-in-a-notebook",
        ),
        (("Failed to initialize NVML: Driver/library version mismatch",), "driver-not-yet-loaded"),
        (
            (
                'OSError: [WinError 126] x. Error loading "C:\\x\\torch\\lib\\fbgemm.dll" or one of its dependencies.',
            ),
            "fbgemm-without-openmp",
        ),
        (
            (
                "ImportError: DLL load failed while importing flash_attn_2_cuda: The specified procedure",
            ),
            "known-extension-of-another-torch",
        ),
        (
            (
                "fatal: clone of 'https://github.com/RLovelett/eigen.git' into submodule path 'x' failed",
                "fatal: repository 'https://github.com/RLovelett/eigen.git/' not found",
            ),
            "submodule-that-was-deleted",
        ),
        (
            ("CppCompileError: C++ compile error", "C:/Users/x/a.cpp"),
            "compiler-of-inductor-on-windows",
        ),
        (("CppCompileError: C++ compile error", "/home/x/a.cpp"), "compiler-of-inductor-on-linux"),
        (
            ("x.c:14: error: include file 'Python.h' not found", "C:/Users/x/tcc.exe"),
            "headers-of-an-embeddable-python",
        ),
        (
            (
                "ImportError: /x/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommResume",
                "nvidia-nccl-cu12==2.27.5 nvidia-nccl-cu13==2.27.7",
            ),
            "nccl-of-two-cudas",
        ),
        (
            ("ImportError: /x/torch/lib/libtorch_hip.so: undefined symbol: ncclCommResume",),
            "rccl-of-another-rocm",
        ),
        (
            ("a.hip:1:10: fatal error: 'thrust/sort.h' file not found", "/opt/rocm/bin/hipcc"),
            "thrust-of-rocm-missing",
        ),
        (
            ("ModuleNotFoundError: No module named 'torch'", "C:\\x\\uv\\cache\\builds-v0\\.tmp"),
            "isolated-build-of-uv",
        ),
        (
            ("clang: error: unable to execute command: Segmentation fault: 11", "/Users/x"),
            "clang-of-xcode-crashed",
        ),
        (("LINK : fatal error LNK1000: Internal error",), "linker-of-visual-studio-crashed"),
        (
            ("a.cu(3): error: no instance of overloaded function 'atomicAdd' matches",),
            "gpus-of-the-list-are-too-old",
        ),
    ],
)
def test_facts_choose_the_reason(lines: tuple[str, ...], name: str) -> None:
    assert reason(*lines) == name


def test_options_of_a_session_are_variables_for_another_build() -> None:
    cure = "`-- --set USE_MPI=0`; `-- --arch-list '8.6'`; `invoke fetch --tag TAG`"
    other = adapt_commands(cure, {})
    assert "`export USE_MPI=0`" in other
    assert "`export TORCH_CUDA_ARCH_LIST='8.6'`" in other
    assert "git submodule update" in other
    assert adapt_commands(cure, {"suite": "torchmill"}) == cure


def test_what_mends_is_the_first_command_and_not_what_shows() -> None:
    assert (
        cure_order.first_command("`df -h` shows it; `setup.py`; `rm -rf build`") == "rm -rf build"
    )
    assert cure_order.first_command("`df -h` shows it") == "df -h"
    assert cure_order.first_command("`libraries=[…]` in setup.py") == "libraries=[…]"


def test_what_a_shell_says_behind_a_failed_step_is_no_command() -> None:
    match = diagnose("FAILED: a.o", "/bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found").match
    assert match is not None
    assert match.cause.name == "cuda-home-of-several-folders"


def test_a_candidate_that_lacks_its_fact_is_not_left_over() -> None:
    candidates = [
        CauseCandidate("first", "a", "b", {"system": "macos"}),
        CauseCandidate("second", "a", "b", {"known_project": "*"}),
    ]
    assert judge(candidates, {"system": "linux"}).answer is None


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (
            ("ImportError: libcudnn.so.8: cannot open shared object file", "torch==2.5.1+cu121"),
            "pip install --force-reinstall torch==2.3.1 ",
        ),
        (
            (
                "RuntimeError: no kernel image is available for execution on the device",
                "Tesla P100, torch 2.8.0+cu128",
            ),
            "pip install --force-reinstall torch==2.8.0 ",
        ),
        (
            (
                "WARNING[XFORMERS]: can't load extensions. xFormers was built for:",
                "    PyTorch 2.1.0+cu121 with CUDA 1201 (you have 2.2.0+cu121)",
            ),
            "pip install --force-reinstall xformers torch==2.2.0 ",
        ),
        (("ModuleNotFoundError: No module named 'distutils'", "Python 3.8"), "apt-get install"),
        (
            ("fatal: unable to access 'https://x.git/': server certificate verification failed.",),
            "sudo apt-get update && sudo apt-get install -y --reinstall ca-certificates",
        ),
    ],
)
def test_torch_is_installed_again_where_that_mends(lines: tuple[str, ...], command: str) -> None:
    assert first_command(*lines).startswith(command)
