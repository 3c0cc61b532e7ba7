"""Make a complete copy of a machine's toolkit that lacks parts, with packages from PyPI."""

from collections.abc import Sequence

from torchmill.config.toolkit import ToolkitPart
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import real_path
from torchmill.fetch.toolkit.provision import (
    ProvisionContext,
    install_parts,
    require_running_nvcc,
)
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages
from torchmill.host.cuda_toolkits import FoundToolkit, format_part_names, is_spread_in_system
from torchmill.host.provisioned import TOOLKIT, ProvisionedFolder


def base_toolkit(version: str, installed: Sequence[FoundToolkit]) -> FoundToolkit:
    """Return the installed toolkit of a version, of which a complete copy is to be made.

    Raises HostError if there is none, or if its files lie among those of the system.
    """
    # The first is the one that builds use, even if another of its version could be copied.
    toolkit = next((toolkit for toolkit in installed if toolkit.version == version), None)
    cure = f"install a complete one with `invoke toolkit --cuda {version}`"
    if toolkit is None:
        names = [f"CUDA {toolkit.version} in {toolkit.home}" for toolkit in installed]
        raise HostError(
            f"--complete {version}: no toolkit of that version is installed "
            f"(found: {', '.join(names) or 'none'}): {cure}",
            code="no-toolkit-to-complete",
        )
    if is_spread_in_system(toolkit.home):
        raise HostError(
            f"--complete {version}: its files in {toolkit.home} cannot be told from the system's: "
            f"{cure}",
            code="toolkit-spread-in-system",
        )
    return toolkit


def make_complete_copy(
    toolkit: FoundToolkit,
    missing_parts: Sequence[ToolkitPart],
    arch: str,
    context: ProvisionContext,
) -> ProvisionedFolder:
    """Return a complete copy of a toolkit that lacks parts; builds then use the copy.

    `missing_parts` is not empty. Raises HostError if the toolkit's nvcc does not run here, or if no
    package has a part that every build needs. Also raises what `install_from_providers` raises.
    """
    version = toolkit.version
    cure = f"install a complete toolkit with `invoke toolkit --cuda {version}`"
    require_running_nvcc(toolkit.home, version, context.run, cure)
    packages, unavailable = find_part_packages(version, arch, missing_parts, context.sources)
    required = [part for part in unavailable if part.is_required]
    if required or not packages:
        raise HostError(
            f"CUDA {version} in {toolkit.home} lacks {format_part_names(required or unavailable)}, "
            f"which no package on PyPI has for that version and {arch}: {cure}",
            code="part-not-on-pypi",
        )
    home = str(real_path(toolkit.home))
    request = ToolkitRequest(TOOLKIT, version, cuda=None, arch=arch, completes=home)
    return install_parts(request, packages, context)
