"""Whether all wheels of a version require the same: uv asks one of them, and believes it of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from torchmill.deliver.index.entry import Entry
from torchmill.pack import needs


def differences(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a sentence for each version whose wheels differ in what they require."""
    versions: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        versions[entry.name, str(entry.version)].append(entry)
    for (name, version), wheels in versions.items():
        first, *others = [
            (one.file, needs.of(one.requires_python, one.requires, one.extras)) for one in wheels
        ]
        if told := next(filter(None, (needs.difference(first, other) for other in others)), ""):
            yield f"{name} {version}: {told}"
