"""The session's own environment: the requirements of the build, installed into it."""

from pathlib import Path

from torchmill.cell.context import BuildContext
from torchmill.host import environments
from torchmill.host.environments import Install
from torchmill.toolchain import compiler_cache

# Requirements with programs that the build calls. Another environment that lends its packages does
# not lend its programs.
_TOOLS = ("cmake", "ninja")
# To import it here would change torch in this process.
_WITHOUT_CUDA = Path(compiler_cache.__file__).with_name("without_cuda.py")


def provide_requirements(context: BuildContext, install: Install) -> None:
    """Put the requirements of the build into the session's environment, anew if it is broken.

    `install` is called with the words of `pip install`.
    """
    # A shared tree has a kit with these tools.
    tools = () if context.shares_tree else context.plan.tree.kit
    lent_packages = context.plan.wheel.torch_folder  # of the environment with the user's torch

    def install_requirements(*words: str) -> None:
        """Install as `install` does, and let the environment import the user's torch."""
        if lent_packages:
            # First the tools: afterwards pip would take the lent ones for installed.
            for word in words:
                if word.startswith(_TOOLS):
                    install(word)
            environments.add_package_folder(context.venv, lent_packages)
        install(*words)
        if context.plan.wheel.torch is not None and context.plan.cuda.toolkit is None:
            # The torch of a user's environment or of PyPI may have CUDA, and so may this machine.
            environments.import_at_start(context.venv, _WITHOUT_CUDA)

    environments.provide_environment(
        context.venv,
        context.interpreter,
        context.environment_key,
        context.layout.environments,
        install_requirements,
        *find_links(context),
        *tools,
        *context.plan.requirements,
    )


def find_links(context: BuildContext) -> list[str]:
    """Return pip's option for wheels in dist/; none unless the build uses a torch from there."""
    if context.plan.wheel.torch is None or context.options.torch is not None:
        return []
    return ["--find-links", str(context.layout.dist)]
