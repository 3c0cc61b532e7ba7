"""Answers of `invoke arch`, and the command itself."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.commands.arch import ArchQuestion, answer_arch
from torchmill.commands.command import CommandOutput
from torchmill.config.facts import Facts
from torchmill.config.gpu import Gpu
from torchmill.config.release import Release
from torchmill.config.release_lookup import newest_release
from torchmill.core.errors import ConfigError
from torchmill.host.host import Host, HostPlatform, HostResources

HOST = Host(
    "x86_64",
    "linux",
    HostResources(cores=8, memory=32 * 2**30),
    platform=HostPlatform(glibc="2.35"),
)
MODERN = (
    "sse4_1",
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "bmi1",
    "bmi2",
)  # a processor that runs any official wheel


def answer(
    facts: Facts,
    host: Host,
    listed: str = "",
    *,
    names: Sequence[str] = (),
    local: Release | None = None,
    cuda: str = "",
    tag: str = "",
) -> CommandOutput:
    """Return what is known of a list, or of the GPUs that are named."""
    return answer_arch(facts, host, ArchQuestion(listed, names, local, cuda, tag))


def test_old_gpus_are_told_how_to_be_served(shipped: Facts) -> None:
    text = " ".join(answer(shipped, HOST, "7.0").text.split())
    assert "CUDA 9.0 to 12.9 (deprecated in 12.8 to 12.9)" in text
    assert "official builds that run on it: 1.0.0 to 1.4.0 (code for 7.0)" in text
    assert (
        "1.9.0 to 2.10.0 (code for 7.0), 2.11.0 to 2.14.1 (code for 7.0, as upstream says, not"
        in text
    )
    assert re.search(r"; build it yourself: torch up to \S+ was built with CUDA 12\.6", text)


def test_an_answer_for_gpus_names_the_list(shipped: Facts) -> None:
    output = answer(shipped, HOST, names=("RTX 3090", "A100"))
    assert "8.0 would do: its code runs on all of them" in output.text
    assert output.data["list"] == "8.0;8.6"
    assert "can run nothing on this list" not in output.text
    other = answer(shipped, HOST, "6.1", names=("K80",))  # a list of one's own
    assert "Tesla K80 (3.7) can run nothing on this list" in other.text
    assert output.data["gpus"]["NVIDIA A100"] == "8.0"


def test_an_answer_warns_of_what_comes_with_the_toolkit(shipped: Facts) -> None:
    text = answer(shipped, HOST, "7.0 8.6+PTX", cuda="cu128", tag="v2.9.0").text
    assert "CUDA 12.8 warns about 7.0" in text
    assert "Linux driver 570.26" in text
    with refused("arch-list-impossible"):
        answer(shipped, HOST, "9.0", cuda="11.7", tag="v1.13.1")
    with refused("unknown-toolkit"):
        answer(shipped, HOST, "8.6", cuda="12.7")


def test_every_capability_has_an_answer(shipped: Facts) -> None:
    assert len(answer(shipped, HOST).text.splitlines()) == 1 + len(shipped.gpus.capabilities)
    for capability in shipped.gpus.capabilities:
        output = answer(shipped, HOST, capability.name)
        assert output.text.startswith(f"{capability.name}  {capability.architecture}")
        json.dumps(output.data)


def test_what_fits_a_toolkit_and_a_release_is_told_in_short(shipped: Facts) -> None:
    def names(cuda: str = "", tag: str = "") -> list[str]:
        entries = answer(shipped, HOST, cuda=cuda, tag=tag).data["capabilities"]
        return [entry["capability"] for entry in entries]

    toolkit = next(other for other in shipped.toolkits if other.version == "11.7")
    assert set(names(cuda="11.7")) <= set(toolkit.capabilities)
    assert "8.9" not in names(cuda="11.7")
    assert "3.0" in names(tag="v1.13.1")
    assert "3.0" not in names(tag="v2.0.0")


def test_a_capability_of_toolkits_that_the_release_does_not_build_with_is_refused(
    shipped: Facts,
) -> None:
    with refused("arch-list-impossible"):
        answer(shipped, HOST, "3.0", tag="v2.0.0")


def test_the_command(tmp_path: Path) -> None:
    done = run("invoke", "arch", "8.6", "--json", home=tmp_path)
    assert json.loads(done.stdout)["capabilities"][0]["architecture"] == "Ampere"
    wrong = run("invoke", "arch", "sm_86", home=tmp_path)
    assert wrong.returncode == ConfigError.exit_code
    assert "'sm_86' is not how PyTorch writes it: write 8.6" in wrong.stderr


def test_an_answer_predicts_what_the_link_makes_of_the_list(shipped: Facts) -> None:
    short = answer(shipped, HOST, "8.6", cuda="11.7", tag="v1.13.1")
    long = "3.5;3.7;5.0;5.2;6.0;6.1;7.0;7.5;8.0;8.6+PTX"
    assert short.data["overflow"]["level"] == "none"
    output = answer(shipped, HOST, long, cuda="11.7", tag="v1.13.1")
    assert output.data["overflow"]["level"] != "none"
    assert output.data["overflow"]["cures"][0] in output.text
    assert answer(shipped, HOST, "8.6").data["overflow"] is None


def test_a_list_is_costed_where_toolkit_and_release_are_named(shipped: Facts) -> None:
    output = answer(shipped, HOST, "8.6", cuda="11.7", tag="v1.13.1")
    three = answer(shipped, HOST, "7.0;7.5;8.6", cuda="11.7", tag="v1.13.1")
    assert output.data["estimate"]["wall"]["likely"] < three.data["estimate"]["wall"]["likely"]
    assert "of processor time" in three.text
    assert answer(shipped, HOST, "8.6", cuda="11.7").data["estimate"] is None


def test_native_and_local_stand_for_the_gpus_of_the_machine(shipped: Facts) -> None:
    host = change_host(HOST, gpus={"devices": (Gpu("NVIDIA GeForce RTX 3090", "8.6"),)})
    assert answer(shipped, host, "native").data["list"] == "8.6"
    assert answer(shipped, host, local=newest_release(shipped)).data["list"] == "8.6"


HERE = """\
arch = "x86_64"
system = "linux"
cores = 16
memory = "64 GiB"
glibc = "2.35"
processor = ["sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "bmi1", "bmi2"]
driver = "{driver}"
compiler = "gcc 11.4.0"

[[gpus]]
name = "{gpu}"
"""


def test_each_named_gpu_is_told_which_official_builds_run_on_it(shipped: Facts) -> None:
    def told(*names: str) -> str:
        return " ".join(answer(shipped, HOST, names=names).text.split())

    k80, unread = told("K80"), "as upstream says, not read"
    assert "run on it: 1.0.0 to 1.3.0 (code for 3.5), 1.3.1 to 1.4.0 (code for 3.7)" in k80
    assert (
        f"9.0 to 2.0.1 (code for 3.7), 2.1.0 to 2.6.0 (code for 3.7, {unread}), 2.7.0 to 2.7.1 (not recorded)"
        in k80
    )
    assert f"1.9.0 to 2.7.1 (code for 5.0), 2.8.0 to 2.14.1 (code for 5.0, {unread})" in told(
        "GTX 960"
    )
    on_arm = (
        f"for aarch64: 2.9.0 to 2.10.0 (code for 8.0, {unread}), 2.11.0 to 2.15.0 (code for 8.0)"
    )
    assert on_arm in told("RTX 4090")
    assert (
        "the official wheel with CUDA 13.2, `pip install torch==2.15.0`, would do as well; it is known to run on "
        "processors with sse4_1, sse4_2, avx, f16c, fma, avx2, bmi1, bmi2; it needs driver 580.65.06 or newer"
        in told("H100")
    )
    pascal = answer(shipped, HOST, names=("GTX 1080 Ti",))
    assert pascal.data["published"]["version"] == "2.7.1"
    assert answer(shipped, HOST, names=("GTX 1080 Ti",), tag="v2.8.0").data["published"] is None
    orin = told("Jetson AGX Orin")
    assert "official builds that run on it: none; build it yourself" in orin
    assert "Jetson AGX Orin comes with Cortex-A78AE: a machine with it is aarch64" in orin
    assert "no official wheel that was read fits this GPU" in orin
    assert (
        "NVIDIA has wheels for JetPack 6 (CUDA 12.6) at https://pypi.jetson-ai-lab.io/jp6/cu126; they were not"
        in orin
    )
    thor = told("Jetson AGX Thor, Jetson Thor")
    assert thor.count("it has no code for symmetric memory over NVSHMEM") == 1
    assert "it needs a JetPack whose driver runs CUDA 13.2" in thor
    assert "580.65.06" not in thor, "that is a driver of graphics cards"
    assert "armv7l no official wheel that was read fits this GPU" in told("Jetson TK1")
    nano = told("Jetson Nano")
    assert (
        "toolkits CUDA 9.0 to 10.2 driver comes with the board's JetPack torch official builds"
        in nano
    )
    assert "torch up to 1.12.1 was built with CUDA 10.2" in nano
    output = answer(shipped, HOST, names=("K80", "GTX 960"))
    assert output.data["list"] == "3.7;5.2"
    assert output.data["published"]["version"] == "2.0.1"
    assert output.data["capabilities"][1]["official"]["x86_64"]["2.7.1"] == "code for 5.0"


@pytest.mark.parametrize("name", ["GH200", "GB200", "GB300", "DGX Spark", "GB10", "12.1"])
def test_superchips_are_asked_of_aarch64(shipped: Facts, name: str) -> None:
    output = answer(shipped, HOST, names=(name,))
    assert "a machine with it is aarch64" in output.text
    assert (
        "the official wheel with CUDA 13.2, `pip install torch==2.15.0`, would do as well"
        in output.text
    )
    older = answer(shipped, HOST, names=(name,), tag="v2.10.0")
    assert older.data["published"] is None, "up to 2.10, what pip finds there is without CUDA"


def test_a_card_says_nothing_of_its_machine(shipped: Facts) -> None:
    for name in ("H100", "9.0", "RTX 5090"):
        assert "a machine with it" not in answer(shipped, HOST, names=(name,)).text


def test_a_machine_gets_its_shortest_list_the_time_it_saves_and_the_wheel_that_would_do(
    tmp_path: Path,
) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(
        HERE.format(driver="535.104.05", gpu="NVIDIA GeForce RTX 3090"), encoding="utf-8"
    )
    words = ("arch", "--local", f"--host={machine}", "--tag=v2.4.1")
    printed = run("invoke", *words, home=tmp_path).stdout
    assert "TORCH_CUDA_ARCH_LIST=8.6\n" in printed
    assert (
        "the official wheel with CUDA 12.1, `pip install torch==2.4.1`, would do as well\n"
        in printed
    )
    assert re.search(
        r"`--arch-list '8.6'` is enough: wheel-3.12-cu124 of torch 2.4.1 then takes about .* instead",
        printed,
    )
    assert json.loads(run("invoke", *words, "--json", home=tmp_path).stdout)["saving"] in printed


def test_two_gpus_of_one_kind_need_one_list(shipped: Facts) -> None:
    cards = (Gpu("A100", "8.0"), Gpu("RTX 3090", "8.6"))
    host = change_host(
        HOST,
        platform={"processor_features": MODERN},
        gpus={"devices": cards, "driver": "470.57.02"},
    )
    output = answer(shipped, host, local=newest_release(shipped))
    assert output.data["list"] == "8.0"
    assert output.data["published"]["version"] == "2.0.1", "the driver is too old for CUDA 12"
