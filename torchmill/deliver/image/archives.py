"""What a builder takes from its maker where no image has it: CUDA toolkits, cuDNN, NCCL, the sources of Pythons."""

from packaging.version import Version

from torchmill.config.facts_model import Archive
from torchmill.config.matrix import Cell
from torchmill.config.model import Build, Facts
from torchmill.core.errors import ConfigError
from torchmill.deliver.image.request import ImageRequest
from torchmill.plan.constraints import CellConstraints
from torchmill.plan.cuda_libraries import official_version


def toolkit_archives(facts: Facts, request: ImageRequest) -> tuple[Archive, ...]:
    """Return the toolkit's archive, and those of the libraries that go with it and with the release; () without one.

    Raises ConfigError where the facts have no archive of the toolkit for the machine.
    """
    if request.toolkit is None:
        return ()
    found = [one for one in facts.images.archives if request.arch in one.arches]
    toolkit = next((one for one in found if (one.kind, one.cuda) == ("toolkit", request.toolkit)), None)
    if toolkit is None:
        raise ConfigError(
            f"no image and no archive of CUDA {request.toolkit} for {request.arch} is known (a Jetson's comes with "
            "JetPack): give an image that has it with --base",
            code="no-base-image",
        )
    release, package = request.release, facts.packages[request.release.package]
    build = Build(package.name, package.session, request.pythons[0], request.variant, request.arch, request.toolkit)
    constraints = CellConstraints(facts, Cell(build, release))
    theirs, needs = official_version(constraints, "cudnn"), constraints.needs("cudnn", None)
    fitting = [one for one in found if one.cuda in {request.toolkit, str(Version(request.toolkit).major)}]
    cudnn = [one for one in fitting if one.kind == "cudnn" and needs.allows(one.version)]
    cudnn.sort(key=lambda one: (one.version == theirs, Version(one.version)))
    return (toolkit, *cudnn[-1:], *(one for one in fitting if one.kind == "nccl"))
