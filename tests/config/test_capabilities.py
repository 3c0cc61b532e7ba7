"""Lists of compute capabilities are read as PyTorch does, and judged before a build."""

from dataclasses import replace
from itertools import chain, pairwise, permutations

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.changed_facts import change_groups
from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget, capability_key, format_arch_list, is_plain_target
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import find_gpus, gpus_of_host
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.served_gpus import serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.host.host import Host, HostPlatform, HostResources
from torchmill.plan import build_plan, cell_lookup, matrix
from torchmill.plan.arch_choice import (
    check_arch_list,
    find_arch_problems,
    official_arch_list,
    shortest_arch_list,
)
from torchmill.plan.arch_toolkits import toolkits_with_target
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell

LINUX = Host(
    "x86_64",
    "linux",
    HostResources(cores=8, memory=32 * 1024**3),
    platform=HostPlatform(glibc="2.36"),
)
OLDEST = "9.0"  # the oldest toolkit that is described


def canonical_list(shipped: Facts, text: str, torch: str = "2.9.0") -> str:
    targets, problems = arch_list.parse_arch_list(shipped, text, torch)
    assert problems == []
    return format_arch_list(targets)


def complaint(shipped: Facts, text: str, torch: str = "2.9.0", gpus: tuple[Gpu, ...] = ()) -> str:
    _, problems = arch_list.parse_arch_list(shipped, text, torch, gpus)
    return "\n".join(problems)


def cell(shipped: Facts, name: str, tag: str, arch: str = "x86_64") -> Cell:
    release = find_release(shipped, "torch", tag)
    return cell_lookup.find_cell(shipped, name, arch, release)


def planned_list(
    shipped: Facts, name: str, tag: str, requested: str | None = None, host: Host = LINUX
) -> str | None:
    plan = build_plan.compute_plan(
        shipped, cell(shipped, name, tag), host, Options(arch_list=requested)
    )
    return plan.variables.get("TORCH_CUDA_ARCH_LIST")


def toolkit(shipped: Facts, version: str) -> Toolkit:
    return next(candidate for candidate in shipped.toolkits if candidate.version == version)


def capability(shipped: Facts, name: str) -> Capability:
    return next(candidate for candidate in shipped.gpus.capabilities if candidate.name == name)


def official_lists(shipped: Facts) -> list[tuple[Release, str, str]]:
    return [
        (release, cuda, text)
        for releases in shipped.releases.values()
        for release in releases
        for cuda, official in release.cuda.official.items()
        for text in official.capabilities.values()
    ]


# Agreement of the shipped facts


def test_every_official_list_is_written_as_we_write_it(shipped: Facts) -> None:
    wrong = []
    for release, cuda, text in official_lists(shipped):
        targets, problems = arch_list.parse_arch_list(shipped, text, release.torch_version)
        if problems or format_arch_list(targets) != text:
            wrong.append((release.package, release.version, cuda, text, problems))
    assert len(official_lists(shipped)) > 100
    assert wrong == []


def test_every_official_list_fits_its_toolkit_and_its_release(shipped: Facts) -> None:
    wrong = []
    for release, cuda, text in official_lists(shipped):
        if (
            capability_key(cuda) < capability_key(OLDEST)
            or shipped.packages[release.package].kernels.capabilities
        ):
            continue  # an extension has kernels for a part of torch's list only
        targets, _ = arch_list.parse_arch_list(shipped, text, release.torch_version)
        wrong += list(find_arch_problems(shipped, targets, toolkit(shipped, cuda), release))
    assert wrong == []


def test_an_extension_is_built_for_the_gpus_that_it_has_kernels_for(shipped: Facts) -> None:
    (release,) = [release for release in shipped.releases["flash-attn"] if release.torch == "2.6.0"]
    cells = matrix.possible_cells(shipped, release, "x86_64")
    cell = next(cell for cell in cells if cell.build.variant == "cu126")
    assert official_arch_list(shipped, cell) == "8.0;8.6;9.0"
    with refused("arch-list-impossible"):
        check_arch_list(shipped, "7.5;8.6", None, release, ())


