"""The disks, memory and processor time of a machine, examined for builds."""

from dataclasses import replace

import pytest

from tests.support.changed_facts import change_facts
from tests.support.hosts import change_host
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.host import DiskSpace, Host, HostResources
from torchmill.plan import build_plan, cell_lookup, estimate
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination, resources
from torchmill.plan.doctor.finding import CheckContext, Finding

LINUX = Host("x86_64", "linux", HostResources(4, 64 * 2**30, free_disk=2**40), complete=True)


def find_cell(facts: Facts, identifier: str, tag: str, package: str = "torch") -> Cell:
    release = find_release(facts, package, tag)
    return cell_lookup.find_cell(facts, identifier, "x86_64", release)


def check_resources(
    facts: Facts, cell: Cell, host: Host, options: Options | None = None
) -> dict[str, Finding]:
    """Return the findings on resources, by subject."""
    plan = build_plan.compute_plan(facts, cell, host, options or Options())
    findings = resources.check_resources(CheckContext(facts, cell, host, plan))
    return {finding.subject: finding for finding in findings}


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(None, "unknown"), (99, "failure"), (100, "warning"), (199, "warning"), (200, "ok")],
)
def test_a_disk_that_may_not_be_enough_is_a_warning(free: int | None, verdict: str) -> None:
    assert resources.disk_finding(free, CostRange(100, 200)).verdict == verdict


def test_the_needs_of_a_package_without_measured_builds_are_in_its_facts(
    small_facts: Facts,
) -> None:
    package = small_facts.packages["base"]
    scarce = {"free_disk": package.setup.disk - 1, "memory": package.setup.memory_per_job - 1}
    small = change_host(LINUX, resources=scarce)

    def verdicts(host: Host) -> list[str]:
        return [finding.verdict for finding in resources.check_package_resources(host, package)]

    assert verdicts(small) == ["failure", "warning"]
    assert verdicts(LINUX) == ["ok", "ok"]
    cell = find_cell(small_facts, "wheel-3.10-cpu", "v1.0.0", "base")
    findings = check_resources(small_facts, cell, small).values()
    assert [finding.verdict for finding in findings] == ["failure", "warning"]


def test_limits_are_checked_also_without_an_estimate(shipped: Facts) -> None:
    """No build of torch-sparse was measured; a whole machine is examined for no build at all."""
    cell = find_cell(shipped, "sparse-3.11-cpu", "v2.9.1")
    disk = DiskSpace("/", 2**40, {"tree": 0}, free_inodes=1, source_files=100)
    limited = change_host(LINUX, resources={"processor_seconds": 3600, "disks": (disk,)})
    plan = build_plan.compute_plan(shipped, cell, limited, Options(torch="PyPI"))
    findings = examination.examine_build(CheckContext(shipped, cell, limited, plan))
    assert {"processor time", "files on /"} <= {finding.subject for finding in findings}


def test_both_examinations_make_each_check_of_a_host(shipped: Facts) -> None:
    cell = find_cell(shipped, "wheel-3.11-cu118", "v2.4.0")
    host = change_host(
        LINUX,
        resources={"processor_seconds": 1800, "open_files": 32},
        platform={"missing_certificates": ("/etc/ssl/certs",)},
        gpus={"stub_folders": ("/usr/local/cuda/lib64/stubs",)},
        programs={"unanswered": {"podman": "did not answer within 20 s"}},
    )
    plan = build_plan.compute_plan(shipped, cell, host, Options())
    build_findings = examination.examine_build(CheckContext(shipped, cell, host, plan))
    machine_findings = examination.examine_machine(shipped, host, None)
    for check in examination.HOST_CHECKS:
        findings = set(check(host))
        assert findings, f"the host has nothing that {check.__name__} finds"
        assert findings <= set(build_findings)
        assert findings <= set(machine_findings)


def test_only_the_largest_compile_counts_for_memory(shipped: Facts) -> None:
    cell = find_cell(shipped, "wheel-3.11-cu118", "v2.4.0")
    host = change_host(LINUX, resources={"cores": 64})
    assert check_resources(shipped, cell, host, Options(jobs=64))["memory"].verdict == "ok"
    small = change_host(host, resources={"memory": 10**9})
    memory = check_resources(shipped, cell, small)["memory"]
    assert (memory.verdict, memory.cure) == ("warning", "add memory or swap")


