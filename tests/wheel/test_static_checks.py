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
from millpress import dependencies
from millpress.module_checks import TargetInterpreter, foreign_files
from packaging.specifiers import SpecifierSet
from press_support import compiled_wheels as tiny

from tests.support import tiny_plans
from torchmill.wheel.verify import static_checks

EXPECTED = tiny_plans.plan("tinytorch", "1.0+cpu").wheel
RECORD = "tinytorch-1.0+cpu.dist-info/RECORD"


@pytest.fixture(scope="module")
def here() -> TargetInterpreter:
    return static_checks.probe_interpreter(Path(sys.executable))


def lines(pattern: str, replacement: str) -> Callable[[str, bytes], bytes]:
    """Return a change of the text of RECORD."""

    def change(name: str, data: bytes) -> bytes:
        return re.sub(pattern, replacement, data.decode()).encode() if name == RECORD else data

    return change


@tiny.needs_compiler
def test_the_interpreter_says_what_it_is(here: TargetInterpreter) -> None:
    assert here.suffix == tiny.SUFFIX
    assert here.abi == tiny.ABI


@tiny.needs_compiler
def test_a_sound_wheel_has_no_problems(torch_wheel: Path, here: TargetInterpreter) -> None:
    assert static_checks.static_problems(torch_wheel, EXPECTED, here) == []


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
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path, platform: str, sound: bool
) -> None:
    name = torch_wheel.name.replace(tiny.PLATFORM, platform)
    renamed = tiny.rewrite(torch_wheel, tmp_path / name, lambda _, data: data)
    found = static_checks.static_problems(renamed, replace(EXPECTED, tag_is_upper_bound=True), here)
    assert any("the plan says" in each for each in found) is not sound


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lines(r"tinytorch/version\.py.*\n", ""), "tinytorch/version.py has no entry in RECORD"),
        (
            lines("$", "ghost.py,sha256=x,1\n"),
            "RECORD lists ghost.py, which the wheel does not hold",
        ),
        (
            lines(r"(version\.py,\S+,)\d+", r"\g<1>9"),
            "tinytorch/version.py differs from its RECORD entry",
        ),
        (
            lines(r"(version\.py),sha256=", r"\1,md5="),
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
    here: TargetInterpreter,
    tmp_path: Path,
    change: Callable[[str, bytes], bytes | None],
    expected: str,
) -> None:
    changed = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, change)
    assert any(expected in each for each in static_checks.static_problems(changed, EXPECTED, here))


@tiny.needs_compiler
def test_a_damaged_module_is_a_problem(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    damaged = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, lambda _, data: data)
    with ZipFile(damaged) as archive:
        (module,) = (one for one in archive.infolist() if "/_C." in one.filename)
        content = bytearray(damaged.read_bytes())
        content[module.header_offset + 200] ^= 0xFF
    damaged.write_bytes(content)
    assert any(
        f"{module.filename} is damaged" in each
        for each in static_checks.static_problems(damaged, EXPECTED, here)
    )


