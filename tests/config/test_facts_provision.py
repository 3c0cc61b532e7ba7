"""The facts about who has toolkits."""

from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config import facts_reader
from torchmill.config.model import Facts

TWO = """
[[pypi]]
kind = "cudnn"
cuda = "11"
packages = ["nvidia-cudnn-cu11"]
arches = ["x86_64"]
source = "the index"

[[debian]]
kind = "toolkit"
versions = ["11.8"]
packages = ["nvidia-cuda-toolkit"]
arches = ["x86_64"]
where = ["bookworm/non-free"]
source = "its archive"
"""


def test_sources_are_read_in_the_order_of_asking(tmp_path: Path) -> None:
    file = tmp_path / "toolkit_sources.toml"
    file.write_text(TWO)
    problems: list[str] = []
    debian, pypi = facts_reader.read_toolkit_sources(file, problems)
    assert problems == []
    assert (debian.provider, debian.versions, debian.where) == ("debian", ("11.8",), ("bookworm/non-free",))
    assert (pypi.provider, pypi.versions, pypi.cuda) == ("pypi", (), "11")


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    file = tmp_path / "toolkit_sources.toml"
    file.write_text(
        '[[debain]]\n[[conda]]\nkind = "tool"\npackages = []\narches = []\nsource = ""\nverions = []\n'
    )
    problems: list[str] = []
    facts_reader.read_toolkit_sources(file, problems)
    kinds = ", ".join(facts_reader.KINDS)
    assert problems == [
        f"toolkit_sources.toml: conda 1: 'kind' is 'tool', expected one of {kinds}",
        "toolkit_sources.toml: conda 1: unknown key 'verions'; did you mean 'versions'?",
        "toolkit_sources.toml: unknown key 'debain'; did you mean 'debian'?",
    ]


def test_without_the_file_nobody_has_anything(tmp_path: Path) -> None:
    assert facts_reader.read_toolkit_sources(tmp_path / "toolkit_sources.toml", []) == ()


def test_parts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "toolkit_parts.toml"
    problems: list[str] = []
    assert facts_reader.read_toolkit_parts(file, problems) == ()
    file.write_text(
        '[nvtx]\ncalled = "NVTX"\npackage = "nvidia-nvtx"\nheaders = ["n.h"]\nlibraries = []\n'
        'cuda = "<13"\nsource = "the wheel"\n'
    )
    (nvtx,) = facts_reader.read_toolkit_parts(file, problems)
    assert problems == []
    assert (nvtx.name, nvtx.called, nvtx.headers, nvtx.without) == ("nvtx", "NVTX", ("n.h",), "")
    assert [version for version in ("12.8", "13.0") if nvtx.belongs(version)] == ["12.8"]
    file.write_text('[nvtx]\nheader = ["n.h"]\n')
    facts_reader.read_toolkit_parts(file, problems)
    assert "toolkit_parts.toml: nvtx: key 'package' is missing" in problems
    assert "toolkit_parts.toml: nvtx: unknown key 'header'; did you mean 'headers'?" in problems


def test_packages_that_complete_a_toolkit_are_of_its_parts(shipped: Facts) -> None:
    completing = [one for one in shipped.toolkit_sources if one.kind == "parts"]
    versions = [version for one in completing for version in one.versions]
    assert versions[0] == "11.7"
    assert len(versions) == len(set(versions)), "each toolkit has one list"
    known = {part.package for part in shipped.toolkit_parts}
    for one in completing:
        (version,) = one.versions
        suffix = f"-cu{version[:2]}" if Version(version) < Version("13") else ""
        names = [Requirement(line).name for line in one.packages]
        assert {name.removesuffix(suffix) for name in names} <= known, version
        assert all(name.endswith(suffix) for name in names)
        assert all(str(Requirement(line).specifier).startswith("==") for line in one.packages)
    assert all(part.headers for part in shipped.toolkit_parts)


def test_every_toolkit_that_can_be_had_is_known(shipped: Facts) -> None:
    known = {toolkit.version for toolkit in shipped.toolkits}
    for one in shipped.toolkit_sources:
        assert set(one.arches) <= set(shipped.arches)
        if one.kind == "toolkit":
            assert one.versions
            assert set(one.versions) <= known, f"{one.provider}: toolkits.toml lacks some"
    assert {one.provider for one in shipped.toolkit_sources} <= set(facts_reader.PROVIDERS)
