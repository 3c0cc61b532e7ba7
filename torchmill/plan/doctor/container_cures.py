"""How to build in a container if the host itself cannot build."""

from torchmill.config.release_lookup import selecting_tag
from torchmill.plan.doctor.finding import CheckContext

ENGINES = ("docker", "podman")


def container_cures(context: CheckContext) -> tuple[str, ...]:
    """Return how to build in a container; () if the host is not known to have an engine."""
    if context.host.system != "linux" or set(ENGINES).isdisjoint(context.host.programs.paths):
        return ()
    identifier = context.build.identifier("")  # with the arch: `invoke build` then uses a container
    tag = selecting_tag(context.facts, context.cell.release)
    return (f"in a container: `invoke build {identifier} --tag {tag}`",)


def glibc_cure(context: CheckContext) -> str:
    """Return how to build on a system with glibc: in a container, or in an image for other hosts."""
    cures = container_cures(context)
    if cures:
        return cures[0]
    build = context.build
    tag = selecting_tag(context.facts, context.cell.release)
    recipe = f"invoke image --kind builder --tag {tag} --python {build.python}"
    if context.plan.cuda.toolkit:
        recipe += f" --toolkit {context.plan.cuda.toolkit}"
    if build.arch != context.host.arch:
        recipe += f" --arch {build.arch}"
    return (
        "build on a system with glibc, such as an image of Debian or AlmaLinux "
        f"(`{recipe}` writes a Dockerfile)"
    )
