"""Offer to draft packages that `invoke build` is asked for and that have no facts."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from torchmill.commands.terminal import agree
from torchmill.config import remembered_facts
from torchmill.config.facts import Facts
from torchmill.config.own_facts import merge_facts
from torchmill.core.console import format_for_user
from torchmill.core.errors import ConfigError
from torchmill.core.exits import print_now
from torchmill.core.paths import CHECKOUT, CONFIGS, Layout
from torchmill.plan.build_options import Options
from torchmill.plan.cell_lookup import undescribed_packages


def offer_drafts(
    facts: Facts, layout: Layout, names: Iterable[str], tag: str, options: Options, *, asks: bool
) -> Facts:
    """Return the facts with those of packages that were unknown, if the user lets them be drafted.

    Nobody is asked without a terminal, and unless the command may ask (`asks`): to draft a package
    downloads what somebody else wrote, and runs its setup.py, which a misspelled name must not do.
    After the first no, the others are not asked about. Raises ConfigError if a draft has no plan,
    and the errors of `add_package`.
    """
    if not asks or not sys.stdin.isatty():
        return facts
    undescribed = undescribed_packages(facts, names)
    if undescribed:
        # It imports all that reads and tries sources, which few builds need.
        from torchmill.commands.add.command import add_package
    for name in undescribed:
        question = (
            f"torchmill has no facts about {name}. Draft them (`invoke add {name}`: downloads its "
            "source, and runs its setup.py without a network)?"
        )
        if not agree(question, yes=False, default=False):
            return facts
        output = add_package(facts, layout, source=name, tag=tag, options=options)
        print_now(format_for_user(str(output)))
        if output.exit_code:
            raise ConfigError(
                f"the draft of {name} has no plan: look at what is named above, and run the same "
                "command again",
                code="draft-without-plan",
            )
        facts = _read_anew(layout)
    return facts


def _read_anew(layout: Layout) -> Facts:
    """Return the facts after a draft was written; an installed suite merges them anew.

    TORCHMILL_CONFIGS of this process then names the merged folder.
    """
    from torchmill.commands.add.command import OWN_FACTS

    own_facts = os.environ.get(OWN_FACTS)
    if own_facts:
        merged = merge_facts(Path(own_facts), CHECKOUT / "build_configs", layout.cache / CONFIGS)
        # For the sessions, too, which this command will start.
        os.environ["TORCHMILL_CONFIGS"] = str(merged or CHECKOUT / "build_configs")
    return remembered_facts.load_facts(CHECKOUT)