def test_every_build_with_cuda_has_a_list_that_it_can_use(shipped: Facts) -> None:
    for release in chain.from_iterable(shipped.releases.values()):
        for arch in release.arches:
            for cell in matrix.possible_cells(shipped, release, arch):
                if not cell.build.cuda or cell.build.python != release.pythons[-1]:
                    continue
                text = official_arch_list(shipped, cell)
                assert text, (release.package, release.version, cell.build)
                targets, problems = arch_list.parse_arch_list(shipped, text, release.torch_version)
                assert problems == []
                cuda = toolkit(shipped, str(cell.build.cuda))
                assert list(find_arch_problems(shipped, targets, cuda, release)) == []


def test_toolkits_name_only_capabilities_that_are_described(shipped: Facts) -> None:
    described = {capability.name for capability in shipped.gpus.capabilities}
    for cuda in shipped.toolkits:
        names = list(cuda.capabilities)
        assert {name.rstrip("af") for name in names} <= described, cuda.version
        assert set(cuda.deprecated) <= set(names), cuda.version
        assert names == sorted(names, key=lambda name: (capability_key(name.rstrip("af")), name))


def test_no_toolkit_loses_and_finds_a_capability_again(shipped: Facts) -> None:
    names = set(chain.from_iterable(cuda.capabilities for cuda in shipped.toolkits))
    for name in names:
        has_code = [name in cuda.capabilities for cuda in shipped.toolkits]
        changes = [before != after for before, after in pairwise([False, *has_code, False])]
        assert sum(changes) == 2, name


def test_drivers_and_compilers_only_move_forward(shipped: Facts) -> None:
    for key in ("driver", "driver_windows", "driver_ptx"):
        texts = [getattr(cuda, key) for cuda in shipped.toolkits]
        versions = [tuple(map(int, text.split("."))) for text in texts if text]
        assert versions == sorted(versions), key
    for cuda in shipped.toolkits:
        assert cuda.driver, cuda.version


def test_every_capability_that_a_name_stands_for_is_described(shipped: Facts) -> None:
    described = {capability.name for capability in shipped.gpus.capabilities}
    for arch_name in shipped.gpus.arch_names:
        assert set(arch_name.means) <= described, arch_name.name


def test_a_name_has_one_meaning_in_each_release(shipped: Facts) -> None:
    for release in shipped.releases["torch"]:
        names = [
            arch_name.name
            for arch_name in shipped.gpus.arch_names
            if arch_name.release.contains(release.version)
        ]
        assert len(names) == len(set(names)), release.version


# Reading


@pytest.mark.parametrize(
    "text", ["8.0;8.6+PTX", "8.0 8.6+PTX", "8.6+ptx,8.0", " 8.0;\t8.6+PTX; ", "'8.0;8.6+PTX'"]
)
def test_separators(shipped: Facts, text: str) -> None:
    assert canonical_list(shipped, text) == "8.0;8.6+PTX"


def test_order_and_repetition_do_not_matter(shipped: Facts) -> None:
    entries = ["9.0a", "8.0", "12.0+PTX", "8.0+PTX", "9.0"]
    texts = {canonical_list(shipped, ";".join(order)) for order in permutations(entries)}
    assert texts == {"8.0+PTX;9.0;9.0a;12.0+PTX"}


@pytest.mark.parametrize(
    ("text", "torch", "expected"),
    [
        ("Ampere", "1.13.1", "8.0"),
        ("Ampere", "2.1.0", "8.0;8.6"),
        ("ampere+PTX", "2.1.0", "8.0;8.6+PTX"),
        ("Kepler", "1.2.0", "3.0;3.5"),
        ("Kepler", "1.3.0", "3.5"),
        ("Kepler+Tesla", "1.0.0", "3.7"),
        ("Maxwell+Tegra+PTX", "2.9.0", "5.3+PTX"),
        ("Maxwell;Pascal+PTX", "1.4.0", "5.0;5.2;6.0;6.1+PTX"),
        ("Blackwell+Tegra", "2.8.0", "10.1"),
        ("Blackwell+Tegra", "2.9.0", "11.0"),
    ],
)
def test_names_mean_what_they_mean_to_the_release(
    shipped: Facts, text: str, torch: str, expected: str
) -> None:
    assert canonical_list(shipped, text, torch) == expected


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("sm_86", "write 8.6"),
        ("sm_86+PTX", "write 8.6+PTX"),
        ("86", "write 8.6"),
        ("sm90a", "write 9.0a"),
        ("compute_86", "write 8.6+PTX"),
        ("86-real", "write 8.6"),
        ("120", "write 12.0"),
        ("8", "write 8.0"),
        ("2.1(2.0)", "write 2.1"),
        ("Amper", "did you mean Ampere?"),
        ("Hoper", "did you mean Hopper?"),
        ("All", "write official for the list of the official build"),
        ("Common", "write official for that of the official build"),
        ("Auto", "write native"),
        ("fast", "neither a compute capability"),
    ],
)
def test_unreadable_entries_are_refused_with_advice(shipped: Facts, word: str, advice: str) -> None:
    text = complaint(shipped, word)
    assert text.startswith(f"'{word}' ")
    assert advice in text


