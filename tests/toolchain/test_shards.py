"""Shares of a build: how it is divided, and that any of the shares, even none, make the same wheel."""

import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import assert_fits
from tests.support.sampled import THIS, Sample, fetched
from torchmill.core.units import parse_duration
from torchmill.toolchain import shards
from torchmill.toolchain.shards import Shard

SESSION = f"wheel-{THIS}-cpu"


@pytest.mark.parametrize("count", [1, 2, 7, 16, 400])
def test_shares_are_disjoint_and_complete(count: int) -> None:
    names = {f"a{number}.o": float(number % 13 + 1) for number in range(300)}
    shares = shards.divide_compiles(names, [0.0] * count)
    assert len(shares) == count
    assert sorted(name for share in shares for name in share) == sorted(names)


def test_a_cut_depends_on_nothing_but_names_costs_and_number() -> None:
    names = {f"a{number}.o": float(number % 5) for number in range(200)}
    mixed = list(names.items())
    assert shards.divide_compiles(dict(reversed(mixed)), [0.0] * 6) == shards.divide_compiles(
        names, [0.0] * 6
    )


def test_shares_are_alike_where_costs_are_wrong_by_a_third() -> None:
    """As in torch, a tenth of 1,500 compiles takes half of the time."""
    chance = random.Random(1)  # noqa: S311 - figures
    real_seconds = {
        f"f{number}.o": chance.expovariate(1 / (30 if number % 10 == 0 else 4))
        for number in range(1500)
    }
    expected_seconds = {
        name: seconds * chance.uniform(0.67, 1.33) for name, seconds in real_seconds.items()
    }
    loads = [
        sum(real_seconds[name] for name in share)
        for share in shards.divide_compiles(expected_seconds, [0.0] * 16)
    ]
    assert max(loads) / (sum(loads) / 16) < 1.15


def test_costs_are_those_of_the_first_pattern_of_the_source() -> None:
    costs = [("jit/init.cpp", 50.0), ("jit/*.cpp", 15.0), ("oneDNN/src/cpu/rnn/*.cpp", 36.0)]
    objects = [
        "caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/jit/init.cpp.o",
        "x/jit/b.cpp.o",
        "x/other.cpp.o",
    ]
    objects += [
        "third_party/ideep/mkl-dnn/third_party/oneDNN/src/cpu/CMakeFiles/dnnl_cpu.dir/rnn/ref_rnn.cpp.o"
    ]
    objects += ["confu-deps/cpuinfo/CMakeFiles/cpuinfo.dir/src/cache.c.o"]
    assert [shards.expected_seconds(name, costs) for name in objects] == [
        50.0,
        15.0,
        5.0,
        36.0,
        0.2,
    ]


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("3/16", {}, Shard(3, 16)),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "5",
            },
            Shard(3, 4),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "0",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "0",
            },
            Shard(1, 4),
        ),
        ("auto", {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3"}, Shard(2, 3)),
        ("auto", {"BUILDKITE_PARALLEL_JOB": "0", "BUILDKITE_PARALLEL_JOB_COUNT": "3"}, Shard(1, 3)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "7"}, Shard(8, 8)),
        ("auto/8", {"AWS_BATCH_JOB_ARRAY_INDEX": "0"}, Shard(1, 8)),
    ],
)
def test_a_share_is_named_or_told_by_the_engine(
    text: str, environ: dict[str, str], expected: Shard
) -> None:
    assert shards.parse_shard(text, environ) == expected


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("0/4", {}, "there is no share 0/4"),
        ("5/4", {}, "there is no share 5/4"),
        ("3", {}, "is not a share"),
        ("a/b", {}, "is not a share"),
        ("auto", {}, "no engine says"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "nothing gives the total"),
        ("auto/4", {"JOB_COMPLETION_INDEX": "4"}, "there is no share 5/4"),
        ("1/1001", {}, "COUNT/COUNT, with up to 1000"),
        ("", {}, "'' is not a share"),
        (
            "auto",
            {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3", "JOB_COMPLETION_INDEX": "0"},
            "or several do",
        ),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": ""},
            "SLURM_ARRAY_TASK_COUNT is ''",
        ),
    ],
)
def test_what_is_no_share_is_refused(text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shards.parse_shard(text, environ)


def test_parts_are_known_without_records_and_with_damaged_ones(tmp_path: Path) -> None:
    """A share that was ended early has no record, and a record may have any content."""
    for text in ('{"failed": 5}', "[]", "{", ""):
        (tmp_path / "1" / "shards").mkdir(parents=True, exist_ok=True)
        (tmp_path / "1" / "shards" / f"{len(text)}-of-9.json").write_text(text)
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "CACHEDIR.TAG").touch()
    (tmp_path / "other").mkdir()
    assert list(shards.list_parts(tmp_path)) == [(tmp_path / "1", [{}] * 4), (tmp_path / "2", [])]


