"""The check scripts, run as old interpreters run them."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace

import pytest

from torchmill.wheel.verify.clean_environment import CHECK_SCRIPTS

CONFIG = """PyTorch built with:
  - GCC 12.2
  - Build settings: BLAS_INFO=mkl, \
CXX_FLAGS= -Wno-deprecated -DUSE_KINETO -DUSE_FBGEMM -DUSE_LEVEL=2 -O2, \
TORCH_VERSION=1.13.1, USE_CUDA=0, USE_MKLDNN=ON, USE_NCCL=OFF, USE_EXCEPTION_PTR=1, USE_OPENMP=ON,
"""


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Import the scripts as they import each other: by plain name, from their own folder."""
    monkeypatch.syspath_prepend(str(CHECK_SCRIPTS))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return {name: importlib.import_module(name) for name in ("harness", "torch_checks")}


@pytest.mark.parametrize("path", sorted(CHECK_SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_old_interpreters_can_read_the_scripts(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 5))
    assert not any(isinstance(node, ast.JoinedStr | ast.AnnAssign) for node in ast.walk(tree))


def test_switches_are_read_from_the_configuration_that_torch_prints(
    scripts: dict[str, ModuleType],
) -> None:
    assert scripts["torch_checks"].parse_config(CONFIG) == {
        "USE_CUDA": False,
        "USE_MKLDNN": True,
        "USE_NCCL": False,
        "USE_EXCEPTION_PTR": True,
        "USE_OPENMP": True,
        "USE_KINETO": True,
        "USE_FBGEMM": True,
    }


def test_old_spellings_mean_the_opposite(scripts: dict[str, ModuleType]) -> None:
    settings = {
        "NO_CUDA": "1",
        "USE_MKLDNN": "on",
        "USE_NCCL": "0",
        "BLAS": "MKL",
        "USE_LEVEL": "2",
    }
    assert scripts["harness"].switches_of(settings) == {
        "USE_CUDA": False,
        "USE_MKLDNN": True,
        "USE_NCCL": False,
    }


def test_only_switches_that_both_know_can_differ(scripts: dict[str, ModuleType]) -> None:
    harness = scripts["harness"]
    expected = {"switches": {"USE_A": "1", "NO_B": "1", "BLAS": "MKL"}}
    result = harness.compare_switches(expected, {"USE_A": "ON", "USE_C": "ON"}, "the build")
    assert result == "1 of 2 switches are in the build"
    with pytest.raises(harness.CheckError, match=r"^USE_B is on, the plan says off$"):
        harness.compare_switches(expected, {"USE_A": "ON", "USE_B": True}, "the build")


def test_nan_is_close_to_nothing(scripts: dict[str, ModuleType]) -> None:
    harness = scripts["harness"]
    harness.expect_close([1.0, 2.0], [1.0, 2.05], 0.1, "x")
    for numbers in ([1.0, float("nan")], [1.0], [1.0, 3.0]):
        with pytest.raises(harness.CheckError, match="x"):
            harness.expect_close(numbers, [1.0, 2.0], 0.1, "x")


def test_an_exception_of_a_check_is_its_result(scripts: dict[str, ModuleType]) -> None:
    def broken(expected: object) -> None:
        raise ImportError(f"libfoo.so.1: cannot open {expected}")

    result = scripts["harness"].outcome(broken, "x")
    assert result["ok"] is False
    assert result["detail"].startswith(
        "ImportError: libfoo.so.1: cannot open x (test_check_scripts.py:"
    )


def package_check(expected: dict[str, object]) -> dict[str, tuple[bool, str]]:
    """Run the checks of a package that only the facts describe, with this interpreter."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "expectations.json"
        file.write_text(json.dumps(expected))
        command = [sys.executable, str(CHECK_SCRIPTS / "package_checks.py"), str(file)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads(run.stdout.splitlines()[-1])
    return {name: (result["ok"], result["detail"]) for name, result in results.items()}


def test_a_package_is_tried_by_the_lines_of_its_facts() -> None:
    expected = {
        "package": "packaging",
        "import": "packaging",
        "version": metadata.version("packaging"),
    }
    base = f"pytest=={metadata.version('pytest')}"
    lines = [
        "import packaging",
        "for number in (1, 2):",
        "    assert number < 3, 'three'",
        "packaging.lost = 1",
    ]
    good = package_check({**expected, "base": base, "smoke": lines})
    assert [name for name, (ok, _) in good.items() if not ok] == []
    assert (good["smoke"][1], good["base"][1]) == ("4 lines", base.replace("==", " "))
    bad = package_check(
        {**expected, "base": "pytest==0.1", "version": "1", "smoke": [*lines, "packaging.gone"]}
    )
    assert {name for name, (ok, _) in bad.items() if not ok} == {"version", "base", "smoke"}
    assert bad["smoke"][1].startswith("'packaging.gone' of its facts: AttributeError: ")
    assert package_check({**expected, "smoke": ["assert 1 == 2"]})["smoke"] == (
        False,
        "'assert 1 == 2' of its facts: AssertionError",
    )


def install_stand_in(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    """Put a module with some attributes in the place of torch, until the test ends."""
    version = SimpleNamespace(cuda=attributes.pop("toolkit", "11.8"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=version, **attributes))


@pytest.mark.parametrize(
    ("arch_list", "ok"),
    [("7.0;8.6+PTX", True), ("7.0 8.6", True), ("7.0", False), ("Ampere", True)],
)
def test_the_capabilities_of_torch_are_compared_with_the_list(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, arch_list: str, ok: bool
) -> None:
    inner = SimpleNamespace(_cuda_getArchFlags=lambda: "sm_70 sm_86 compute_86")
    install_stand_in(monkeypatch, _C=inner)
    check = scripts["torch_checks"].check_capabilities
    expected = {"cuda": "11.8", "capabilities": arch_list}
    assert scripts["harness"].outcome(check, expected)["ok"] == ok


@pytest.mark.parametrize(
    ("version", "libraries", "switches", "ok"),
    [
        (8500, {"cudnn": "8.5.0.96"}, {}, True),
        (90100, {"cudnn": "9.1.0.70"}, {"USE_CUDNN": "1"}, True),
        (8907, {"cudnn": "8.5.0.96"}, {}, False),
        (None, {}, {"USE_CUDNN": "1"}, False),
        (None, {}, {"USE_CUDNN": "0"}, True),
        (8500, {}, {"USE_CUDNN": "0"}, False),
    ],
)
def test_the_planned_cudnn_answers(  # noqa: PLR0917 - a row of a table
    scripts: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    version: int | None,
    libraries: dict[str, str],
    switches: dict[str, str],
    ok: bool,
) -> None:
    install_stand_in(
        monkeypatch, backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: version))
    )
    expected = {"libraries": libraries, "switches": switches}
    result = scripts["harness"].outcome(scripts["torch_checks"].check_cudnn, expected)
    assert result["ok"] == ok, result


@pytest.mark.parametrize(
    ("linked", "switch", "ok"),
    [
        (True, "1", True),
        (True, "0", False),
        (False, "0", True),
        (False, "1", False),
        (False, None, True),
    ],
)
def test_the_planned_magma_answers(
    scripts: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    linked: bool,
    switch: str | None,
    ok: bool,
) -> None:
    preferred = []

    def prefer(name: str) -> None:
        preferred.append(name)
        if name == "magma" and not linked:
            raise RuntimeError("PyTorch has not been compiled with MAGMA.")

    install_stand_in(
        monkeypatch, backends=SimpleNamespace(cuda=SimpleNamespace(preferred_linalg_library=prefer))
    )
    switches = {} if switch is None else {"USE_MAGMA": switch}
    expected = {"switches": switches}
    result = scripts["harness"].outcome(scripts["torch_checks"].check_magma, expected)
    assert result["ok"] == ok, result
    assert preferred == (["magma", "default"] if linked else ["magma"])
    assert scripts["torch_checks"].check_magma in dict(scripts["torch_checks"].CHECKS).values()


def test_without_a_driver_torch_says_so_and_goes_on(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    install_stand_in(
        monkeypatch, cuda=cuda, zeros=lambda count: SimpleNamespace(cuda=refused, count=count)
    )
    result = scripts["harness"].outcome(scripts["torch_checks"].check_driverless, {})
    assert result == {"ok": True, "detail": "Found no NVIDIA driver on your system."}
    install_stand_in(
        monkeypatch, cuda=cuda, zeros=lambda count: SimpleNamespace(cuda=lambda: count)
    )
    assert not scripts["harness"].outcome(scripts["torch_checks"].check_driverless, {})["ok"]
