"""Check the BLAS, a library of linear algebra, that a build links on the processor."""

from collections.abc import Iterator

from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding
from torchmill.plan.doctor.package_cures import item_cure_for_build
from torchmill.plan.system_packages import PACKAGES

_BLAS_LIBRARIES = {"MKL": "mkl", "OpenBLAS": "openblas"}  # by the value of BLAS


def check_blas(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the BLAS (linear algebra library) that the plan names."""
    blas = context.plan.variables.get("BLAS", "")
    library = _BLAS_LIBRARIES.get(blas)
    if library is None:
        return
    requirement = context.requirement(library)
    version = context.library(library)
    if requirement is not None:
        yield Finding("BLAS", f"{requirement} from PyPI", blas, "ok")
    elif version is not None:
        yield Finding("BLAS", f"{blas} {version}".rstrip(), blas, "ok")
    else:
        cure = f"install {blas} with its headers"
        if blas in PACKAGES["item"]:
            cure = item_cure_for_build(context, blas)
        because = f"without {blas} the configuration stops"
        yield absence_finding(context.host, "BLAS", blas, cures=cure, because=because)
