"""Old code is edited by the command that a diagnosis offers: here it runs."""

import subprocess
from pathlib import Path

import pytest

from torchmill.plan.diagnosis.source_edits import edit_command

OLD = """\
#include <THC/THC.h>
#include "THC/THCAtomics.cuh"
#include <TH/TH.h>
extern THCState *state;
#define CHECK(x) AT_CHECK(x.type().is_cuda(), #x)
auto stream = THCState_getCurrentStream(state);
AT_DISPATCH_FLOATING_TYPES(x.type(), "f", [&] { THCudaCheck(run(THCCeilDiv(n, 512), stream)); });
"""
NEW = """\
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <ATen/ceil_div.h>
#include "ATen/cuda/Atomic.cuh"
#include <ATen/ATen.h>

#define CHECK(x) TORCH_CHECK(x.is_cuda(), #x)
auto stream = at::cuda::getCurrentCUDAStream();
AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "f", [&] { AT_CUDA_CHECK(run(at::ceil_div(n, 512), stream)); });
"""
STRUCT = "struct f : public thrust::unary_function<int, W> { int operator()(int) const; };\n"


def edit(folder: Path, text: str, command: str) -> str:
    """Return what a command makes of a source file below a folder."""
    source = folder / "csrc/a_cuda.cu"
    source.parent.mkdir()
    source.write_text(text)
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    return source.read_text()


@pytest.mark.parametrize("system", ["linux", "macos"])
def test_code_for_an_old_torch_fits_a_new_one(tmp_path: Path, system: str) -> None:
    command = edit_command("THC/THC.h", "2.1.0", None, system)
    assert edit(tmp_path, OLD, command) == NEW


def test_only_what_this_torch_lacks_is_edited(tmp_path: Path) -> None:
    edited = edit(tmp_path, OLD, edit_command("AT_CHECK", "1.6.0", None, "linux"))
    assert "TORCH_CHECK(x.is_cuda()" in edited
    assert "THCudaCheck" in edited


def test_thrusts_old_bases_are_taken_away(tmp_path: Path) -> None:
    edited = edit(tmp_path, STRUCT, edit_command("unary_function", None, "13.2", None))
    assert edited == "struct f  { int operator()(int) const; };\n"


def test_powershell_gets_the_same_replacements() -> None:
    command = edit_command("THC/THC.h", None, None, "windows")
    assert r"-creplace '\bAT_CHECK\b','TORCH_CHECK'" in command
    assert "`" not in command
    assert "\n" not in command


@pytest.mark.parametrize(
    ("name", "torch"), [("AT_CHECK", "1.4.0"), ("THC/THC.h", "1.10.2"), ("torch/script.h", None)]
)
def test_nothing_is_edited_that_this_torch_has(name: str, torch: str | None) -> None:
    assert not edit_command(name, torch, None, "linux")
