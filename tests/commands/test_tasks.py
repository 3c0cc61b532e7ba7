"""The real tasks, through the real invoke."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, run

KEYS = {
    *(
        "format",
        "identifier",
        "package",
        "tag",
        "commit",
        "source",
        "version",
        "environment",
        "requirements",
        "patches",
    )
}
KEYS |= {"commands", "jobs", "kit", "wheel", "platform"}
HOSTS = ROOT / "tests" / "golden" / "hosts"


def test_list_names_the_tasks(tmp_path: Path) -> None:
    done = run("invoke", "--list", home=tmp_path)
    names = (
        "arch clean deps diagnose doctor explain facts fetch jobs matrix plan report status toolkit"
    )
    names += " image index publish snippet verify"
    for name in names.split():
        assert f"  {name} " in done.stdout


def test_matrix_as_json(tmp_path: Path) -> None:
    done = run("invoke", "matrix", "--tag", "v2.4.0", "--arch", "aarch64", "--json", home=tmp_path)
    entries = json.loads(done.stdout)["cells"]
    assert {entry["arch"] for entry in entries} == {"aarch64"}
    packages = {"torch", "torchvision", "torchaudio", "torch-scatter"}
    assert {entry["package"] for entry in entries} >= packages
    by_name = {(entry["package"], entry["python"], entry["variant"]): entry for entry in entries}
    assert by_name["torch", "3.12", "cpu"]["possible"] is True
    impossible = by_name["torch", "3.13", "cpu"]
    assert (impossible["possible"], impossible["reason"]) == (
        False,
        "torch 2.4.0 was released for Python 3.8, 3.9, 3.10, 3.11, 3.12: nobody is known to have tried a newer one",
    )


def test_matrix_for_people(tmp_path: Path) -> None:
    done = run(
        "invoke",
        "matrix",
        "--tag",
        "v1.13.1",
        "--arch",
        "x86_64",
        "--package",
        "torch",
        home=tmp_path,
    )
    assert done.stdout.startswith("torch 1.13.1 on x86_64\n  Python  3.7   3.8 ")
    assert "3.12" in done.stdout.partition("  untried ")[2]
    legend = done.stdout[done.stdout.index("\nwheel ") :]
    assert [line.split()[0] for line in legend.split("\n") if line] == ["wheel", "tried", "?", "no"]


def test_explain_tells_who_has_built_it(tmp_path: Path) -> None:
    def explained(name: str, *words: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads(
            run("invoke", "explain", name, *words, "--json", home=tmp_path).stdout
        )
        return answer

    described = f"--host={HOSTS / 'rtx3090.toml'}"
    tried = explained("wheel-3.12-cu121", "--tag=v2.4.1", described)
    assert (tried["standing"], tried["source"]) == ("wheel", "build_configs/releases/2.4.1.toml")
    untried = explained("wheel-3.12-cu113", "--tag=v2.4.1", described)
    assert (untried["standing"], untried["source"]) == ("untried", "")
    printed = run(
        "invoke", "explain", "wheel-3.12-cu113", "--tag=v2.4.1", described, home=tmp_path
    ).stdout
    assert printed.startswith(
        "wheel-3.12-cu113 is untried, and may build: torch 2.4.1\nnobody is known to have built"
    )


def test_an_answer_names_the_release_that_was_selected(tmp_path: Path) -> None:
    env = {"TORCHMILL_TAG": "v2.4.1"}
    for words in (
        ("explain", "wheel-3.12-cpu"),
        ("explain", "wheel-3.12-cu130"),
        ("matrix",),
        ("status",),
    ):
        done = run("invoke", *words, home=tmp_path, env=env)
        assert "v2.4.1" in done.stdout + done.stderr
        assert "TORCHMILL_TAG" in done.stdout + done.stderr, words
    explained = run("invoke", "explain", "wheel-3.12-cpu", "--tag=v2.4.1", home=tmp_path, env=env)
    assert "TORCHMILL_TAG" not in explained.stdout


def test_explain_says_why_not_and_what_instead(tmp_path: Path) -> None:
    done = run("invoke", "explain", "wheel-3.12-cpu", "--tag", "v1.13.1", home=tmp_path)
    assert done.returncode == 3
    assert (
        "wheel-3.12-cpu is untried: torch 1.13.1 was released for Python 3.7, 3.8, 3.9, 3.10, 3.11"
        in done.stderr
    )
    assert "wheel-3.11-cpu" in done.stderr
    assert "releases that were built this way: v2.15.0, v2.14.1, " in done.stderr
    assert "…, v2.3.1, v2.2.2\n" in done.stderr, "the newest of each series, not the middle"
    assert "build_configs/releases/1.13.1.toml" in done.stderr, "how to try it all the same"
    good = run("invoke", "explain", "wheel-3.10-cpu", "--tag", "v1.13.1", home=tmp_path)
    head, trial, vulnerabilities, wheel, _ = good.stdout.splitlines()
    assert vulnerabilities.startswith("note: 13 known vulnerabilities")
    assert (
        trial
        == "upstream built torch 1.13.1 without CUDA for x86_64 (build_configs/releases/1.13.1.toml)"
    )
    assert (good.returncode, head) == (0, "wheel-3.10-cpu is possible: torch 1.13.1")
    command = (
        "`pip install torch==1.13.1+cpu --extra-index-url https://download.pytorch.org/whl/cpu`"
    )
    assert f"{command}: cannot tell whether it fits: it was not read" in wheel


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_plan_as_json_for_a_described_host(tmp_path: Path) -> None:
    done = run(
        "invoke",
        "plan",
        "wheel-3.10-cpu",
        "--tag=v1.13.1",
        f"--host={HOSTS / 'm1-container.toml'}",
        "--json",
        home=tmp_path,
    )
    plan = json.loads(done.stdout)
    assert set(plan) == KEYS | {
        "toolkit",
        "torch",
        "libraries",
        "lacks",
        "differs",
        "published",
        "estimate",
        "overflow",
        "judgements",
        "vulnerabilities",
    }
    assert set(plan["environment"]) == {"set", "passed"}
    assert plan["wheel"] == "torch-1.13.1+cpu-cp310-cp310-manylinux_2_36_aarch64.whl"
    assert files_in(tmp_path) == ["facts.json", "facts.pickle"], (
        "a plan writes nothing but what it remembers of the facts"
    )


def test_plan_without_a_selection_says_which_release_it_took(tmp_path: Path) -> None:
    done = run(
        "invoke", "plan", "wheel-3.5-cpu", f"--host={HOSTS / 'ubuntu-1604.toml'}", home=tmp_path
    )
    assert "no release is selected: v1.5.1 is the newest that supports wheel-3.5-cpu" in done.stderr
    assert done.stdout.startswith("builds     torch 1.5.1, Python 3.5, x86_64")
    rows = [line for line in done.stdout.splitlines() if not line.startswith("note: ")]
    assert max(map(len, rows)) <= 80
    whole = run(
        "invoke",
        "plan",
        "wheel-3.5-cpu",
        "--all",
        f"--host={HOSTS / 'ubuntu-1604.toml'}",
        home=tmp_path,
    )
    assert whole.stdout.startswith("wheel-3.5-cpu: torch v1.5.1")


def test_a_plan_says_what_another_python_costs_in_a_tree_that_is_there(tmp_path: Path) -> None:
    tree = tmp_path / ".torchmill/trees/v1.13.1/wheel-cpu-0123abcd"
    tree.mkdir(parents=True)

    def times(cell: str) -> list[str]:
        done = run("invoke", "plan", cell, "--tag=v1.13.1", home=tmp_path)
        return [line for line in done.stdout.splitlines() if line.startswith("time")]

    clause = " in the tree of the first Python"
    for name in ("key", "unfinished"):
        (tree / name).touch()
        assert (clause in times("wheel-3.11-cpu")[0]) == (name == "key"), name
    (tree / "unfinished").unlink()
    assert clause not in times("vision-3.10-cpu")[0]


def test_a_plan_for_another_system_takes_nothing_from_the_compilers_here(tmp_path: Path) -> None:
    for name, compiler in (
        ("wheel-3.11-cpu-amd64", "win_amd64.whl"),
        ("wheel-3.10-cpu-arm64", "macosx_11_0_arm64.whl"),
    ):
        done = run("invoke", "plan", name, "--tag=v1.13.1", "--all", home=tmp_path)
        variables = done.stdout.partition("\nenvironment\n")[2].partition(
            "  from your shell only:"
        )[0]
        assert ("-W" in variables, "-include" in variables, compiler in done.stdout) == (
            False,
            False,
            True,
        )
        assert (
            f"`invoke plan {name} --tag=v1.13.1 --all`"
            in run("invoke", "plan", name, "--tag=v1.13.1", home=tmp_path).stdout
        )


def test_a_plan_of_another_package_names_the_tag_that_selects_it(tmp_path: Path) -> None:
    done = run("invoke", "plan", "vision-3.10-cpu", "--tag=v1.13.1", home=tmp_path)
    assert "`invoke plan vision-3.10-cpu --tag=v1.13.1 --all`" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fetch", "--tag=v1.13.9"], 4, ["no release of torch is called 'v1.13.9'", "v1.13.1"]),
        (
            ["fetch", "--tag=v1.13.1", "--package=visoin"],
            2,
            ["unknown package visoin", "torchvision (vision)"],
        ),
        (["plan", "wheel-3.10-cpuu", "--tag=v1.13.1"], 4, ["names no build", "wheel-3.10-cpu"]),
        (["plan", "wheel-3.12-cpu", "--tag=v1.13.1"], 3, ["is untried", "possible instead"]),
        (["plan", "wheel-3.10-cpu", "--tag=v1.13.1", "--set=X"], 2, ["write it as NAME=VALUE"]),
        (["plan", "wheel-3.10-cpu", "--label=gti"], 2, ["invalid choice"]),
        (["plan", "wheel-3.10-cpu", "--", "--label=git"], 2, ["takes its options without `--`"]),
        (["plan", "wheel-3.10-cpu", "--host=absent.toml"], 2, ["absent.toml"]),
        (
            ["matrix", "--arch=sparc"],
            2,
            ["has no build with --arch 'sparc' and --package 'torch'", "aarch64"],
        ),
        (["doctor", "--save=absent/host.toml"], 7, ["absent/host.toml: No such file"]),
        (
            ["jobs", "--memory=lots"],
            2,
            ["invoke jobs: --memory: 'lots' is not a quantity of bytes"],
        ),
        (["jobs", "--memory="], 2, ["invoke jobs: --memory needs a value"]),
        (["jobs", "--memory=12"], 2, ["no compiler fits into 12 B"]),
        (["jobs", "--jobs=0"], 2, ["--jobs 0: give a whole number from 1 to 4096"]),
        (["publish", "--to=x", "--sign-key="], 2, ["invoke publish: --sign-key needs a value"]),
        (
            ["verify", "--identity", "", "--issuer", ""],
            2,
            ["invoke verify: --identity needs a value"],
        ),
        (["jobs", "wheel-3.10"], 4, ["'wheel-3.10' names no build"]),
        (["jobs", "wheel-3.12-cpu", "--tag=v1.13.1"], 3, ["wheel-3.12-cpu is untried"]),
        (["explain", "wheel"], 4, ["'wheel' names no build"]),
        (["deps", "--print", "--manager=portage"], 2, ["pacman"]),
        (["clean"], 2, ["invoke clean needs a filter: --kind KIND, --age 30d"]),
        (["clean", "--kind=tree"], 2, ["unknown --kind 'tree': choose from trees, outputs"]),
        (["clean", "--release=v1.13.9"], 4, ["no release of torch is called 'v1.13.9'", "v1.13.1"]),
    ],
)
def test_bad_input_is_one_message_with_its_own_exit_code(
    tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    done = run("invoke", *arguments, home=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / ".torchmill" / "selected.json").exists()


def test_a_package_that_cannot_be_had_keeps_no_other_from_being_fetched(
    tmp_path: Path, upstream: Path
) -> None:
    """It is reported at the end, and what is there already stays."""
    (tmp_path / "forge/tiny").mkdir(parents=True)
    for repository in ("tinytorch", "tinymath", "tinybits"):
        (tmp_path / "forge/tiny" / f"{repository}.git").symlink_to(
            upstream / f"tiny/{repository}.git"
        )
    env = {"TORCHMILL_CONFIGS": str(ROOT / "sample/build_configs")}
    order = ("fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{tmp_path / 'forge'}")
    done = run("invoke", *order, home=tmp_path / "home", env=env)
    assert done.returncode == 5, done.stderr
    assert "tinyvision" in done.stderr
    assert "tinytorch v1.0.0: 7118d88" in done.stdout
    (tmp_path / "forge/tiny/tinyvision.git").symlink_to(upstream / "tiny/tinyvision.git")
    (tmp_path / "forge/tiny/tinytorch.git").unlink()
    shutil.rmtree(tmp_path / "home/.torchmill/sources/tinytorch")
    done = run("invoke", *order, home=tmp_path / "home", env=env)
    assert done.returncode == 5, done.stderr
    assert "tinyvision v0.1.0: 33b0dff" in done.stdout


def test_jobs_tell_what_binds(tmp_path: Path) -> None:
    done = run("invoke", "jobs", "wheel-3.10-cpu", "--tag=v1.13.1", "--memory=64M", home=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in (
        "physical memory",
        "--memory",
        "binds",
        "torch 1.13.1 cpu",
        "warning: the largest compiles",
    ):
        assert word in done.stdout
    assert files_in(tmp_path) == ["facts.json", "facts.pickle"], (
        "it writes nothing but what it remembers of the facts"
    )


def test_jobs_as_json(tmp_path: Path) -> None:
    done = run("invoke", "jobs", "--tag=v1.13.1", "--jobs=3", "--json", home=tmp_path)
    document = json.loads(done.stdout)
    assert document["allowed"]["processors"] == {"count": 3, "source": "--jobs"}
    assert document["allowed"]["slots"] == 14
    assert document["memory"][0]["source"] == "physical memory"


def test_deps_print_the_command_and_run_nothing(tmp_path: Path) -> None:
    done = run("invoke", "deps", "--print", "--manager=dnf", "--tag=v1.13.1", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.strip().endswith("libjpeg-turbo-devel libpng-devel zlib-devel")
        or "gcc-c++" in done.stdout
    )
    assert "dnf install --assumeyes" in done.stdout


def test_whoever_reads_only_the_first_line_gets_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m invoke plan wheel-3.10-cpu --tag v1.13.1 | true"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("task", ["doctor", "plan", "diagnose", "explain", "jobs"])
def test_a_task_with_an_argument_of_its_own_has_help(tmp_path: Path, task: str) -> None:
    done = run("invoke", task, "--help", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Docstring:" in done.stdout


def test_a_home_that_is_refused_is_told_before_anything_else(tmp_path: Path) -> None:
    done = run("invoke", "--list", home=tmp_path, env={"TORCHMILL_HOME": "relative"})
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error[invalid-home]: TORCHMILL_HOME is relative, which is not the absolute path of a folder"
    )
