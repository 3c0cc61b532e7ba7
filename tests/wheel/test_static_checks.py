"""Wheels checked without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from millpress import content_checks, dependencies
from millpress.module_checks import TargetInterpreter, foreign_files
from packaging.specifiers import SpecifierSet
from press_support import compiled_wheels as tiny

from tests.support import tiny_plans
from tests.support.changed_facts import change_groups
from torchmill.wheel.verify import static_checks

EXPECTED = tiny_plans.plan("tinytorch", "1.0+cpu").wheel
RECORD = "tinytorch-1.0+cpu.dist-info/RECORD"


@pytest.fixture(scope="module")
def interpreter() -> TargetInterpreter:
    return static_checks.probe_interpreter(Path(sys.executable))


def change_record(pattern: str, replacement: str) -> Callable[[str, bytes], bytes]:
    """Return a change of the text of RECORD."""

    def change(name: str, data: bytes) -> bytes:
        if name != RECORD:
            return data
        return re.sub(pattern, replacement, data.decode()).encode()

    return change


@tiny.needs_compiler
def test_an_interpreter_has_its_abi_and_suffix(interpreter: TargetInterpreter) -> None:
    assert interpreter.suffix == tiny.SUFFIX
    assert interpreter.abi == tiny.ABI


@tiny.needs_compiler
def test_a_sound_wheel_has_no_problems(torch_wheel: Path, interpreter: TargetInterpreter) -> None:
    assert static_checks.static_problems(torch_wheel, EXPECTED, interpreter) == []


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("platform", "sound"),
    [
        (tiny.PLATFORM, True),
        (f"manylinux_2_17_{tiny.ARCH}", True),
        (f"manylinux_2_99_{tiny.ARCH}", False),
        ("manylinux_2_17_s390x", False),
        (f"musllinux_1_2_{tiny.ARCH}", False),
        (f"linux_{tiny.ARCH}", False),
    ],
)
def test_a_computed_tag_may_be_older_than_the_plans(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path, platform: str, sound: bool
) -> None:
    name = torch_wheel.name.replace(tiny.PLATFORM, platform)
    renamed = tiny.rewrite(torch_wheel, tmp_path / name, lambda _, data: data)
    expected = replace(EXPECTED, tag_is_upper_bound=True)
    problems = static_checks.static_problems(renamed, expected, interpreter)
    assert any("the plan says" in problem for problem in problems) is not sound


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            change_record(r"tinytorch/version\.py.*\n", ""),
            "tinytorch/version.py has no entry in RECORD",
        ),
        (
            change_record("$", "ghost.py,sha256=x,1\n"),
            "RECORD lists ghost.py, which the wheel does not hold",
        ),
        (
            change_record(r"(version\.py,\S+,)\d+", r"\g<1>9"),
            "tinytorch/version.py differs from its RECORD entry",
        ),
        (
            change_record(r"(version\.py),sha256=", r"\1,md5="),
            "tinytorch/version.py has no sound hash in RECORD",
        ),
        (lambda name, data: None if name == RECORD else data, f"{RECORD} is missing"),
        (
            lambda name, data: data + b"#" if name.endswith("version.py") else data,
            "tinytorch/version.py differs from its RECORD entry",
        ),
        (
            lambda name, data: (
                data.replace(b"Version: 1.0+cpu", b"Version: 1.0") if "META" in name else data
            ),
            "METADATA says tinytorch 1.0, the file's name tinytorch 1.0+cpu",
        ),
        (
            lambda name, data: (
                data.replace(b"manylinux", b"linux") if name.endswith("WHEEL") else data
            ),
            f"WHEEL says {tiny.PYTHON}-{tiny.ABI}-linux",
        ),
        (
            lambda name, data: data.replace(b"PyInit__C", b"PyInit__D") if "/_C" in name else data,
            "has no PyInit__C",
        ),
    ],
)
def test_a_change_is_caught(
    torch_wheel: Path,
    interpreter: TargetInterpreter,
    tmp_path: Path,
    change: Callable[[str, bytes], bytes | None],
    expected: str,
) -> None:
    changed = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, change)
    problems = static_checks.static_problems(changed, EXPECTED, interpreter)
    assert any(expected in problem for problem in problems)


@tiny.needs_compiler
def test_a_damaged_module_is_a_problem(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    damaged = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, lambda _, data: data)
    with ZipFile(damaged) as archive:
        (module,) = (info for info in archive.infolist() if "/_C." in info.filename)
        content = bytearray(damaged.read_bytes())
        content[module.header_offset + 200] ^= 0xFF
    damaged.write_bytes(content)
    problems = static_checks.static_problems(damaged, EXPECTED, interpreter)
    assert any(f"{module.filename} is damaged" in problem for problem in problems)


@tiny.needs_compiler
def test_a_module_may_have_the_entry_of_newer_pythons(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    code = tiny.shared("void *PyModExport__C(void) { return 0; }", tmp_path / "_C.so").read_bytes()
    wheel = tmp_path / "dist" / torch_wheel.name
    changed = tiny.rewrite(torch_wheel, wheel, lambda name, data: code if "/_C." in name else data)
    problems = static_checks.static_problems(changed, EXPECTED, interpreter)
    assert not any("is not an extension module" in problem for problem in problems)


@tiny.needs_compiler
def test_a_second_folder_of_metadata_is_a_problem(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    second = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, lambda _, data: data)
    with ZipFile(second, "a") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", "")
    (problem,) = static_checks.static_problems(second, EXPECTED, interpreter)
    assert problem.startswith("has 2 .dist-info folders, not one")


@tiny.needs_compiler
def test_an_invalid_name_or_version_is_a_problem(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    strange = tiny.rewrite(torch_wheel, tmp_path / "tinytorch.whl", lambda _, data: data)
    first, *_ = static_checks.static_problems(strange, EXPECTED, interpreter)
    assert "not the name of a wheel" in first
    unknown = tiny.rewrite(
        torch_wheel,
        tmp_path / torch_wheel.name,
        lambda name, data: (
            re.sub(b"Version: .*", b"Version: unknown", data) if "META" in name else data
        ),
    )
    first, *_ = static_checks.static_problems(unknown, EXPECTED, interpreter)
    assert "METADATA says tinytorch unknown" in first


@tiny.needs_compiler
def test_a_damaged_archive_is_a_problem(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    half = tmp_path / torch_wheel.name
    half.write_bytes(torch_wheel.read_bytes()[: torch_wheel.stat().st_size // 2])
    (problem,) = static_checks.static_problems(half, EXPECTED, interpreter)
    assert problem.startswith("not a sound wheel")


@tiny.needs_compiler
def test_a_wheel_for_another_interpreter_is_caught(
    torch_wheel: Path, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    other = tmp_path / torch_wheel.name.replace(f"{tiny.PYTHON}-{tiny.ABI}", "cp36-cp36m")
    other.write_bytes(torch_wheel.read_bytes())
    problems = static_checks.static_problems(other, EXPECTED, interpreter)
    name_problem = f"the file is named {other.name}, the plan says"
    assert any(problem.startswith(name_problem) for problem in problems)
    assert any(f"do not fit the interpreter, {tiny.ABI}" in problem for problem in problems)


@tiny.needs_compiler
def test_the_requirement_on_torch_must_be_that_of_the_plan(
    raw: tiny.Raw, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    vision, _ = tiny.finish(
        raw.vision, tmp_path / "dist", tmp_path / "stage", folders=(raw.outside,), under=raw.torch
    )
    expected = tiny_plans.plan("tinyvision", "0.5+cpu", torch="tinytorch==1.0+cpu").wheel
    assert static_checks.static_problems(vision, expected, interpreter) == []
    other = replace(expected, torch="tinytorch==1.0")
    assert static_checks.static_problems(vision, other, interpreter) == [
        "METADATA requires tinytorch==1.0+cpu, not tinytorch==1.0"
    ]
    without = tiny.rewrite(
        vision, tmp_path / vision.name, lambda _, data: re.sub(b"Requires-Dist.*\n", b"", data)
    )
    problems = static_checks.static_problems(without, expected, interpreter)
    assert "METADATA requires no tinytorch, not tinytorch==1.0+cpu" in problems


@tiny.needs_compiler
def test_a_wheel_for_several_torch_uses_only_their_stable_abi(
    raw: tiny.Raw, interpreter: TargetInterpreter, tmp_path: Path
) -> None:
    vision, _ = tiny.finish(
        raw.vision, tmp_path / "dist", tmp_path / "stage", folders=(raw.outside,), under=raw.torch
    )
    expected = tiny_plans.plan("tinyvision", "0.5+cpu", torch="tinytorch==1.0+cpu").wheel
    release = change_groups(expected.release, wheel={"stable_abi": SpecifierSet(">=1.0")})
    stable = replace(expected, release=release)
    assert static_checks.static_problems(vision, stable, interpreter) == [
        "METADATA requires tinytorch==1.0+cpu, not tinytorch>=1.0"
    ]
    (tmp_path / "unstable.c").write_text(
        "void *_ZN2at6detail5emptyEv(void); void *f(void) { return _ZN2at6detail5emptyEv(); }"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "_C.so", tmp_path / "unstable.c"], check=True
    )
    with ZipFile(vision, "a") as archive:
        archive.write(tmp_path / "_C.so", "tinyvision/_C.so")
    problems = static_checks.static_problems(vision, stable, interpreter)
    symbol = "_ZN2at6detail5emptyEv"
    assert f"tinyvision/_C.so needs {symbol}, which tinytorch>=1.0 does not guarantee" in problems


@pytest.mark.parametrize(
    ("symbol", "stable"),
    [
        ("_ZN2at4_ops10empty_like4callERKNS_6TensorE", False),
        ("_ZN3c1010TensorImplD1Ev", False),
        ("_ZNK3c1010TensorImpl5sizesEv", False),
        ("_ZTIN3c105ErrorE", False),
        ("_ZN5torch7LibraryC1ENS0_4KindENSt7__cxx1112basic_stringIcEE", False),
        ("_ZSt4moveIRN2at6TensorEEONSt16remove_referenceIT_E4typeEOS4_", False),
        ("aoti_torch_empty_strided", True),
        ("torch_call_dispatcher", True),
        ("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE9_M_createERmm", True),
        ("_ZN3c10lsERSoNS_10DeviceTypeE", False),
        ("_ZNKSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE2atEm", True),
        ("_ZN4json2atIiEERT_m", True),
        ("_ZN12atomic_thing3runEv", True),
        ("cudaLaunchKernel", True),
    ],
)
def test_cpp_names_of_torch_are_not_stable(symbol: str, stable: bool) -> None:
    unstable = static_checks.unstable_torch_symbols([symbol])
    assert unstable == ([] if stable else [symbol])


def test_names_of_pythons_interface_are_not_stable_for_any_python() -> None:
    used = ["PyLong_FromLong", "_Py_Dealloc", "memcpy"]
    assert static_checks.find_python_symbols(used) == ["PyLong_FromLong", "_Py_Dealloc"]
    assert static_checks.unstable_torch_symbols(used) == []


def test_an_unreadable_file_hides_no_earlier_problem(
    tmp_path: Path, interpreter: TargetInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("other-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    # The first check raises an error for a wheel without METADATA, too.
    monkeypatch.setattr(content_checks, "wheel_problems", lambda _: ["first"])
    assert static_checks.static_problems(wheel, EXPECTED, interpreter) == [
        "first",
        "has no other-1.0.dist-info/METADATA: build it again",
    ]


CP310 = TargetInterpreter("cp310", ".cpython-310-x86_64-linux-gnu.so")
CP313T = TargetInterpreter("cp313t", ".cpython-313t-x86_64-linux-gnu.so")


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("interpreter", "name"),
    [
        (CP310, "torch/_C.cpython-310-x86_64-linux-gnu.so"),
        (CP310, "torch/lib/libtorch.so"),
        (CP310, "torchvision/image.so"),
        (CP310, "torchaudio/_C.abi3.so"),
        (
            TargetInterpreter("cp315t", ".cpython-315t-x86_64-linux-gnu.so"),
            "torchaudio/_C.abi3t.so",
        ),
        (
            TargetInterpreter("cp315", ".cpython-315-x86_64-linux-gnu.so"),
            "torchaudio/_C.abi3-x86_64-linux-gnu.so",
        ),
        (CP310, "torch/__pycache__/version.cpython-310.pyc"),
        (CP313T, "torch/_C.cpython-313t-x86_64-linux-gnu.so"),
        (CP313T, "torch/__pycache__/version.cpython-313.pyc"),
    ],
)
def test_files_for_this_interpreter(interpreter: TargetInterpreter, name: str) -> None:
    assert list(foreign_files([name], interpreter)) == []


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("interpreter", "name"),
    [
        (CP310, "torch/_C.cpython-311-x86_64-linux-gnu.so"),
        (CP310, "torch/_C.cpython-310-aarch64-linux-gnu.so"),
        (CP310, "torch/_C.cp310-win_amd64.pyd"),
        (CP310, "functorch/_C.pypy310-pp73-x86_64-linux-gnu.so"),
        (CP310, "torch/__pycache__/version.cpython-311.pyc"),
        (CP310, "build/lib.linux-x86_64-cpython-39/torch/x.py"),
        (CP313T, "torch/_C.cpython-313-x86_64-linux-gnu.so"),
    ],
)
def test_files_for_another_interpreter(interpreter: TargetInterpreter, name: str) -> None:
    (problem,) = foreign_files([name], interpreter)
    assert name in problem


def write_wheel(folder: Path, python: str, *lines: str, version: str = "1.0+cpu") -> Path:
    """Write a wheel with nothing but METADATA, to which the lines are added."""
    path = folder / f"torch-{version}-{python}-{python}-manylinux_2_17_x86_64.whl"
    head = "\n".join(("Metadata-Version: 2.1", "Name: torch", f"Version: {version}", *lines))
    with ZipFile(path, "w") as archive:
        archive.writestr(f"torch-{version}.dist-info/METADATA", f"{head}\n\ntext")
    return path


def test_the_same_in_another_spelling_is_no_difference(tmp_path: Path) -> None:
    lines = ("Requires-Python: >=3.7,<4", "Requires-Dist: typing-extensions (>=4)")
    wheel = write_wheel(tmp_path, "cp310", *lines)
    other_lines = ("Requires-Python: <4, >=3.7", "Requires-Dist: typing_extensions>=4")
    write_wheel(tmp_path, "cp311", *other_lines)
    assert dependencies.sibling_differences(wheel, dependencies.sibling_wheels(wheel)) == []


def test_a_difference_is_told_with_both_sides(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "cp310", "Requires-Dist: numpy<2", "Requires-Dist: sympy")
    other = write_wheel(tmp_path, "cp312", "Requires-Dist: setuptools", "Requires-Dist: sympy")
    siblings = dependencies.sibling_wheels(wheel)
    (sentence,) = dependencies.sibling_differences(wheel, siblings)
    assert sentence.startswith(f"{other.name} has other requirements than {wheel.name}: ")
    assert "also setuptools, but not numpy<2; uv reads one of them" in sentence


def test_other_versions_and_unreadable_wheels_do_not_count(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "cp310", "Requires-Dist: numpy<2")
    write_wheel(tmp_path, "cp310", version="1.0+cu118")
    write_wheel(tmp_path, "cp310", version="1.0.1+cpu")
    (tmp_path / "torch-1.0+cpu-cp39-cp39-linux_x86_64.whl").write_text("half")
    (half,) = dependencies.sibling_wheels(wheel)
    assert half.name.split("-")[2] == "cp39"
    assert dependencies.sibling_differences(wheel, [half]) == []
    assert dependencies.sibling_differences(half, [wheel]) == []