def test_objects_for_generators_are_in_no_share(tmp_path: Path) -> None:
    """A generator such as protoc is linked of two objects, and its output is compiled."""
    (tmp_path / "build.ninja").write_text(
        "rule cc\n command = touch $out\nrule CXX_EXECUTABLE_LINKER\n command = touch $out\n"
        "rule CUDA_DEVICE_LINK\n command = touch $out\n"
        "build gen1.o: cc\nbuild gen2.o: cc\nbuild gen: CXX_EXECUTABLE_LINKER gen1.o gen2.o\n"
        "build made.h: cc gen\nbuild a.o: cc || made.h\nbuild b.o: cc made.h\nbuild unneeded.o: cc\n"
        "build dlink.o: CUDA_DEVICE_LINK a.o b.o\nbuild lib: CXX_EXECUTABLE_LINKER a.o b.o dlink.o\n"
        "build all: phony lib\ndefault all\n"
    )
    ninja = shards.Ninja(shutil.which("ninja") or "ninja", ["-C", str(tmp_path), "-j", "2", "all"])
    assert ninja.objects_to_share() == ["a.o", "b.o"]
    assert (ninja.options, ninja.goals) == (["-j", "2"], ["all"])
    in_one_word = shards.Ninja(ninja.program, [f"-C{tmp_path}", "all"])
    assert in_one_word.objects_to_share() == ["a.o", "b.o"]


def test_objects_that_setuptools_links_itself_are_shared(tmp_path: Path) -> None:
    """The file of torch's BuildExtension has the objects as its default targets."""
    (tmp_path / "build.ninja").write_text(
        "rule compile\n command = touch $out\nrule cuda_devlink\n command = touch $out\n"
        f"build {tmp_path}/a.o: compile\nbuild {tmp_path}/b.o: compile\n"
        f"build {tmp_path}/dlink.o: cuda_devlink {tmp_path}/a.o\n"
        f"default {tmp_path}/a.o {tmp_path}/b.o {tmp_path}/dlink.o\n"
    )
    ninja = shards.Ninja(shutil.which("ninja") or "ninja", ["-C", str(tmp_path), "-v"])
    assert [Path(name).name for name in ninja.objects_to_share()] == ["a.o", "b.o"]
    with_goal = shards.Ninja(ninja.program, ["-C", str(tmp_path), f"{tmp_path}/b.o"])
    assert [Path(name).name for name in with_goal.objects_to_share()] == ["b.o"]


