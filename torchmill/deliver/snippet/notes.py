"""What should be known of a decision beside its pins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchmill.deliver.snippet import platforms
from torchmill.deliver.snippet.building import Lacking, advice
from torchmill.deliver.snippet.words import Pin, Request, Stock
from torchmill.matrix import python_key
from torchmill.model import Facts


def noted(
    facts: Facts, stock: Stock, request: Request, pins: Sequence[Pin], pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line for whatever is not as it was asked for, with what would have to be built."""
    for arch in request.platforms:
        here = [pin for pin in pins if pin.arch == arch]
        yield from _substitute(facts, request, here, pythons)
    yield from _left_out(facts, request, pins, pythons)
    used = {f"{pin.package} {pin.version}:" for pin in pins if pin.offers}
    yield from (warning for warning in stock.warnings if warning.startswith(tuple(used)))


def _substitute(facts: Facts, request: Request, pins: Sequence[Pin], pythons: Sequence[str]) -> Iterator[str]:
    """Yield what is taken on a platform for want of a wheel of ours, or of the variant."""
    first, *_ = pins
    where = platforms.name(first.arch)
    if first.variant != request.variant and first.arch.system != "macos":
        yield f"{where}: there is no {request.variant} wheel, so this is the {first.variant} one"
    if not first.offers:
        lacking = [Lacking(pin.package, pin.variant, python, pin.arch) for python in pythons for pin in pins]
        yield f"{where}: wheels of {first.place.url}; for ours, {advice(facts, request, lacking)}"


def _left_out(facts: Facts, request: Request, pins: Sequence[Pin], pythons: Sequence[str]) -> Iterator[str]:
    """Yield which of our Pythons a project cannot have, and for want of which wheels."""
    ours = {python for pin in pins if pin.offers for python in pin.pythons if not python.endswith("t")}
    for python in sorted(ours - set(pythons), key=python_key):
        without = [pin for pin in pins if python not in pin.pythons]
        where = ", ".join(f"{pin.package} on {platforms.name(pin.arch)}" for pin in without)
        lacking = [Lacking(pin.package, pin.variant, python, pin.arch) for pin in without]
        yield f"not for Python {python}: no wheel of {where}; {advice(facts, request, lacking)}"
