from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from torchwright.verify.trial import SCRIPTS

CONFIG = """PyTorch built with:
  - GCC 12.2
  - Build settings: BLAS_INFO=mkl, CXX_FLAGS= -Wno-deprecated -DUSE_KINETO -DUSE_FBGEMM -DUSE_LEVEL=2 -O2, \
TORCH_VERSION=1.13.1, USE_CUDA=0, USE_MKLDNN=ON, USE_NCCL=OFF, USE_EXCEPTION_PTR=1, USE_OPENMP=ON,
"""


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Import the scripts as they import each other: by plain name, from their own folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return {name: importlib.import_module(name) for name in ("harness", "torch_checks", "torch_numerics")}


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_old_interpreters_can_read_the_scripts(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 5))
    assert not any(isinstance(node, ast.JoinedStr | ast.AnnAssign) for node in ast.walk(tree))


def test_switches_of_a_wheel_are_read_from_its_own_words(scripts: dict[str, ModuleType]) -> None:
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
    settings = {"NO_CUDA": "1", "USE_MKLDNN": "on", "USE_NCCL": "0", "BLAS": "MKL", "USE_LEVEL": "2"}
    assert scripts["harness"].switches_of(settings) == {
        "USE_CUDA": False,
        "USE_MKLDNN": True,
        "USE_NCCL": False,
    }


def test_only_switches_that_both_know_can_differ(scripts: dict[str, ModuleType]) -> None:
    differing = scripts["harness"].differing
    assert differing({"USE_A": True, "USE_B": False}, {"USE_A": True, "USE_C": True}) == []
    assert differing({"USE_A": True}, {"USE_A": False}) == ["USE_A is off, the plan says on"]


def test_nan_is_close_to_nothing(scripts: dict[str, ModuleType]) -> None:
    harness = scripts["harness"]
    harness.expect_close([1.0, 2.0], [1.0, 2.05], 0.1, "x")
    for found in ([1.0, float("nan")], [1.0], [1.0, 3.0]):
        with pytest.raises(harness.CheckError, match="x"):
            harness.expect_close(found, [1.0, 2.0], 0.1, "x")


def test_whatever_a_check_raises_is_its_result(scripts: dict[str, ModuleType]) -> None:
    def broken(expected: object) -> None:
        raise ImportError(f"libfoo.so.1: cannot open {expected}")

    result = scripts["harness"].outcome(broken, "x")
    assert result["ok"] is False
    assert result["detail"].startswith(
        "ImportError: libfoo.so.1: cannot open x (test_verify_checks_harness.py:"
    )