def test_a_name_of_a_later_release_is_refused_with_numbers(shipped: Facts) -> None:
    assert (
        complaint(shipped, "Ada", "1.13.1")
        == "'Ada' is not a name that torch 1.13.1 knows; write 8.9"
    )


def test_an_empty_list_is_refused(shipped: Facts) -> None:
    assert "names no compute capability" in complaint(shipped, " ; ")


def test_native_stands_for_the_gpus_of_the_machine(shipped: Facts) -> None:
    gpus = (Gpu("NVIDIA GeForce RTX 5090", "12.0"), Gpu("NVIDIA GeForce RTX 3090", "8.6"))
    targets, _ = arch_list.parse_arch_list(shipped, "native+PTX", "2.9.0", gpus)
    assert format_arch_list(targets) == "8.6;12.0+PTX"
    assert "none was found" in complaint(shipped, "native")
    assert "does not report the capability of Tesla K80" in complaint(
        shipped, "native", gpus=(Gpu("Tesla K80"),)
    )


# Judging


def refusal_of(shipped: Facts, name: str, tag: str, text: str) -> str:
    with pytest.raises(ImpossibleBuildError) as error:
        planned_list(shipped, name, tag, text)
    return str(error.value)


def test_a_list_is_made_canonical_on_its_way_into_the_plan(shipped: Facts) -> None:
    assert (
        planned_list(shipped, "wheel-3.10-cu117", "v1.13.1", "Turing, 8.6+PTX 7.0")
        == "7.0;7.5;8.6+PTX"
    )


def test_an_unsuitable_toolkit_is_refused_with_suitable_ones(shipped: Facts) -> None:
    text = refusal_of(shipped, "wheel-3.10-cu117", "v1.13.1", "9.0;8.6")
    assert "9.0: CUDA 11.7 makes no code for it, CUDA 11.8 to" in text
    assert "torch 1.13.1 builds with CUDA 11.8;" in text
    assert "8.6+PTX can stand in for it: drivers compile its PTX for 9.0, but cuBLAS, cuDNN" in text
    assert "\n  8.6" not in text, "valid entries are not mentioned"
    text = refusal_of(shipped, "wheel-3.10-cu121", "v2.1.0", "3.5")
    assert "CUDA 9.0 to 11.8 does; torch 2.1.0 builds with CUDA 11." in text
    assert "can stand for it" not in text, "nothing newer runs on it"


def test_the_first_release_with_code_is_named(shipped: Facts) -> None:
    text = refusal_of(shipped, "wheel-3.12-cu121", "v2.3.0", "12.0")
    assert "the first with code for 12.0 are CUDA 12.8, torch 2.7.0 (cu128)" in text
    assert "+PTX can stand in for it" in text


def test_code_of_an_earlier_minor_version_is_offered(shipped: Facts) -> None:
    text = refusal_of(shipped, "wheel-3.10-cu117", "v1.13.1", "8.9")
    assert "8.6 can stand in for it: its code runs on 8.9 too" in text


def test_an_unknown_capability_is_refused_with_its_neighbours(shipped: Facts) -> None:
    text = refusal_of(shipped, "wheel-3.10-cu117", "v1.13.1", "8.4")
    assert "8.4: no toolkit makes code for it; there is 8.0, 8.6, 8.7, 8.8, 8.9" in text


def test_spellings_that_the_release_cannot_read_are_refused(shipped: Facts) -> None:
    text = refusal_of(shipped, "wheel-3.11-cu121", "v2.3.1", "9.0a;8.6")
    assert "9.0a: the CMake of torch 2.3.1 cannot read it (that of torch >=2.4 can)" in text
    assert "9.0 can stand in for it" in text
    assert planned_list(shipped, "wheel-3.11-cu121", "v2.4.0", "9.0a;8.6") == "8.6;9.0a"
    assert "10.0f: the CMake of torch 2.8.0" in refusal_of(
        shipped, "wheel-3.11-cu129", "v2.8.0", "10.0f"
    )
    assert planned_list(shipped, "wheel-3.11-cu130", "v2.9.0", "10.0f") == "10.0f"


