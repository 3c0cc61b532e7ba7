"""Make a toolkit that compiles for another machine: programs of this one, libraries of that one.

nvcc makes host code for the machine of the C++ compiler that it is given, and then looks for
libraries and headers in `targets/MACHINE` of its own toolkit.
"""

from torchmill.config.versions import is_within
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import real_path
from torchmill.fetch.toolkit.provision import (
    ProvisionContext,
    install_parts,
    require_running_nvcc,
)
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages
from torchmill.host.cuda_toolkits import FoundToolkit, format_part_names, is_spread_in_system
from torchmill.host.native import native_arch
from torchmill.host.provisioned import TOOLKIT, ProvisionedFolder


def make_crossing_toolkit(
    toolkit: FoundToolkit, arch: str, context: ProvisionContext
) -> ProvisionedFolder:
    """Return a toolkit for another arch, with the programs of one of this machine.

    Headers and libraries are those of NVIDIA's packages for that arch. Raises HostError if the nvcc
    does not run here, if its files lie among those of the system, or if no package has a part that
    every build needs. Also raises what `install_from_providers` raises.
    """
    version = toolkit.version
    cure = f"install a toolkit with `invoke toolkit --cuda {version} --from pypi`"
    require_running_nvcc(toolkit.home, version, context.run, cure)
    if is_spread_in_system(toolkit.home):
        raise HostError(
            f"the files of CUDA {version} in {toolkit.home} cannot be told from the system's: "
            f"{cure}",
            code="toolkit-spread-in-system",
        )
    packages, unavailable = find_part_packages(version, arch, context.parts, context.sources)
    required = []
    for part in unavailable:
        if part.is_required and is_within(part.cuda, version):
            required.append(part)
    if required or not packages:
        raise HostError(
            f"no package on PyPI has {format_part_names(required) or 'parts'} of CUDA {version} for "
            f"{arch}: build for another CUDA (`invoke toolkit --list` shows which there are)",
            code="part-not-on-pypi",
        )
    home = str(real_path(toolkit.home))
    request = ToolkitRequest(
        TOOLKIT, version, cuda=None, arch=arch, completes=home, programs_of=native_arch()
    )
    return install_parts(request, packages, context)
