"""A cell whose toolkit lacks parts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.machines import file
from torchmill.config import cell_lookup, matrix
from torchmill.config.delivery_model import ToolkitPart, ToolkitSource
from torchmill.config.model import Facts, Host, Options
from torchmill.plan import build_plan
from torchmill.plan.doctor import cuda, examination
from torchmill.plan.doctor.finding import BuildQuestion, Finding

HOME = "/usr/local/cuda-11.8"
LINUX = Host("x86_64", "linux", 4, 2**34, complete=True, toolkits={"11.8": HOME})
CUBLAS = ToolkitPart("cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), (), None, "", "")
CCCL = ToolkitPart("cccl", "CCCL", "nvidia-cuda-cccl", ("thrust/version.h",), (), None, "", "")
CUPTI = ToolkitPart(
    "cupti", "CUPTI", "nvidia-cuda-cupti", ("cupti.h",), (), None, "the profiler sees no GPU", ""
)
SOURCES = (
    ToolkitSource("pypi", "parts", ("11.8",), ("nvidia-cublas-cu11==11.11",), ("x86_64",), (), None, ""),
    ToolkitSource("debian", "toolkit", ("11.8",), ("all",), ("x86_64",), (), None, ""),
)


def found(known: Facts, lacking: Mapping[str, str], home: str = HOME) -> Finding | None:
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL, CUPTI), toolkit_sources=SOURCES)
    host = replace(LINUX, lacking=lacking, toolkits={"11.8": home})
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cu118", "x86_64", matrix.find_release(known, "base", "v1.0.0")
    )
    computed = build_plan.compute_plan(known, cell, host, Options())
    return next(cuda.check_toolkit_parts(BuildQuestion(facts, cell, host, computed)), None)


def test_a_whole_toolkit_is_not_spoken_of(known: Facts) -> None:
    assert found(known, {}) is None
    assert found(known, {"12.4": "cublas"}) is None, "another's"


def test_what_is_lacking_is_named_with_the_command_that_completes(known: Facts) -> None:
    finding = found(known, {"11.8": "cublas, cupti"})
    assert finding is not None
    assert (finding.verdict, finding.cure) == ("failure", "invoke toolkit --complete 11.8")
    assert finding.found == f"no cuBLAS, CUPTI in {HOME}"


@pytest.mark.parametrize(("lacking", "home"), [("cublas, cccl", HOME), ("cublas", "/usr")])
def test_one_that_cannot_be_completed_is_to_be_brought(lacking: str, home: str, known: Facts) -> None:
    finding = found(known, {"11.8": lacking}, home)
    assert finding is not None
    assert finding.cure == "invoke toolkit --cuda 11.8"


def test_what_a_build_can_go_without_is_a_warning(known: Facts) -> None:
    finding = found(known, {"11.8": "cupti"})
    assert finding is not None
    assert (finding.verdict, finding.because) == ("warning", "the profiler sees no GPU")


def test_a_machine_is_told_what_its_toolkits_lack(known: Facts) -> None:
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL))
    host = replace(LINUX, lacking={"11.8": "cccl"})
    (told,) = (one for one in examination.examine_machine(facts, host, None) if one.found == "no CCCL")
    assert (told.subject, told.verdict, told.cure) == (
        "CUDA 11.8",
        "warning",
        "invoke toolkit --complete 11.8",
    )


def test_the_survey_of_a_machine_tells_what_toolkits_lack(known: Facts, tmp_path: Path) -> None:
    file(tmp_path / "include/cublas_v2.h")
    facts = replace(known, toolkit_parts=(CUBLAS, CCCL, CUPTI))
    host = replace(LINUX, toolkits={"11.8": str(tmp_path)})
    assert examination.survey_host(facts, host, {"PATH": ""}).lacking == {"11.8": "cccl, cupti"}
    assert examination.survey_host(known, host, {"PATH": ""}).lacking == {}