def test_packages_built_by_cpp_extension_take_only_what_it_knows(shipped: Facts) -> None:
    assert planned_list(shipped, "wheel-3.10-cu118", "v1.13.1", "8.9") == "8.9", (
        "CMake takes any number"
    )
    text = refusal_of(shipped, "vision-3.10-cu118", "v1.13.1", "8.9")
    assert "torchvision is built by torch 1.13.1's cpp_extension, which does not take it" in text
    assert "(that of torch >=2.0 does); 8.6 can stand in for it: its code runs on 8.9 too" in text
    assert "that of no release does" in refusal_of(shipped, "vision-3.12-cu130", "v2.9.0", "10.0f")


def test_kernels_that_are_empty_without_the_code_of_one_chip_get_it(shipped: Facts) -> None:
    assert planned_list(shipped, "xformers-3.12-cu130", "v2.11.0", "8.6;9.0") == "8.6;9.0a"
    assert planned_list(shipped, "xformers-3.12-cu130", "v2.11.0", "9.0a+PTX;8.0") == "8.0;9.0a+PTX"
    assert ";9.0a;" in str(planned_list(shipped, "xformers-3.12-cu130", "v2.11.0")), (
        "also in the official list"
    )
    for package in shipped.packages.values():
        assert all(toolkits_with_target(shipped, f"{name}a") for name in package.kernels.chip_code)


def test_all_problems_come_in_one_message(shipped: Facts) -> None:
    with pytest.raises(ConfigError) as error:
        planned_list(shipped, "wheel-3.10-cu117", "v1.13.1", "sm_86;Amper;9.0;3.7;10.0")
    lines = str(error.value).splitlines()
    assert lines[0] == (
        "arch list 'sm_86;Amper;9.0;3.7;10.0' cannot be used for torch 1.13.1 with CUDA 11.7:"
    )
    assert [line.split()[0] for line in lines[1:]] == ["'sm_86'", "'Amper'", "9.0:", "10.0:"]


def test_a_build_without_cuda_takes_no_list(shipped: Facts) -> None:
    with refused("arch-list-without-cuda"):
        planned_list(shipped, "wheel-3.10-cpu", "v1.13.1", "8.6")


def test_native_uses_the_host_of_the_plan(shipped: Facts) -> None:
    host = change_host(LINUX, gpus={"devices": (Gpu("NVIDIA GeForce RTX 3090", "8.6"),)})
    assert planned_list(shipped, "wheel-3.10-cu117", "v1.13.1", "native", host) == "8.6"
    with refused("arch-list-invalid"):
        planned_list(shipped, "wheel-3.10-cu117", "v1.13.1", "native")


# The default


def test_ptx_of_a_capability_that_the_toolkit_dropped_goes_to_the_next(shipped: Facts) -> None:
    build = cell(shipped, "wheel-3.10-cu121", "v2.1.0")
    official = build.release.cuda.official["11.8"]
    official = replace(official, capabilities={"x86_64": "3.7+PTX;5.0;7.0"})
    release = change_groups(build.release, cuda={"official": {"11.8": official}})
    assert official_arch_list(shipped, replace(build, release=release)) == "5.0+PTX;7.0"


def test_a_toolkit_older_than_all_official_ones_takes_the_oldest_list(shipped: Facts) -> None:
    assert planned_list(shipped, "wheel-3.12-cu126", "v2.15.0") == "7.5;8.0;8.6;9.0"


def test_a_toolkit_for_jetson_boards_makes_code_for_them(shipped: Facts) -> None:
    assert planned_list(shipped, "wheel-3.6-cu102-aarch64", "v1.7.0") == "5.3;6.2;7.2"
    assert planned_list(shipped, "wheel-3.6-cu90-aarch64", "v1.1.0") == "5.3;6.2"
    assert planned_list(shipped, "wheel-3.6-cu102", "v1.7.0") == "3.7;5.0;6.0;7.0;7.5"


# Which GPUs a list serves


def test_a_target_is_written_as_pytorch_reads_it() -> None:
    assert str(ArchTarget("9.0", "a", ptx=True)) == "9.0a+PTX"
    assert is_plain_target("9.0")
    assert not is_plain_target("9.0a")


