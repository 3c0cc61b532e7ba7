"""The GPUs of a machine as the default of the list of capabilities."""

from typing import Any

import pytest

from tests.support.gpu_builds import build_context, host_with_gpus
from torchmill.config.facts import Facts
from torchmill.plan import cell_lookup
from torchmill.plan.build_options import Options
from torchmill.plan.local_gpus import with_local_gpus


@pytest.mark.parametrize(
    ("names", "gpus", "options", "listed"),
    [
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 3090"], {}, "8.6"),
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 3090", "Tesla T4"], {}, "7.5;8.6"),
        # The toolkit makes no code for the first.
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 5090", "Tesla T4"], {}, "7.5"),
        ("wheel-3.12-cu124 v2.4.1", ["NVIDIA GeForce RTX 5090"], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cu124 v2.4.1", ["an unknown GPU"], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["Tesla T4"],
            {"arch_list": "official"},
            "5.0;6.0;7.0;7.5;8.0;8.6;9.0",
        ),
        ("wheel-3.12-cu124 v2.4.1", ["Tesla T4"], {"arch_list": "8.0"}, "8.0"),
        (
            "wheel-3.12-cu124 v2.4.1",
            ["Tesla T4"],
            {"settings": {"TORCH_CUDA_ARCH_LIST": "9.0"}},
            "9.0",
        ),
        ("wheel-3.12-cu124 v2.4.1", ["Tesla T4"], {"shard": "1/4"}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cu124 v2.4.1", [], {}, "5.0;6.0;7.0;7.5;8.0;8.6;9.0"),
        ("wheel-3.12-cpu v2.4.1", ["Tesla T4"], {}, ""),
        ("flash-3.12-cu126 v2.9.1", ["Tesla T4"], {}, "8.0;8.6;9.0"),  # it has no kernels for it
        ("flash-3.12-cu126 v2.9.1", ["NVIDIA A100-SXM4-40GB"], {}, "8.0"),
    ],
)
def test_the_gpus_of_a_machine_are_the_default_of_a_list(
    shipped: Facts, names: str, gpus: list[str], options: dict[str, Any], listed: str
) -> None:
    context = build_context(shipped, names, host_with_gpus(*gpus), **options)
    assert context.plan.arch_list == listed


def test_gpus_whose_driver_is_too_old_are_no_default(shipped: Facts) -> None:
    host = host_with_gpus("NVIDIA GeForce RTX 3090", driver="550.54.15")
    context = build_context(shipped, "wheel-3.12-cu130 v2.10.0", host)
    assert len(context.plan.arch_list.split(";")) > 1


def test_gpus_of_this_machine_are_no_default_for_another(shipped: Facts) -> None:
    host = host_with_gpus("Tesla K80", driver="470.57.02")
    cell = cell_lookup.find_cell(shipped, "wheel-3.12-cu124-aarch64", "x86_64", None)
    assert with_local_gpus(shipped, cell, host, Options()) == Options()


@pytest.mark.parametrize(
    ("gpus", "options", "is_named"),
    [
        (["NVIDIA GeForce RTX 3090"], {}, True),
        (["NVIDIA GeForce RTX 3090"], {"arch_list": "official"}, True),
        (["NVIDIA GeForce RTX 3090"], {"arch_list": "8.0"}, False),
        # The default list is without the first, for which the toolkit makes no code.
        (["NVIDIA GeForce RTX 5090", "Tesla T4"], {}, True),
    ],
)
def test_a_plan_names_the_official_wheel_unless_the_user_chose_a_list(
    shipped: Facts, gpus: list[str], options: dict[str, Any], is_named: bool
) -> None:
    host = host_with_gpus(*gpus)
    context = build_context(shipped, "wheel-3.12-cu124 v2.4.1", host, **options)
    assert (context.plan.official.published is not None) is is_named
