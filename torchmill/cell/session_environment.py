"""The session's own environment: the requirements of the build, installed into it."""

from torchmill.cell.context import BuildContext
from torchmill.host import environments
from torchmill.host.environments import Install

_LENT_TOOLS = ("cmake", "ninja")  # of no use in an environment that only lends its packages


def provide_requirements(context: BuildContext, install: Install) -> None:
    """Put the requirements of the build into the session's environment, anew if it is broken.

    `install` is called with the words of `pip install`.
    """
    own_tools = () if context.shares_tree else context.plan.tree.kit
    lender = context.plan.wheel.torch_folder

    def install_requirements(*words: str) -> None:
        if lender:
            for word in words:
                if word.startswith(_LENT_TOOLS):
                    install(word)
            environments.import_packages_of(context.venv, lender)
        install(*words)

    environments.provide_environment(
        context.venv,
        context.interpreter,
        context.environment_key,
        context.layout.environments,
        install_requirements,
        *find_links(context),
        *own_tools,
        *context.plan.requirements,
    )


def find_links(context: BuildContext) -> list[str]:
    """Return pip's option that leads to our own wheels; none for a build against another torch."""
    uses_own_torch = context.plan.wheel.torch is not None and context.options.torch is None
    return ["--find-links", str(context.layout.dist)] if uses_own_torch else []
