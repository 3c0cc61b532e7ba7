"""Plans of all eras against what the official wheels were built with: build_configs/official.toml."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.changed_facts import change_facts
from tests.support.plans import find_torch_cell
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import OfficialPart, When
from torchmill.fetch.source.source import Source
from torchmill.host.host import Compiler, Host, HostCompilers, HostPlatform, HostResources
from torchmill.plan import build_plan, matrix
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.plan import Plan
from torchmill.plan.rules import Case, make_case, rule_matches

# A machine with a compiler and nothing else.
BARE_HOST = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    compilers=HostCompilers(default=Compiler("gcc", "12.2.0")),
    complete=True,
)
GOLDEN = Path(__file__).parent.parent / "golden" / "official.txt"
# fmt: off
CELLS = {
    "x86_64": (
        "1.1.0 cpu", "1.4.0 cpu", "1.8.1 cpu", "1.10.2 cpu", "1.13.1 cpu", "2.0.1 cpu", "2.3.1 cpu",
        "2.6.0 cpu", "2.9.1 cpu", "2.15.0 cpu", "1.1.0 9.0", "1.5.1 10.2", "1.8.1 11.1",
        "1.12.1 11.6", "1.13.1 11.7", "2.0.1 11.8", "2.2.2 12.1", "2.4.1 11.8", "2.5.1 12.4",
        "2.6.0 12.6", "2.7.1 12.8", "2.8.0 12.9", "2.10.0 13.0", "2.12.0 12.6", "2.15.0 13.2",
    ),
    "aarch64": (
        "1.8.0 cpu", "1.13.0 cpu", "2.1.2 cpu", "2.5.1 cpu", "2.10.0 cpu", "2.5.1 12.4",
        "2.9.1 13.0", "2.14.1 12.6", "2.15.0 13.0",
    ),
    "arm64": ("1.8.0 cpu", "1.13.1 cpu", "2.5.1 cpu", "2.12.0 cpu", "2.15.0 cpu"),
}
# fmt: on
CELL_COUNT = sum(len(names) for names in CELLS.values())


def official_cell(facts: Facts, arch: str, name: str) -> Cell:
    """Return the cell of the newest Python by release and toolkit: "1.13.1 cpu"."""
    version, cuda = name.split()
    release = find_release(facts, "torch", version)
    cells = matrix.possible_cells(facts, release, arch)
    return [cell for cell in cells if (cell.build.cuda or "cpu") == cuda][-1]


def plan_on_unknown_host(facts: Facts, cell: Cell, source: Source | None = None) -> Plan:
    """Return a plan for a machine of which nothing is known."""
    arch = cell.build.arch
    host = Host(arch, facts.arches[arch].system, HostResources(cores=1, memory=2**40))
    return build_plan.compute_plan(facts, cell, host, Options(), source)


class ComparedPlan(NamedTuple):
    """A plan, and the names of the parts that the official wheel of its cell has."""

    name: str
    plan: Plan
    parts: set[str]


def compared_plans(facts: Facts) -> Iterator[ComparedPlan]:
    for arch, names in CELLS.items():
        for name in names:
            cell = official_cell(facts, arch, name)
            case = make_case(facts, cell.build, cell.release, "git")
            parts = {part.name for part in facts.official.parts if rule_matches(part.when, case)}
            yield ComparedPlan(f"{arch} {name}", plan_on_unknown_host(facts, cell), parts)


def unexplained(facts: Facts) -> Iterator[str]:
    """Yield each difference without cost and cure, without a reason, or of no part of the wheel."""
    for name, plan, parts in compared_plans(facts):
        for shortfall in plan.official.shortfalls:
            if not shortfall.cost or not shortfall.cure or shortfall.part not in parts:
                yield f"{name}: {shortfall.part}"
        for difference in plan.official.differences:
            if not difference.cost or difference.part not in parts:
                yield f"{name}: {difference.part}"


def comparison_lines(facts: Facts) -> Iterator[str]:
    """Yield what each plan has of the official wheel, what it lacks, and where it differs."""
    for name, plan, parts in compared_plans(facts):
        lacks = {shortfall.part for shortfall in plan.official.shortfalls}
        differs = {difference.part for difference in plan.official.differences}
        yield name
        yield f"  has      {'; '.join(sorted(parts - lacks - differs))}".rstrip()
        yield f"  lacks    {'; '.join(sorted(lacks))}".rstrip()
        yield f"  differs  {'; '.join(sorted(differs))}".rstrip()


def test_no_plan_has_an_unexplained_difference(shipped: Facts) -> None:
    assert CELL_COUNT >= 24
    assert list(unexplained(shipped)) == []


def test_plans_of_all_eras_have_the_same_parts_as_before(
    shipped: Facts, request: pytest.FixtureRequest
) -> None:
    text = "".join(f"{line}\n" for line in comparison_lines(shipped))
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def without_rules_for(facts: Facts, *variables: str) -> Facts:
    """Return facts without the rules that set some variables or require triton."""
    torch = facts.packages["torch"]
    rules = []
    for rule in torch.rules:
        if rule.set.keys().isdisjoint(variables) and not rule.installs:
            rules.append(rule)
    return replace(facts, packages={**facts.packages, "torch": replace(torch, rules=tuple(rules))})


def test_a_part_that_a_plan_drops_is_a_shortfall(shipped: Facts) -> None:
    cell = official_cell(shipped, "x86_64", "2.10.0 13.0")
    variables = ("BUILD_BUNDLE_PTXAS", "TORCH_NVCC_FLAGS", "USE_CUSPARSELT", "NVSHMEM_HOME")
    facts = without_rules_for(shipped, *variables)
    plan = plan_on_unknown_host(facts, cell)
    assert {shortfall.part for shortfall in plan.official.shortfalls} >= {
        "ptxas in the wheel",
        "triton, required by the wheel",
        "compressed device code",
        "cuSPARSELt",
        "NVSHMEM",
        "device code compressed for size",
    }
    assert list(comparison_lines(facts)) != list(comparison_lines(shipped))


@pytest.mark.parametrize("pattern", ["USE_NEW=1", "new==*"])
def test_a_part_that_no_plan_has_is_unexplained(shipped: Facts, pattern: str) -> None:
    part = OfficialPart("something new", When(), "a test", (pattern,))
    facts = change_facts(shipped, official={"parts": (*shipped.official.parts, part)})
    differences = list(unexplained(facts))
    assert len(differences) == CELL_COUNT
    assert all(difference.endswith(": something new") for difference in differences)


def official_cases(shipped: Facts) -> Iterator[Case]:
    """Yield every case of an official build, with upstream's source and Debian's."""
    for release in shipped.releases["torch"]:
        for arch in release.arches:
            for cuda in (None, *release.cuda.official):
                variant = "cuda" if cuda else "cpu"
                build = Build("torch", "wheel", release.pythons[-1], variant, arch, cuda)
                for provider in ("git", "debian"):
                    yield make_case(shipped, build, release, provider)


def test_every_part_has_a_source_a_cost_or_a_reason_and_a_cell(shipped: Facts) -> None:
    cases = list(official_cases(shipped))
    for part in shipped.official.parts:
        assert part.source, part.name
        assert bool(part.cost) != bool(part.explained), part.name
        assert bool(part.cost) == bool(part.brings), part.name
        assert any(rule_matches(part.when, case) for case in cases), f"{part.name}: no cell has it"


@pytest.mark.parametrize(
    ("cell_name", "settings", "expected"),
    [
        (
            "wheel-3.11-cpu of v2.4.0 on aarch64",
            {},
            ["oneDNN with Arm's Compute Library", "the old C++ ABI"],
        ),
        ("wheel-3.11-cpu of v2.6.0 on aarch64", {"USE_MKLDNN_ACL": "1"}, []),
        (
            "wheel-3.12-cu130 of v2.11.0 on aarch64",
            {"BLAS": "NVPL", "USE_MKLDNN_ACL": "1"},
            [],
        ),
        (
            "wheel-3.11-cu121 of v2.4.0 on x86_64",
            {},
            ["the old C++ ABI", "TLS for gloo", "MAGMA", "cuSPARSELt"],
        ),
        ("wheel-3.12-cu126 of v2.12.0 on x86_64", {"USE_NVSHMEM": "0"}, ["MAGMA", "NVSHMEM"]),
        (
            "wheel-3.10-cpu of v1.13.1 on x86_64",
            {"USE_LLVM": "/usr", "CXXFLAGS": "-D_GLIBCXX_USE_CXX11_ABI=0"},
            ["TLS for gloo"],
        ),
        (
            "wheel-3.12-cpu of v2.12.0 on x86_64",
            {"USE_KINETO": "0", "USE_MPI": "1"},
            ["kineto"],
        ),
    ],
)
def test_a_plan_and_the_doctor_name_what_the_official_wheel_has_beyond_it(
    shipped: Facts, cell_name: str, settings: dict[str, str], expected: list[str]
) -> None:
    identifier, _, tag, _, arch = cell_name.split()
    cell = find_torch_cell(shipped, identifier, tag, arch)
    host = replace(BARE_HOST, arch=arch)
    plan = build_plan.compute_plan(shipped, cell, host, Options(settings=settings))
    assert [shortfall.part for shortfall in plan.official.shortfalls] == expected
    findings = examination.examine_build(CheckContext(shipped, cell, host, plan))
    subjects = [finding.subject for finding in findings]
    assert {part: subjects.count(part) for part in expected} == dict.fromkeys(expected, 1)


def test_debians_source_lacks_what_debian_leaves_out(shipped: Facts) -> None:
    cell = official_cell(shipped, "x86_64", "1.13.1 cpu")
    source = Source(
        "torch", "1.13.1", "v1.13.1", "debian", "a mirror", None, Path("tree"), verified=False
    )
    official = plan_on_unknown_host(shipped, cell, source).official
    lacks = ["FBGEMM", "ITT", "NNPACK and QNNPACK", "LLVM 9", "kineto", "TLS for gloo"]
    assert [shortfall.part for shortfall in official.shortfalls] == lacks
    assert "the old C++ ABI" in {difference.part for difference in official.differences}