@tiny.needs_compiler
def test_a_module_may_have_the_entry_of_newer_pythons(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    code = tiny.shared("void *PyModExport__C(void) { return 0; }", tmp_path / "_C.so").read_bytes()
    wheel = tmp_path / "dist" / torch_wheel.name
    changed = tiny.rewrite(torch_wheel, wheel, lambda name, data: code if "/_C." in name else data)
    found = static_checks.static_problems(changed, EXPECTED, here)
    assert not any("is not an extension module" in each for each in found)


@tiny.needs_compiler
def test_a_second_folder_of_metadata_is_a_problem(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    second = tiny.rewrite(torch_wheel, tmp_path / torch_wheel.name, lambda _, data: data)
    with ZipFile(second, "a") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", "")
    (found,) = static_checks.static_problems(second, EXPECTED, here)
    assert found.startswith("has 2 .dist-info folders, not one")


@tiny.needs_compiler
def test_names_that_are_no_names_are_problems(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    strange = tiny.rewrite(torch_wheel, tmp_path / "tinytorch.whl", lambda _, data: data)
    assert "not the name of a wheel" in static_checks.static_problems(strange, EXPECTED, here)[0]
    unknown = tiny.rewrite(
        torch_wheel,
        tmp_path / torch_wheel.name,
        lambda name, data: (
            re.sub(b"Version: .*", b"Version: unknown", data) if "META" in name else data
        ),
    )
    assert (
        "METADATA says tinytorch unknown"
        in static_checks.static_problems(unknown, EXPECTED, here)[0]
    )


@tiny.needs_compiler
def test_a_damaged_archive_is_a_problem(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    half = tmp_path / torch_wheel.name
    half.write_bytes(torch_wheel.read_bytes()[: torch_wheel.stat().st_size // 2])
    (found,) = static_checks.static_problems(half, EXPECTED, here)
    assert found.startswith("not a sound wheel")


@tiny.needs_compiler
def test_a_wheel_for_another_interpreter_is_caught(
    torch_wheel: Path, here: TargetInterpreter, tmp_path: Path
) -> None:
    other = tmp_path / torch_wheel.name.replace(f"{tiny.PYTHON}-{tiny.ABI}", "cp36-cp36m")
    other.write_bytes(torch_wheel.read_bytes())
    found = static_checks.static_problems(other, EXPECTED, here)
    assert any(each.startswith(f"the file is named {other.name}, the plan says") for each in found)
    assert any(f"do not fit the interpreter, {tiny.ABI}" in each for each in found)


@tiny.needs_compiler
def test_a_requirement_must_be_the_plans(
    raw: tiny.Raw, here: TargetInterpreter, tmp_path: Path
) -> None:
    vision, _ = tiny.finish(
        raw.vision, tmp_path / "dist", tmp_path / "stage", folders=(raw.outside,), under=raw.torch
    )
    expected = tiny_plans.plan("tinyvision", "0.5+cpu", torch="tinytorch==1.0+cpu").wheel
    assert static_checks.static_problems(vision, expected, here) == []
    assert static_checks.static_problems(
        vision, replace(expected, torch="tinytorch==1.0"), here
    ) == ["METADATA requires tinytorch==1.0+cpu, not tinytorch==1.0"]
    none = tiny.rewrite(
        vision, tmp_path / vision.name, lambda _, data: re.sub(b"Requires-Dist.*\n", b"", data)
    )
    assert (
        "METADATA requires no tinytorch, not tinytorch==1.0+cpu"
        in static_checks.static_problems(none, expected, here)
    )


@tiny.needs_compiler
def test_a_wheel_for_many_torch_uses_their_stable_abi_alone(
    raw: tiny.Raw, here: TargetInterpreter, tmp_path: Path
) -> None:
    vision, _ = tiny.finish(
        raw.vision, tmp_path / "dist", tmp_path / "stage", folders=(raw.outside,), under=raw.torch
    )
    expected = tiny_plans.plan("tinyvision", "0.5+cpu", torch="tinytorch==1.0+cpu").wheel
    served = replace(expected, release=replace(expected.release, stable_abi=SpecifierSet(">=1.0")))
    assert static_checks.static_problems(vision, served, here) == [
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
    found = static_checks.static_problems(vision, served, here)
    assert (
        "tinyvision/_C.so needs _ZN2at6detail5emptyEv, which tinytorch>=1.0 is not sure to have"
        in found
    )


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
        ("_ZN12atomic_thing3runEv", True),
        ("cudaLaunchKernel", True),
    ],
)
def test_names_of_torchs_own_cpp_change_with_each_release(symbol: str, stable: bool) -> None:
    assert static_checks.unstable_symbols([symbol], any_python=False) == (
        [] if stable else [symbol]
    )


def test_a_wheel_for_any_python_uses_nothing_of_its_interface() -> None:
    used = ["PyLong_FromLong", "_Py_Dealloc", "memcpy"]
    assert static_checks.unstable_symbols(used, any_python=True) == [
        "PyLong_FromLong",
        "_Py_Dealloc",
    ]
    assert static_checks.unstable_symbols(used, any_python=False) == []


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
    (found,) = foreign_files([name], interpreter)
    assert name in found


def declaring(folder: Path, python: str, *lines: str, version: str = "1.0+cpu") -> Path:
    path = folder / f"torch-{version}-{python}-{python}-manylinux_2_17_x86_64.whl"
    head = "\n".join(("Metadata-Version: 2.1", "Name: torch", f"Version: {version}", *lines))
    with ZipFile(path, "w") as archive:
        archive.writestr(f"torch-{version}.dist-info/METADATA", f"{head}\n\ntext")
    return path


def test_the_same_in_another_spelling_is_no_difference(tmp_path: Path) -> None:
    one = declaring(
        tmp_path, "cp310", "Requires-Python: >=3.7,<4", "Requires-Dist: typing-extensions (>=4)"
    )
    declaring(
        tmp_path, "cp311", "Requires-Python: <4, >=3.7", "Requires-Dist: typing_extensions>=4"
    )
    assert dependencies.sibling_differences(one, dependencies.sibling_wheels(one)) == []


def test_a_difference_is_told_with_both_sides(tmp_path: Path) -> None:
    one = declaring(tmp_path, "cp310", "Requires-Dist: numpy<2", "Requires-Dist: sympy")
    other = declaring(tmp_path, "cp312", "Requires-Dist: setuptools", "Requires-Dist: sympy")
    (sentence,) = dependencies.sibling_differences(one, dependencies.sibling_wheels(one))
    assert sentence.startswith(f"{other.name} has other requirements than {one.name}: ")
    assert "also setuptools, but not numpy<2; uv reads one of them" in sentence


def test_other_versions_and_what_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    one = declaring(tmp_path, "cp310", "Requires-Dist: numpy<2")
    declaring(tmp_path, "cp310", version="1.0+cu118")
    declaring(tmp_path, "cp310", version="1.0.1+cpu")
    (tmp_path / "torch-1.0+cpu-cp39-cp39-linux_x86_64.whl").write_text("half")
    (half,) = dependencies.sibling_wheels(one)
    assert half.name.split("-")[2] == "cp39"
    assert dependencies.sibling_differences(one, [half]) == []
    assert dependencies.sibling_differences(half, [one]) == []
