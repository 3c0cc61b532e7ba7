"""An upstream of the sample with a history to search: from one commit on its sums are wrong; others do not build."""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.support.source_upstream import BRANCH, git

SUMS = ("0.0);", "values.size());")  # how src/sum.cpp ends a sum, with TINY_FAST and without


@dataclass(frozen=True)
class SearchedUpstream:
    """A folder of mirrors, and the commits on the main branch after v1.0.0, in their order."""

    folder: Path
    commits: tuple[str, ...]

    @property
    def mirror(self) -> str:
        return f"--mirror=file://{self.folder}"


def make_history(
    upstream: Path, folder: Path, *, length: int, breaks: int = 0, not_built: Collection[int] = ()
) -> SearchedUpstream:
    """Copy the sample's upstream, and let its main branch go on from v1.0.0 by so many commits, numbered from 1."""
    shutil.copytree(upstream, folder)
    bare, work = folder / "tiny" / "tinytorch.git", folder / "work"
    git(folder, "clone", "-q", "-b", "v1.0.0", str(bare), str(work))
    git(work, "checkout", "-q", "-B", BRANCH)
    sums, less = work / "src" / "sum.cpp", work / "src" / "less.cpp"
    right, built = sums.read_text(encoding="utf-8"), less.read_text(encoding="utf-8")
    wrong = right
    for end in SUMS:
        assert end in right
        wrong = wrong.replace(end, end.replace(");", ") + 1;"))
    commits = []
    for number in range(1, length + 1):
        (work / "README.md").write_text(f"number {number}\n", encoding="utf-8")
        sums.write_text(wrong if breaks and number >= breaks else right, encoding="utf-8")
        less.write_text(built + ("#error\n" if number in not_built else ""), encoding="utf-8")
        git(work, "commit", "-q", "-a", "-m", f"change {number}")
        commits.append(git(work, "rev-parse", "HEAD"))
    git(work, "push", "-q", "--force", "origin", BRANCH)
    return SearchedUpstream(folder, tuple(commits))