@pytest.mark.parametrize(
    ("text", "gpu", "served_by"),
    [
        ("8.6", "8.6", "code"),
        ("8.6", "8.9", "code"),
        ("8.9", "8.6", None),
        ("8.6", "9.0", None),
        ("8.6+PTX", "9.0", "PTX"),
        ("8.6+PTX", "8.0", None),
        ("8.6", "8.7", None),
        ("8.6+PTX", "8.7", "PTX"),
        ("8.7", "8.9", None),
        ("9.0a+PTX", "10.0", None),
        ("10.0a", "10.3", None),
        ("10.0f", "10.3", "code"),
        ("10.0f", "10.7", "code"),
        ("10.0f", "10.1", None),
        ("10.0f+PTX", "12.0", None),
        ("12.0", "12.1", "code"),
    ],
)
def test_how_a_list_serves_a_gpu(
    shipped: Facts, text: str, gpu: str, served_by: str | None
) -> None:
    targets, _ = arch_list.parse_arch_list(shipped, text, "2.9.0")
    assert serving_kind(shipped, targets, capability(shipped, gpu)) == served_by


def test_the_shortest_list_serves_all_gpus(shipped: Facts) -> None:
    gpus = [gpu for gpu in shipped.gpus.capabilities if capability_key(gpu.name) >= (7, 0)]
    shortest = shortest_arch_list(shipped, gpus)
    assert all(serving_kind(shipped, shortest, gpu) == "code" for gpu in gpus)
    for target in shortest:
        rest = [other for other in shortest if other != target]
        assert any(serving_kind(shipped, rest, gpu) is None for gpu in gpus)


# GPUs by name


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("RTX 3090", {"8.6"}),
        ("3090", {"8.6"}),
        ("rtx3090", {"8.6"}),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", {"8.6"}),
        ("A100", {"8.0"}),
        ("NVIDIA A100-SXM4-40GB", {"8.0"}),
        ("NVIDIA H100 80GB HBM3", {"9.0"}),
        ("Orin", {"8.7"}),
        ("GTX 1080Ti", {"6.1"}),
        ("Titan X", {"5.2", "6.1"}),
        ("RTX 4000", {"7.5", "8.9"}),
        ("Quadro RTX 4000", {"7.5"}),
        ("T4", {"7.5"}),
        ("K80", {"3.7"}),
        ("8.6", {"8.6"}),
        ("K80, GTX 960", {"3.7", "5.2"}),
        ("K80;8.6", {"3.7", "8.6"}),
        ("K80 and GTX 960", {"3.7", "5.2"}),
        ("K80 GTX 960", {"3.7", "5.2"}),
        ("2x RTX 3080 Ti + RTX 4090", {"8.6", "8.9"}),
        ("NVIDIA A100-SXM4-40GB, 8.0", {"8.0"}),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", {"12.0"}),
        ("NVIDIA RTX PRO 1000 Blackwell Generation Laptop GPU", {"12.0"}),
        ("Tesla K40c", {"3.5"}),
        ("Tesla K40m", {"3.5"}),
        ("Tesla K20Xm", {"3.5"}),
        ("GeForce GTX 780M", {"3.0"}),  # an older GPU than that of the GTX 780
        ("GeForce GTX 1060 with Max-Q Design", {"6.1"}),
        ("GeForce RTX 2080 Super with Max-Q Design", {"7.5"}),
        ("NVIDIA RTX A2000 8GB Laptop GPU", {"8.6"}),
        ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", {"12.0"}),
        ("GRID A100-40C", {"8.0"}),
        ("GRID A100D-80C", {"8.0"}),
        ("NVIDIA A100-3-20C", {"8.0"}),
        ("NVIDIA A10-24Q", {"8.6"}),
        ("GRID V100DX-32Q", {"7.0"}),
        ("GRID RTX6000-24Q", {"7.5"}),
        ("NVIDIA H100XM-80C", {"9.0"}),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {"8.0"}),
        ("NVIDIA H100 NVL", {"9.0"}),
        ("NVIDIA GH200 480GB", {"9.0"}),
        ("NVIDIA GB10", {"12.1"}),
        ("Orin (nvgpu)", {"8.7"}),
        ("NVIDIA Jetson Orin Nano Developer Kit Super", {"8.7"}),
        ("Jetson Thor", {"11.0"}),
        ("NVIDIA Thor", {"11.0"}),
        ("Orin Nano Super", {"8.7"}),  # without "Jetson"
        ("AGX Orin 64GB", {"8.7"}),
        ("AGX Xavier Industrial", {"7.2"}),
        ("Jetson TX2i", {"6.2"}),
        ("ROG Strix RTX 3090", {"8.6"}),
        ("Tesla M4", {"5.2"}),
    ],
)
def test_gpus_are_found_as_people_and_drivers_name_them(
    shipped: Facts, name: str, capabilities: set[str]
) -> None:
    assert {match.capability.name for match in find_gpus(shipped, name)} == capabilities


