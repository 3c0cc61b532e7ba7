"""The CUDA toolkit of the build and NVIDIA's libraries beside it."""

from collections.abc import Iterator

from packaging.version import Version

from torchwright.doctor.finding import Finding, Question, Verdict, absent, installed_by, nothing
from torchwright.model import Cuda

_CUDNN = {"apt": "libcudnn{major}-dev", "dnf": "libcudnn{major}-devel", "conda": "cudnn={major}"}
_NAMED_AFTER_CUDA = 9  # the first major version whose packages name the toolkit's too


def check(question: Question) -> Iterator[Finding]:
    """Yield the findings on the toolkit, and on its libraries where the package uses them itself."""
    cuda = question.build.cuda
    if cuda is None:
        return
    yield _toolkit(question, cuda)
    if question.package.after is not None:
        return
    if not question.is_off("USE_CUDNN"):
        yield _cudnn(question)
    if not question.is_off("USE_NCCL"):
        yield _nccl(question)
    if (magma := official(question).magma) and not question.is_off("USE_MAGMA"):
        yield _magma(question, magma)


def official(question: Question) -> Cuda:
    """Return what the release's official build with the toolkit has, or with the nearest one not newer."""
    wanted, known = Version(question.build.cuda or "0"), question.cell.release.cuda_official
    older = [version for version in known if Version(version) <= wanted]
    return known[max(older, key=Version)] if older else Cuda()


def _toolkit(question: Question, cuda: str) -> Finding:
    host, subject = question.host, "CUDA toolkit"
    if cuda in host.toolkits:
        return Finding(subject, f"{cuda} in {host.toolkits[cuda]}", cuda, "ok")
    there = ", ".join(host.toolkits)
    because = "NVIDIA's repositories have it; one that lies elsewhere is found through CUDA_HOME"
    package = f"cuda-toolkit-{cuda.replace('.', '-')}"
    cure = installed_by(host, [f"cuda-toolkit={cuda}" if host.manager == "conda" else package])
    found = f"CUDA {there}" if there else nothing(host)
    verdict = "failure" if there else absent(host)
    return Finding(subject, found, cuda, verdict, cure, because)


def _cudnn(question: Question) -> Finding:
    subject, needs = "cuDNN", question.needs("cudnn")
    theirs = official(question).cudnn
    spoken = [str(needs), f"the official build has {theirs}" if theirs else ""]
    needed = ", ".join(filter(None, spoken)) or "any"
    if pinned := question.requirement("nvidia-cudnn"):
        return Finding(subject, f"{pinned} from PyPI", needed, "ok")
    version = question.library("cudnn")
    if version is None:
        return _no_cudnn(question, needed, theirs)
    cure = _install_cudnn(question, theirs)
    if version and not needs.met(version):
        return Finding(subject, version, needed, "failure", cure, "; ".join(needs.reasons))
    if version and theirs and not needs.bounds and _major(version) != _major(theirs):
        because = "nobody is known to have built this release with another major version than its own"
        return Finding(subject, version, needed, "warning", cure, because)
    return Finding(subject, version or "there, of an unknown version", needed, "ok")


def _no_cudnn(question: Question, needed: str, theirs: str | None) -> Finding:
    host, folder = question.host, question.out_of_sight("cudnn")
    if folder is not None:
        because = "a build does not take such variables from the shell: its options name the folder"
        cure = f"{question.session} -- --set CUDNN_ROOT={folder}"
        return Finding("cuDNN", f"only in {folder}", needed, "failure", cure, because)
    because = f"without it convolutions are slow; `{question.session} -- --set USE_CUDNN=0` is such a build"
    return Finding(
        "cuDNN",
        nothing(host),
        needed,
        absent(host),
        _install_cudnn(question, theirs),
        because if host.complete else "",
    )


def _install_cudnn(question: Question, theirs: str | None) -> str:
    name = _CUDNN.get(question.host.manager or "")
    if name is None or theirs is None:
        return "install cuDNN's headers and libraries into the toolkit's folder"
    major, cuda = _major(theirs), _major(question.build.cuda or "0")
    suffix = f"-cuda-{cuda}" if major >= _NAMED_AFTER_CUDA and question.host.manager != "conda" else ""
    return installed_by(question.host, [name.format(major=major) + suffix])


def _nccl(question: Question) -> Finding:
    needs, host = question.needs("nccl"), question.host
    if not question.is_on("USE_SYSTEM_NCCL"):
        return Finding("NCCL", "built with the release's own source", "any", "ok")
    version, needed = question.library("nccl"), str(needs) or "any"
    cure = f"{question.session} -- --set USE_SYSTEM_NCCL=0"
    if version is None:
        return Finding("NCCL", nothing(host), needed, absent(host), cure)
    if version and not needs.met(version):
        return Finding("NCCL", version, needed, "failure", cure, "; ".join(needs.reasons))
    return Finding("NCCL", version or "there, of an unknown version", needed, "ok")


def _magma(question: Question, theirs: str) -> Finding:
    version, needed = question.library("magma"), f"the official build has {theirs}"
    if version is not None:
        return Finding("MAGMA", version or "there, of an unknown version", needed, "ok")
    because = "without it, parts of torch.linalg do not run on the GPU"
    verdict: Verdict = "warning" if question.host.complete else "unknown"
    return Finding(
        "MAGMA", nothing(question.host), needed, verdict, because=because if verdict == "warning" else ""
    )


def _major(version: str) -> int:
    return Version(version).major