def test_a_limit_on_the_time_of_each_process_is_a_warning() -> None:
    assert list(resources.check_processor_time(LINUX)) == []
    limited = change_host(LINUX, resources={"processor_seconds": 1800})
    [finding] = resources.check_processor_time(limited)
    assert (finding.verdict, finding.state) == ("warning", "30 minutes for each process")


def test_the_disk_has_to_be_enough_for_the_estimate(shipped: Facts) -> None:
    cell = find_cell(shipped, "wheel-3.11-cu118", "v2.4.0")
    plan = build_plan.compute_plan(shipped, cell, LINUX, Options())
    expected = estimate.estimate_build(shipped, plan)
    assert expected is not None
    scarce = change_host(LINUX, resources={"free_disk": int(expected.tree.low)})
    assert check_resources(shipped, cell, scarce)["disk"].verdict == "failure"
    assert check_resources(shipped, cell, LINUX)["disk"].verdict == "ok"


def check_disks(*disks: DiskSpace) -> list[tuple[str, str, str]]:
    """Return subject, need and verdict of the findings on some disks."""
    parts = {
        "tree": CostRange(1000, 3000),
        "kit": CostRange(500, 500),
        "environment": CostRange(100, 200),
    }
    findings = resources.check_disks(change_host(LINUX, resources={"disks": disks}), parts)
    return [(finding.subject, finding.needed, finding.verdict) for finding in findings]


def test_a_disk_has_to_be_enough_for_all_parts_of_a_build() -> None:
    nothing = {"tree": 0, "kit": 0, "environment": 0}
    needed = "1.6 KiB to 3.6 KiB"
    assert check_disks(DiskSpace("/", 1700, nothing)) == [("disk", needed, "warning")]
    assert check_disks(DiskSpace("/", 1500, nothing)) == [("disk", needed, "failure")]


def test_bytes_that_are_there_already_need_no_more_room() -> None:
    present = {"tree": 2500, "kit": 0, "environment": 0}
    assert check_disks(DiskSpace("/", 1500, present)) == [("disk", "600 B to 1.2 KiB", "ok")]


def test_a_part_that_is_larger_than_needed_makes_no_room_for_others() -> None:
    present = {"tree": 9999, "kit": 0, "environment": 0}
    assert check_disks(DiskSpace("/", 500, present)) == [("disk", "600 B to 700 B", "failure")]


def test_each_disk_has_to_be_enough_for_its_own_parts() -> None:
    build = DiskSpace("/a", 4000, {"tree": 0, "kit": 0, "cache": 0})
    tools = DiskSpace("/b", 150, {"environment": 0})
    assert check_disks(build, tools) == [
        ("disk of /a", "1.5 KiB to 3.4 KiB", "ok"),
        ("disk of /b", "100 B to 200 B", "warning"),
    ]


def test_a_tree_needs_a_disk_whose_programs_can_be_run() -> None:
    tree = DiskSpace("/home", 4000, {"tree": 0}, noexec=True)
    cache = DiskSpace("/scratch", 4000, {"cache": 0}, noexec=True)
    parts = {"tree": CostRange(1, 2), "cache": CostRange(1, 2)}
    host = change_host(LINUX, resources={"disks": (tree, cache)})
    findings = resources.check_disks(host, parts)
    (finding,) = [finding for finding in findings if finding.verdict != "ok"]
    assert (finding.subject, finding.state) == ("disk of /home", "mounted noexec")
    assert finding.verdict == "failure"
    assert finding.cure == "set TORCHMILL_HOME to another disk"


def test_the_cure_says_how_much_has_to_be_freed() -> None:
    finding = resources.disk_finding(2**30, CostRange(2**31, 3 * 2**30))
    assert finding.cure.startswith("`invoke clean --free '2.0 GiB'` removes what builds left")


@pytest.mark.parametrize(
    ("inodes", "verdict"), [(None, None), (600, None), (599, "warning"), (199, "failure")]
)
def test_a_disk_may_run_out_of_inodes(
    shipped: Facts, inodes: int | None, verdict: str | None
) -> None:
    assert shipped.costs.assumptions is not None
    assumptions = replace(shipped.costs.assumptions, files=CostRange(2, 6))
    facts = change_facts(shipped, costs={"assumptions": assumptions})
    disk = DiskSpace("/", 2**40, {"tree": 0}, inodes, source_files=100)
    host = change_host(LINUX, resources={"disks": (disk,)})
    cell = find_cell(facts, "wheel-3.10-cpu", "v1.13.1")
    finding = check_resources(facts, cell, host).get("files on /")
    assert (finding.verdict if finding else None) == verdict