def test_every_gpu_is_found_by_its_own_name(shipped: Facts) -> None:
    for described in shipped.gpus.capabilities:
        for gpu in described.gpus:
            assert {match.capability.name for match in find_gpus(shipped, gpu)} == {
                described.name
            }, gpu


@pytest.mark.parametrize("name", ["RTX 3091", "", "NVIDIA", "GeForce", ",", "K80, Foo 300"])
def test_an_unknown_gpu_is_refused(shipped: Facts, name: str) -> None:
    with refused("unknown-gpu"):
        find_gpus(shipped, name)


@pytest.mark.parametrize(
    ("name", "maker", "alternative"),
    [
        ("MI300X", "AMD", "download.pytorch.org/whl/rocm"),
        ("Radeon RX 580", "AMD", "older ones have no code in the wheels"),
        ("AMD Instinct MI210", "AMD", "whl/rocm"),
        ("Radeon RX 7900 XTX", "AMD", "whl/rocm"),
        ("rx7900xtx", "AMD", "whl/rocm"),
        ("gfx1100", "AMD", "whl/rocm"),
        ("Ryzen AI Max+ 395", "AMD", "whl/rocm"),
        ("Intel Arc A770", "Intel", "whl/xpu"),
        ("Arc B580", "Intel", "whl/xpu"),
        ("Data Center GPU Max 1550", "Intel", "whl/xpu"),
        ("Gaudi 3", "Intel", "docs.habana.ai"),
        ("Apple M1", "Apple", "includes MPS"),
        ("M2", "Apple", "includes MPS"),
        ("M3 Ultra", "Apple", "includes MPS"),
        ("M5", "Apple", "includes MPS"),
        ("Ascend 910B", "Huawei", "torch-npu"),
        ("TPU v4", "Google", "torch_xla"),
        ("MTT S80", "Moore Threads", "torch_musa"),
        ("MetaX C500", "MetaX", "not recorded"),
        ("Cambricon MLU370", "Cambricon", "gitee.com/cambricon/torch_mlu"),
        ("Trainium2", "Amazon", "PyTorch for Neuron"),
    ],
)
def test_a_device_of_another_maker_is_refused_with_an_alternative(
    shipped: Facts, name: str, maker: str, alternative: str
) -> None:
    with refused("gpu-of-another-maker") as caught:
        find_gpus(shipped, name)
    message = str(caught.value)
    assert f"is a device of {maker}" in message
    assert alternative in message
    assert "nvidia-smi" not in message


def test_a_name_of_two_makers_is_refused(shipped: Facts) -> None:
    with refused("unknown-gpu") as caught:
        find_gpus(shipped, "M4")
    assert "Tesla M4" in str(caught.value)


def test_no_gpu_of_nvidia_is_mistaken_for_another_makers(shipped: Facts) -> None:
    for described in shipped.gpus.capabilities:
        for gpu in described.gpus:
            find_gpus(shipped, f"NVIDIA {gpu}")


def test_the_gpus_of_a_machine(shipped: Facts) -> None:
    gpus = (Gpu("Tesla K80"), Gpu("NVIDIA GeForce RTX 4090", "8.9"))
    assert [match.capability.name for match in gpus_of_host(shipped, gpus)] == ["3.7", "8.9"]
    with refused("no-gpu"):
        gpus_of_host(shipped, ())
    with refused("unknown-capability"):
        gpus_of_host(shipped, (Gpu("NVIDIA Next", "99.0"),))


def test_a_driver_that_bounds_a_capability_bounds_its_own_targets_too(shipped: Facts) -> None:
    capabilities = []
    for capability in shipped.gpus.capabilities:
        bounds = SpecifierSet("<12.4") if capability.name == "9.0" else capability.jetpack
        capabilities.append(replace(capability, jetpack=bounds))
    facts = replace(shipped, gpus=replace(shipped.gpus, capabilities=tuple(capabilities)))
    for target in ("9.0", "9.0a"):
        assert toolkits_with_target(facts, target)[-1].version == "12.3"
