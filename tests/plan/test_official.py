"""Plans of all eras against what the official wheels were built with: build_configs/official.toml."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import OfficialPart, When
from torchmill.fetch.source.source import Source
from torchmill.host.host import Compiler, Host, HostCompilers, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, matrix
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.plan import Plan
from torchmill.plan.rules import make_case, rule_matches

BARE_HOST = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    compilers=HostCompilers(default=Compiler("gcc", "12.2.0")),
    complete=True,
)
GOLDEN = Path(__file__).parent.parent / "golden" / "official.txt"
CELLS = {
    "x86_64": (
        *(
            "1.1.0 cpu",
            "1.4.0 cpu",
            "1.8.1 cpu",
            "1.10.2 cpu",
            "1.13.1 cpu",
            "2.0.1 cpu",
            "2.3.1 cpu",
            "2.6.0 cpu",
        ),
        *(
            "2.9.1 cpu",
            "2.15.0 cpu",
            "1.1.0 9.0",
            "1.5.1 10.2",
            "1.8.1 11.1",
            "1.12.1 11.6",
            "1.13.1 11.7",
        ),
        *(
            "2.0.1 11.8",
            "2.2.2 12.1",
            "2.4.1 11.8",
            "2.5.1 12.4",
            "2.6.0 12.6",
            "2.7.1 12.8",
            "2.8.0 12.9",
        ),
        *("2.10.0 13.0", "2.12.0 12.6", "2.15.0 13.2"),
    ),
    "aarch64": (
        *("1.8.0 cpu", "1.13.0 cpu", "2.1.2 cpu", "2.5.1 cpu", "2.10.0 cpu"),
        *("2.5.1 12.4", "2.9.1 13.0", "2.14.1 12.6", "2.15.0 13.0"),
    ),
    "arm64": ("1.8.0 cpu", "1.13.1 cpu", "2.5.1 cpu", "2.12.0 cpu", "2.15.0 cpu"),
}


def official_cell(known: Facts, arch: str, named: str) -> Cell:
    """Return the cell of the newest Python of a release, "1.13.1 cpu" or with a toolkit."""
    version, cuda = named.split()
    release = find_release(known, "torch", version)
    cells = matrix.possible_cells(known, release, arch)
    return [one for one in cells if (one.build.cuda or "cpu") == cuda][-1]


def unknown_host(known: Facts, arch: str) -> Host:
    """Return a machine of which nothing is known."""
    return Host(arch, known.arches[arch].system, HostResources(cores=1, memory=2**40))


def plans(known: Facts) -> Iterator[tuple[str, Cell, Plan]]:
    for arch, names in CELLS.items():
        for named in names:
            cell = official_cell(known, arch, named)
            yield (
                f"{arch} {named}",
                cell,
                build_plan.compute_plan(known, cell, unknown_host(known, arch), Options()),
            )


def parts_of(known: Facts, cell: Cell, provider: str = "git") -> list[OfficialPart]:
    """Return what the official wheel of a cell has."""
    case = make_case(known, cell.build, cell.release, provider)
    return [part for part in known.official_parts if rule_matches(part.when, case)]


def unexplained(known: Facts) -> Iterator[str]:
    """Yield each difference that a plan neither brings, nor says with its cost and cure, nor gives a reason for."""
    for name, cell, plan in plans(known):
        missed = (*plan.official.shortfalls, *plan.official.differences)
        yield from (
            f"{name}: {one.part}" for one in plan.official.shortfalls if not (one.cost and one.cure)
        )
        yield from (f"{name}: {one.part}" for one in plan.official.differences if not one.cost)
        yield from (
            f"{name}: {one.part}"
            for one in missed
            if one.part not in {it.name for it in parts_of(known, cell)}
        )


def compared(known: Facts) -> Iterator[str]:
    """Yield what each plan has of the official wheel, what it lacks, and where it differs on purpose."""
    for name, cell, plan in plans(known):
        lacks, differs = (
            {one.part for one in said}
            for said in (plan.official.shortfalls, plan.official.differences)
        )
        names = sorted({part.name for part in parts_of(known, cell)})
        has = [one for one in names if one not in lacks | differs]
        yield name
        yield from (
            f"  {label:8} {'; '.join(sorted(those))}"
            for label, those in (("has", has), ("lacks", lacks))
        )
        yield f"  {'differs':8} {'; '.join(sorted(differs))}"


def test_no_plan_has_an_unexplained_difference(shipped: Facts) -> None:
    assert sum(map(len, CELLS.values())) >= 24
    assert list(unexplained(shipped)) == []


def test_plans_of_all_eras_have_what_they_had(
    shipped: Facts, request: pytest.FixtureRequest
) -> None:
    text = "".join(f"{line.rstrip()}\n" for line in compared(shipped))
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def without(known: Facts, variables: Iterable[str]) -> Facts:
    """Return facts without the rules that set a variable or require triton."""
    torch = known.packages["torch"]
    rules = tuple(one for one in torch.rules if not (set(variables) & set(one.set) or one.installs))
    return replace(known, packages={**known.packages, "torch": replace(torch, rules=rules)})


def test_a_part_that_a_plan_drops_is_said_to_be_lacking(shipped: Facts) -> None:
    cell = official_cell(shipped, "x86_64", "2.10.0 13.0")
    poorer = without(
        shipped, ["BUILD_BUNDLE_PTXAS", "TORCH_NVCC_FLAGS", "USE_CUSPARSELT", "NVSHMEM_HOME"]
    )
    made = build_plan.compute_plan(poorer, cell, unknown_host(shipped, "x86_64"), Options())
    assert {one.part for one in made.official.shortfalls} >= {
        *(
            "ptxas in the wheel",
            "triton, required by the wheel",
            "compressed device code",
            "cuSPARSELt",
            "NVSHMEM",
        ),
        "device code compressed for size",
    }
    assert [*compared(poorer)] != [*compared(shipped)]


@pytest.mark.parametrize("pattern", [("USE_NEW=1",), ("new==*",)])
def test_a_part_that_no_plan_has_does_not_pass(shipped: Facts, pattern: tuple[str, ...]) -> None:
    grown = replace(
        shipped,
        official_parts=(
            *shipped.official_parts,
            OfficialPart("something new", When(), "a test", pattern),
        ),
    )
    found = list(unexplained(grown))
    assert len(found) == sum(map(len, CELLS.values()))
    assert all(one.endswith(": something new") for one in found)


def test_every_line_has_a_source_a_cost_or_a_reason_and_a_cell(shipped: Facts) -> None:
    cases = [
        make_case(
            shipped, Build("torch", "wheel", release.pythons[-1], "", arch, cuda), release, provider
        )
        for release in shipped.releases["torch"]
        for arch in release.arches
        for cuda in (None, *release.cuda_official)
        for provider in ("git", "debian")
    ]
    cases = [
        replace(one, build=replace(one.build, variant="cuda" if one.build.cuda else "cpu"))
        for one in cases
    ]
    for part in shipped.official_parts:
        assert part.source, part.name
        assert bool(part.cost) != bool(part.explained), part.name
        assert bool(part.cost) == bool(part.brings), part.name
        assert any(rule_matches(part.when, case) for case in cases), f"{part.name}: no cell has it"


@pytest.mark.parametrize(
    ("cell", "settings", "expected"),
    [
        (
            ("aarch64", "wheel-3.11-cpu", "v2.4.0"),
            {},
            ["oneDNN with Arm's Compute Library", "the old C++ ABI"],
        ),
        (("aarch64", "wheel-3.11-cpu", "v2.6.0"), {"USE_MKLDNN_ACL": "1"}, []),
        (("aarch64", "wheel-3.12-cu130", "v2.11.0"), {"BLAS": "NVPL", "USE_MKLDNN_ACL": "1"}, []),
        (
            ("x86_64", "wheel-3.11-cu121", "v2.4.0"),
            {},
            ["the old C++ ABI", "TLS for gloo", "MAGMA", "cuSPARSELt"],
        ),
        (("x86_64", "wheel-3.12-cu126", "v2.12.0"), {"USE_NVSHMEM": "0"}, ["MAGMA", "NVSHMEM"]),
        (
            ("x86_64", "wheel-3.10-cpu", "v1.13.1"),
            {"USE_LLVM": "/usr", "CXXFLAGS": "-D_GLIBCXX_USE_CXX11_ABI=0"},
            ["TLS for gloo"],
        ),
        (("x86_64", "wheel-3.12-cpu", "v2.12.0"), {"USE_KINETO": "0", "USE_MPI": "1"}, ["kineto"]),
    ],
)
def test_a_plan_and_the_doctor_say_what_the_official_wheel_has_beyond_it(
    shipped: Facts, cell: tuple[str, str, str], settings: dict[str, str], expected: list[str]
) -> None:
    arch, identifier, tag = cell
    named = cell_lookup.find_cell(shipped, identifier, arch, find_release(shipped, "torch", tag))
    host = replace(BARE_HOST, arch=arch)
    made = build_plan.compute_plan(shipped, named, host, Options(settings=settings))
    assert [one.part for one in made.official.shortfalls] == expected
    findings = examination.examine_build(CheckContext(shipped, named, host, made))
    subjects = [one.subject for one in findings]
    assert all(subjects.count(one) == 1 and one in subjects for one in expected)


def test_debians_source_lacks_what_debian_leaves_out(shipped: Facts) -> None:
    cell = official_cell(shipped, "x86_64", "1.13.1 cpu")
    source = Source(
        "torch", "1.13.1", "v1.13.1", "debian", "a mirror", None, Path("tree"), verified=False
    )
    made = build_plan.compute_plan(
        shipped, cell, unknown_host(shipped, "x86_64"), Options(), source
    )
    lacks = ["FBGEMM", "ITT", "NNPACK and QNNPACK", "LLVM 9", "kineto", "TLS for gloo"]
    assert [one.part for one in made.official.shortfalls] == lacks
    assert "the old C++ ABI" in {one.part for one in made.official.differences}