def test_a_share_for_another_folder_of_parts_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler cache writes an object into the parts only when the object is compiled."""
    (tmp_path / "build.ninja").write_text(
        "rule cc\n command = echo $out >> log && touch $out\n"
        "rule ld\n command = touch $out\nbuild a.o: cc\nbuild b.o: cc\nbuild lib: ld a.o b.o\n"
    )
    order = {"number": 1, "count": 2, "costs": [], "session": "wheel-3.10-cpu", "tree": "a digest"}
    for parts, compiled in (("x", 1), ("x", 1), ("y", 2)):
        (tmp_path / "order.json").write_text(json.dumps(order | {"parts": str(tmp_path / parts)}))
        monkeypatch.setenv(shards.ORDER_VARIABLE, str(tmp_path / "order.json"))
        assert (
            shards.main(shutil.which("ninja") or "ninja", ["-C", str(tmp_path), "lib"])
            == shards.MADE
        )
        assert (tmp_path / "log").read_text().split() == ["a.o"] * compiled
        assert json.loads((tmp_path / parts / "shards/1-of-2.json").read_text())["made"] == 1


def test_a_share_that_lacks_an_object_is_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "build.ninja").write_text("rule cc\n command = true\nbuild a.o: cc\n")
    order = {"number": 1, "count": 1, "costs": [], "session": "wheel-3.10-cpu", "tree": "a digest"}
    (tmp_path / "order.json").write_text(json.dumps(order | {"parts": str(tmp_path / "parts")}))
    monkeypatch.setenv(shards.ORDER_VARIABLE, str(tmp_path / "order.json"))
    assert shards.main(shutil.which("ninja") or "ninja", ["-C", str(tmp_path)]) == 1


def test_what_one_module_adds_to_a_share_counts_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setuptools calls ninja for one module after the other, with a new file in the same folder."""
    costs = [("long.cu", 90.0), ("also.cu", 60.0), ("*", 1.0)]
    made: dict[int, list[str]] = {}
    for number in (1, 2):
        order = {
            "number": number,
            "count": 2,
            "costs": costs,
            "session": "cluster-3.11-cpu",
            "tree": "a digest",
        }
        (tmp_path / "order.json").write_text(json.dumps(order | {"parts": str(tmp_path / "parts")}))
        for names in (("long.cu.o", "a.o"), ("also.cu.o", "b.o"), ("c.o",)):
            edges = "".join(f"build {name}: cc\n" for name in names)
            (tmp_path / "build.ninja").write_text(
                f"rule cc\n command = echo $out >> log{number} && touch $out\n{edges}"
            )
            monkeypatch.setenv(shards.ORDER_VARIABLE, str(tmp_path / "order.json"))
            assert (
                shards.main(shutil.which("ninja") or "ninja", ["-C", str(tmp_path)]) == shards.MADE
            )
        made[number] = sorted((tmp_path / f"log{number}").read_text().split())
        record = json.loads((tmp_path / f"parts/shards/{number}-of-2.json").read_text())
        assert (record["compiles"], record["made"], record["failed"]) == (5, len(made[number]), [])
        assert_fits(record, "shard_record")
    assert made == {1: ["long.cu.o"], 2: ["a.o", "also.cu.o", "b.o", "c.o"]}


