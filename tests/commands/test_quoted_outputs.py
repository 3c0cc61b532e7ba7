"""Outputs that pages quote, and that change with each new toolkit, are those of the commands."""

import shlex

from tests.support.commands import ROOT, InvokeHere
from torchmill.config.facts import Facts
from torchmill.fetch.toolkit.request import (
    ProviderRefusal,
    ToolkitRequest,
    candidate_sources,
    refusal_message,
)
from torchmill.host.provisioned import TOOLKIT

HOW_TO = ROOT / "docs" / "how-to"


def quoted_example(page: str, error: str) -> tuple[str, str]:
    """Return the command and the output of the example of a page that ends with an error."""
    text = (HOW_TO / page).read_text("utf-8")
    blocks = [block for block in text.split("```")[1::2] if f"error[{error}]" in block]
    (block,) = blocks
    command, _, output = block.strip().partition("\n")
    return command.removeprefix("$ invoke "), output


def test_the_refused_arch_list_is_as_quoted(invoke: InvokeHere) -> None:
    command, output = quoted_example("choose-gpu-architectures.md", "arch-list-invalid")
    code, _, error = invoke(command)
    assert (code, error.strip()) == (2, output)


def test_the_refusal_of_all_providers_is_as_quoted(shipped: Facts) -> None:
    command, output = quoted_example("install-a-cuda-toolkit.md", "no-provider")
    version = shlex.split(command)[-1]
    request = ToolkitRequest(TOOLKIT, version, None, "x86_64")
    # conda has the toolkit: the page shows that it cannot be reached.
    conda = "conda.anaconda.org cannot be reached (no answer in 5 s)"
    refusals = [ProviderRefusal("conda", conda)]
    for provider in ("debian", "pypi"):
        answer = candidate_sources(request, provider, shipped.toolkit_sources)
        assert isinstance(answer, ProviderRefusal)
        refusals.append(answer)
    assert f"error[no-provider]: {refusal_message(request, refusals)}" == output


def test_drivers_of_major_versions_are_as_quoted(shipped: Facts) -> None:
    page = (HOW_TO / "choose-gpu-architectures.md").read_text("utf-8")
    (sentence,) = [line for line in page.splitlines() if line.startswith("the toolkit's major")]
    newest = shipped.toolkits[-1]
    assert f"{newest.driver} for {newest.version.partition('.')[0]}" in sentence
