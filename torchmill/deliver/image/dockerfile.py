"""The blocks of Dockerfiles: none needs BuildKit, so docker, podman and buildah take them alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchmill.deps import INSTALL
from torchmill.model import BaseImage

# hadolint wants versions pinned: why they are not stands in each Dockerfile.
UNPINNED = "Versions are not pinned: archives drop one when the next comes, and it is not found any more."
# Of the user that works in an image: a number, because that tells without a look into the image that it is
# not root; not 1000, which some images have given away.
UID = 10001
RULES = {"apt": "DL3008", "dnf": "DL3041", "yum": "DL3033"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image as files: what is written, what is copied, and what the user should know."""

    texts: dict[str, str]  # path in the folder -> content
    copied: dict[
        str, str
    ]  # path in the folder -> "suite", "requirements.txt", or the name of a wheel in dist/
    notes: tuple[str, ...]  # warnings
    programs: frozenset[str] = frozenset()  # those of `texts` that are executable
    run: str = ""  # how a container of it is started; {image} stands for its name


def joined(blocks: Iterable[str]) -> str:
    """Return a Dockerfile of its blocks; empty ones are left out."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def start(base: BaseImage, stage: str = "") -> str:
    """Return the FROM of a base image, with where its digest comes from, or that it has none."""
    name = f" AS {stage}" if stage else ""
    if base.digest:
        said = f"# {base.named}: {base.source}" if base.source else f"# {base.named}"
        return f"{said}\nFROM {base.reference}{name}"
    lines = [f"# {base.named} has no digest here: what the name stands for can change."]
    if ":" not in base.reference.rpartition("/")[2]:
        lines.append("# hadolint ignore=DL3006")
    elif base.tag == "latest":
        lines.append("# hadolint ignore=DL3007")
    return "\n".join((*lines, f"FROM {base.reference}{name}"))


def note(base: BaseImage) -> str:
    """Return the warning about a base image without a digest; "" where it has one."""
    if base.digest:
        return ""
    return (
        f"{base.named} is not pinned: its name can stand for another image tomorrow; "
        "give the one that you tried with --base NAME@sha256:DIGEST"
    )


def check(base: BaseImage, like: BaseImage, commands: Iterable[str] = ()) -> str:
    """Return a step that refuses a given image which is not like the known one; "" for a known one.

    `commands` are programs that it must have.
    """
    if base.distribution:
        return ""
    wanted = f"{like.distribution} {like.version}"
    refusal = f"torchmill: the base image is $ID $VERSION_ID, and {wanted} is needed: see --base"
    steps = [
        ". /etc/os-release",
        'case "$ID $VERSION_ID" in',
        f'      "{wanted}"*) ;;',
        f'      *) echo "{refusal}" >&2; exit 1 ;;',
        "    esac",
    ]
    shown = f"RUN {steps[0]} \\\n && " + " \\\n".join(steps[1:])
    return " \\\n && ".join((shown, *map(has, commands)))


def user(name: str) -> str:
    """Return the step that makes the user who works in an image."""
    return f"RUN useradd --create-home --shell /bin/bash --uid {UID} {name}"


def has(command: str) -> str:
    """Return a shell command that refuses an image without a program."""
    said = f"torchmill: the base image has no {command}: give one that has it with --base"
    return f'{{ command -v {command} > /dev/null || {{ echo "{said}" >&2; exit 1; }}; }}'


def install(base: BaseImage, packages: Iterable[str]) -> str:
    """Return the step that installs system packages and leaves nothing but them."""
    names = [name for name in dict.fromkeys(packages) if name not in base.lacks]
    if not names:
        return ""
    listed = " \\\n".join(f"        {name}" for name in names)
    begin, end = {
        "apt": (
            f"apt-get update \\\n && DEBIAN_FRONTEND=noninteractive {' '.join(INSTALL['apt'])}",
            "rm -rf /var/lib/apt/lists/*",
        ),
        "dnf": ("dnf install -y --setopt=install_weak_deps=False", "dnf clean all"),
        "yum": ("yum install -y", "yum clean all"),
    }[base.manager]
    ignored = f"# {UNPINNED}\n# hadolint ignore={RULES[base.manager]}\n"
    return f"{ignored}RUN {begin} \\\n{listed} \\\n && {end}"


def environment(variables: dict[str, str]) -> str:
    """Return the ENV of variables."""
    return "ENV " + " \\\n    ".join(f"{name}={value}" for name, value in variables.items())


def labels(values: dict[str, str]) -> str:
    """Return the LABEL of values, quoted."""
    quoted = (f'{name}="{value}"' for name, value in values.items())
    return "LABEL " + " \\\n      ".join(quoted)