@pytest.mark.parametrize(
    ("text", "seconds"), [("5h20m", 19200), ("90 min", 5400), ("1d 2h", 93600), ("45s", 45)]
)
def test_a_time_is_given_as_people_write_it(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


long = pytest.mark.long


def digest(sample: Sample) -> str:
    (wheel,) = (sample.home / "dist").glob("*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def output_of(completed: subprocess.CompletedProcess[str], code: int = 0) -> str:
    assert completed.returncode == code, completed.stdout + completed.stderr
    return completed.stdout + completed.stderr


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    """Return a machine for all tests; `forget` makes it like a machine that has built nothing."""
    return fetched(tmp_path_factory.mktemp("machines"), upstream, envs)


def forget(sample: Sample) -> Sample:
    for folder in (
        sample.home / ".torchmill" / "trees",
        sample.home / "dist",
        sample.cache / "ccache",
    ):
        shutil.rmtree(folder, ignore_errors=True)
    return sample


@long
def test_any_shares_make_the_wheel_of_one_machine(machines: Sample, tmp_path: Path) -> None:
    """With the parts of all shares, with a share missing, a damaged record, and without parts."""
    parts = tmp_path / "parts"
    output_of(forget(machines).nox("-s", SESSION))
    undivided = digest(machines)
    for number in (1, 2, 3):
        output = output_of(
            forget(machines).nox(
                "-s", SESSION, "--", f"--shard={number}/3", f"--parts={parts}/{number}"
            )
        )
        assert f"share {number}/3 is made" in output
        assert machines.wheels() == [], "a share makes no wheel"
    records = [
        json.loads((parts / f"{number}/shards/{number}-of-3.json").read_text())
        for number in (1, 2, 3)
    ]
    assert len({record["tree"] for record in records}) == 1
    assert sum(record["made"] for record in records) == records[0]["compiles"]
    output = output_of(forget(machines).nox("-s", SESSION, "--", f"--parts={parts}"))
    assert f"parts in {parts}: 1/3, 2/3, 3/3\n" in output
    assert "(100%)" in output
    assert digest(machines) == undivided
    shutil.rmtree(parts / "1")
    (parts / "2/shards/2-of-3.json").write_text("{")
    for file in (parts / "3").glob("??/*"):
        file.write_bytes(file.read_bytes()[:-9])
    output = output_of(forget(machines).nox("-s", SESSION, "--", f"--parts={parts}"))
    assert f"parts in {parts}: a damaged record (of another build), 3/3\n" in output
    assert digest(machines) == undivided
    output = output_of(forget(machines).nox("-s", SESSION, "--", f"--parts={tmp_path}/nowhere"))
    assert "nowhere: none\n" in output
    assert digest(machines) == undivided


@long
def test_a_configured_tree_is_shared_too_and_finished_where_it_is(
    machines: Sample, tmp_path: Path
) -> None:
    """An engine may start a task again on the same machine."""
    parts = (f"--parts={tmp_path}", "--set=TINY_FAST=0")
    shard = ("-s", SESSION, "--", "--shard=1/2", *parts)
    output_of(forget(machines).nox(*shard))
    output = output_of(machines.nox(*shard))
    assert "share 1/2 is made" in output
    assert f"nox -s {SESSION} -- --parts={tmp_path} --set=TINY_FAST=0" in " ".join(
        output.split()
    ), "as the share was made"
    output_of(machines.nox("-s", SESSION, "--", *parts))
    assert "is up to date" in output_of(machines.nox(*shard)), "the wheel is here"


@long
def test_two_machines_finish_from_one_folder_at_once(
    machines: Sample, tmp_path: Path, upstream: Path, envs: Path
) -> None:
    """Both machines read the parts, and neither of them writes there."""
    parts = tmp_path / "parts"
    output_of(forget(machines).nox("-s", SESSION, "--", "--shard=1/1", f"--parts={parts}/1"))
    before = {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    (tmp_path / "envs").mkdir()
    other = fetched(tmp_path / "other", upstream, envs)
    other.envs = tmp_path / "envs"  # only one run at a time can use the environment of a session
    finishers = [
        machine.start("-s", SESSION, "--", f"--parts={parts}")
        for machine in (forget(machines), other)
    ]
    outputs = [process.communicate()[0] for process in finishers]
    for output in outputs:
        assert "(100%)" in output
    assert machines.wheels() == other.wheels() != []
    assert {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()} == before


@long
def test_what_does_not_compile_fails_its_share_and_the_rest_is_kept(
    machines: Sample, tmp_path: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *src/fit.cpp*) echo "fit.cpp:1:1: error: no" >&2; exit 1 ;; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    machines.env["CXX"] = str(compiler)
    try:
        completed = forget(machines).nox(
            "-s", SESSION, "--", "--shard=1/1", f"--parts={tmp_path}/parts"
        )
    finally:
        del machines.env["CXX"]
    assert completed.returncode == 1
    record = json.loads((tmp_path / "parts/shards/1-of-1.json").read_text())
    assert [Path(name).name for name in record["failed"]] == ["fit.cpp.o"], completed.stdout
    assert record["made"] == record["compiles"] - 1
    (log,) = (machines.home / ".torchmill" / "logs").glob("*.log")
    assert "fit.cpp:1:1: error: no" in log.read_text()
    output = output_of(machines.nox("-s", SESSION, "--", f"--parts={tmp_path}/parts"))
    assert f"parts in {tmp_path}/parts: 1/1 (without 1 of its files)" in output


@long
def test_a_build_ends_in_time_and_goes_on(machines: Sample) -> None:
    output_of(forget(machines).nox("-s", SESSION, "--", "--until=1s"), 15)
    assert machines.wheels() == []
    output_of(machines.nox("-s", SESSION, "--", "--until=1h"))
    assert digest(machines)


@long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard=1/2"], "--shard needs --parts"),
        (["--shard=5/4", "--parts=x"], "there is no share 5/4"),
        (["--until=soon"], "'soon' is not a duration"),
    ],
)
def test_wrong_options_are_refused(machines: Sample, words: list[str], message: str) -> None:
    assert message in output_of(forget(machines).nox("-s", SESSION, "--", *words), 1)
