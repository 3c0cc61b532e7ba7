"""What command lines say of their units: commands as CMake, torch and setuptools write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from millguard import gate_protocol
from millguard.expectations import MeasuredNeed, NeedHistory
from millguard.units import UnitDescription, describe_unit, unit_title

ROOTS = ("/home/me/trees/a", "/home/me/trees/a/source")
BUILD = "/home/me/trees/a/source/build"


def described(command: str, cwd: str = BUILD) -> UnitDescription:
    return describe_unit(cwd, command.split(), ROOTS)


def test_the_key_of_a_compile_names_its_source() -> None:
    command = (
        "/usr/bin/c++ -DUSE_X=1 -I/home/me/trees/a/source/aten/src -isystem ../third_party/x.cpp -O2 -g"
        " -DNDEBUG -std=gnu++17 -MD -MT CMakeFiles/a.dir/x.cpp.o -MF x.cpp.o.d -o CMakeFiles/a.dir/x.cpp.o"
        " -c /home/me/trees/a/source/torch/csrc/Module.cpp"
    )
    assert described(command) == UnitDescription(
        "c++", "c++|torch/csrc/Module.cpp|-O2-g", 1.0, "torch/csrc/Module.cpp"
    )


def test_the_key_of_a_link_names_its_output() -> None:
    one = described(
        "/usr/bin/g++-12 -fPIC -O3 -shared -o lib/libtorch_cpu.so @CMakeFiles/objects.rsp -lm"
    )
    assert one == UnitDescription(
        "link", "g++|link|build/lib/libtorch_cpu.so", 1.0, "build/lib/libtorch_cpu.so"
    )
    assert described("gcc a.o").key == "gcc|link|build/a.out"


@pytest.mark.parametrize(
    ("command", "family"),
    [
        ("cc -c a.c", "c"),
        ("cc -c a.S", "c"),
        ("clang++ -c a.cc", "c++"),
        ("clang++ -c a.mm", "c++"),
        ("g++ -o a a.cpp", "c++"),  # compiled and linked at once
        ("g++ -S a.cxx", "c++"),
        ("g++ -fsyntax-only a.cpp", "c++"),
        ("nvcc -dc a.cu", "cuda"),
        ("nvcc -x cu -c a.cpp", "cuda"),
        ("nvcc --compile a.cpp", "c++"),
        ("hipcc -c a.hip", "cuda"),
        ("gcc -x c++ -c a.inc", "c++"),
        ("gcc -xc -c a.inc", "c"),
        ("gcc -c a.inc", "c++"),
        ("g++ -o a a.o b.o", "link"),
        ("nvcc -dlink a.o -o b.o", "link"),
        ("g++ -shared -include a.h -o a.so a.o", "link"),
        ("ld", "link"),
    ],
)
def test_the_language_makes_the_family(command: str, family: str) -> None:
    assert described(command).family == family


def test_no_command_at_all_is_described() -> None:
    assert describe_unit("/", []).family == "link"
    assert describe_unit("/", ["g++", "-o"]).family == "link"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("c++ -c a.cpp", "c++ -O0 -c a.cpp"),
        ("g++ -O3 -c a.cpp", "/opt/bin/g++-13 -O1 -O3 -c a.cpp -o other.o"),
        ("x86_64-linux-gnu-g++-12 -c a.cpp", "g++ -c a.cpp"),
        ("x86_64-pc-linux-gnu-clang++-18 -c a.cpp", "clang++ -c a.cpp"),
        ("clang++-14 -c a.cpp", "clang++-14.0.6 -c a.cpp"),
        ("g++ -g3 -c a.cpp", "g++ -ggdb -gdwarf-4 -c a.cpp"),
        ("g++ -g0 -c a.cpp", "g++ -c a.cpp"),
        (
            "g++ -I/usr/include/python3.10 -DX -c a.cpp",
            "g++ -I/usr/include/python3.12 -DY -c a.cpp",
        ),
        ("g++ -mfma -mavx2 -c a.cpp", "g++ -mavx2 -mfma -c a.cpp"),
        ("g++ -c a.cpp", f"g++ -c {BUILD}/x/../a.cpp"),
        ("g++ -c a.cpp", "g++ -x c++ -c a.cpp"),
        (
            "nvcc -gencode arch=compute_80,code=sm_80 -c a.cu",
            "nvcc -arch=compute_80 -code=sm_80 -c a.cu",
        ),
        (
            "g++ -shared a.o -o build/lib.linux-x86_64-cpython-310/v/_C.cpython-310-x86_64-linux-gnu.so",
            "g++ -shared a.o -o build/lib.linux-x86_64-cpython-312/v/_C.cpython-312-x86_64-linux-gnu.so",
        ),
        ("cc -c TryCompile-a1B2c3/a.c", "cc -c TryCompile-Zz9y8x/a.c"),
        ("cc a.o -o cmTC_0893f", "cc a.o -o cmTC_1aa0c"),
        (
            "g++ -c /b/rattler-build_zlib_1796069639/work/a.cpp",
            "g++ -c /b/rattler-build_zlib_1796069700/work/a.cpp",
        ),
        ("g++ -c /b/zlib_1700000000000/work/a.cpp", "g++ -c /b/zlib_1700000000001/work/a.cpp"),
        (
            f"g++ -c /tmp/pip-install-a1b2c3d_/ujson_{'0a' * 16}/a.cpp",
            f"g++ -c /tmp/pip-install-zzb2c3d_/ujson_{'1b' * 16}/a.cpp",
        ),
        ("g++ -c /tmp/pip-req-build-a1b2c3d_/a.cpp", "g++ -c /tmp/pip-req-build-x1b2c3d_/a.cpp"),
        (
            "g++ a.o -o /tmp/tmpab_d3f5h.build-lib/a.so",
            "g++ a.o -o /tmp/tmpxb_d3f5h.build-lib/a.so",
        ),
        ("g++ -c /uv/.tmpAbCd3f/src/a.cpp", "g++ -c /uv/.tmpxbCd3f/src/a.cpp"),
    ],
)
def test_commands_with_the_same_need_have_the_same_key(one: str, other: str) -> None:
    assert described(one).key == described(other).key


@pytest.mark.parametrize(
    "other",
    [
        "clang++ -O2 -c a.cpp", "g++ -O3 -c a.cpp", "g++ -O2 -g -c a.cpp", "g++ -O2 -c b/a.cpp",
        "g++ -O2 -mavx2 -c a.cpp", "g++ -O2 -DCPU_CAPABILITY=AVX2 -c a.cpp", "g++ -O2 -flto -c a.cpp",
        "g++ -O2 -fsanitize=address -c a.cpp", "g++ -O2 a.o -o a.cpp",
    ],
)  # fmt: skip
def test_commands_with_another_need_have_another_key(other: str) -> None:
    assert described(other).key != described("g++ -O2 -c a.cpp").key


def test_the_innermost_root_counts() -> None:
    assert described("g++ -c ../../other/a.cpp").source == "other/a.cpp"
    assert described("g++ -c ../aten/a.cpp").source == "aten/a.cpp"
    assert described("g++ -c /tmp/pip-build-1/vision/csrc/a.cpp").source == "vision/csrc/a.cpp"
    assert described("g++ -c /src/a.cpp").source == "/src/a.cpp"
    assert (
        describe_unit("/root-of", ["g++", "-c", "tree/a.cpp"], ("/root", "/root-of/")).source
        == "tree/a.cpp"
    )


@pytest.mark.parametrize(
    ("words", "weight"),
    [
        ("", 1),
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -t ²", 1),
        ("--threads 4", 1),  # of one device there is nothing to share
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90", 1),
        ("-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 --threads 4", 2),
        ("-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90] -t=2", 2),
        ("--generate-code=arch=compute_80,code=[compute_80,sm_80] --threads=0", 1),
        ("-gencode arch=compute_70,code=sm_70 -gencode=arch=compute_80,code=sm_80 -arch=compute_90a -t2", 2),
        ("-gencode arch=compute_70,code=sm_70 -gencode=arch=compute_80,code=sm_80 -arch=compute_90a -t 0", 3),
        ("-arch=all-major -t 4", 4),
        ("-arch=all -t 0", 16),
        ("-arch=native -t 4", 1),
        ("-t x", 1),
    ],
)  # fmt: skip
def test_threads_of_nvcc_weigh(words: str, weight: int) -> None:
    assert described(f"nvcc {words} -c a.cu").weight == weight


def test_threads_of_others_do_not() -> None:
    assert described("g++ -t4 -c a.cpp").weight == 1


def test_devices_are_part_of_the_key() -> None:
    both = described(
        "nvcc -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -c a.cu -O3"
    )
    assert both.key == "nvcc|build/a.cu|-O3|compute_80|compute_90a|sm_80|sm_90a"


def test_response_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("-O3 \"-DX=a b\"\n-c 'a.cpp' -o a.o\n")
    cwd = str(tmp_path)
    assert describe_unit(cwd, ["g++", "@words"], (cwd,)).key == "g++|a.cpp|-O3"
    assert describe_unit("/", ["g++", f"@{tmp_path}/words"], (cwd,)).key.endswith("a.cpp|-O3")
    (tmp_path / "devices").write_text("-gencode arch=compute_80,code=sm_80")
    one = describe_unit(cwd, ["nvcc", "--options-file", "devices", "-c", "k.cu"], (cwd,))
    assert one.key == "nvcc|k.cu|-O0|compute_80|sm_80"


def test_a_response_file_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for name in ("gone", "pipe", "binary", "", "x" * 300):
        assert describe_unit(str(tmp_path), ["g++", f"@{name}", "-c", "a.cpp"]).source.endswith(
            "a.cpp"
        )


def test_titles_of_units() -> None:
    assert unit_title(described("g++ -O2 -g -c ../torch/csrc/a.cpp").key) == "torch/csrc/a.cpp"
    assert (
        unit_title(described("g++ -shared a.o -o lib/libtorch.so").key) == "build/lib/libtorch.so"
    )
    assert unit_title("of another shape") == "of another shape"


def test_a_path_of_any_bytes_has_a_key_that_can_be_stored(tmp_path: Path) -> None:
    source = os.fsdecode(b"caf\xe9.cpp")
    one = describe_unit("/src", ["g++", "-c", source], ("/src",))
    history = NeedHistory(tmp_path / "units.sqlite")
    history.learn(one.key, MeasuredNeed(2**20, 1.0))
    assert history.save() is None
    assert NeedHistory(tmp_path / "units.sqlite").find(one.key) == MeasuredNeed(2**20, 1.0)
    assert (
        one.key != describe_unit("/src", ["g++", "-c", os.fsdecode(b"caf\xe8.cpp")], ("/src",)).key
    )
    assert describe_unit("/src", ["g++", "a.o", "-o", source], ("/src",)).key.isascii()


def test_a_peak_that_nothing_can_hold_is_no_message() -> None:
    with pytest.raises(ValueError, match="not a message of the protocol"):
        gate_protocol._parse_message([b"end", b"0", b"9" * 30, b"0"], b"")


@pytest.mark.parametrize("group", [b"0", b"1", b"-5", b"2147483648", b"9" * 100])
def test_a_number_that_no_group_has_is_no_message(group: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of the protocol"):
        gate_protocol._parse_message([b"pid", group], b"")


@pytest.mark.parametrize("content", [b"", b"/src", b"/src\0", b"/src\0gcc", b"/src\0gcc\0-c"])
def test_a_command_without_its_end_is_no_message(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"without|unpack"):
        gate_protocol._parse_message([b"ask", b"1"], content)


def test_the_last_word_of_a_command_may_be_empty() -> None:
    message = gate_protocol._parse_message([b"ask", b"1"], b"/src\0gcc\0\0")
    assert message == gate_protocol.StartRequest("/src", ("gcc", ""))


def test_a_number_of_threads_without_end_is_no_trouble() -> None:
    assert describe_unit("/", ("nvcc", "-c", "-t", "9" * 5000, "a.cu")).weight == 1.0
