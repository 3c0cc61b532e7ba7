"""Upstream's test files: where they lie, and which of them judge a wheel.

torch and torchvision have thousands of tests, of which build_configs/upstream_tests.toml names a
share. Of an extension all are run that its archive has: those in a folder `tests` or `test`, in
files that pytest would take. Many archives on PyPI have no tests; a folder with them, such as a
clone of the repository, can be named instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tools.proof.compared_wheels import is_extension, read_session_facts
from tools.proof.upstream_run import UpstreamTests
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError, SourceError
from torchmill.deliver.products import TESTS_OPTION, ProductOptions, VerifiedWheel
from torchmill.fetch.source.source_dir import load_source
from torchmill.fetch.source.tree import digest_contents
from torchmill.plan.cell_lookup import fetch_command

_FOLDERS = ("tests", "test")  # in which extensions have their tests
_PATTERNS = ("test_*.py", "*_test.py")  # of files that pytest takes


@dataclass(frozen=True, slots=True)
class TestFolder:
    """A folder with upstream's tests, and which of them are run."""

    path: Path  # of the folder that has the folder of tests
    tests: UpstreamTests  # with the names of all files
    title: str  # for people: "tests of torch 1.13.1, commit 49444c3e"
    identity: str  # differs if any file does

    @property
    def files(self) -> Path:
        """Return the folder of tests itself."""
        return self.path / self.tests.folder


def find_test_folder(verified: VerifiedWheel, options: ProductOptions) -> TestFolder:
    """Return the tests that judge a wheel: those in its fetched source, or in a folder of the user.

    Raises SourceError if the source is not fetched or has no tests, ConfigError if the folder of
    the user does not exist, or if the facts name no tests of torch or torchvision.
    """
    cell = verified.cell
    tests = find_tests(verified)
    if options.tests:
        return _users_folder(Path(options.tests).expanduser(), tests, str(cell.release))
    source = load_source(verified.layout, cell.build.package, cell.release.tag)
    if source is None:
        raise SourceError(
            f"the tests of {cell.release} are in its source: "
            f"run `{fetch_command(verified.facts, cell)}`",
            code="source-not-fetched",
        )
    tests = _with_files(source.path, tests)
    if not tests.files:
        raise SourceError(
            f"{source.origin} has no tests of {cell.release}, in no folder {' or '.join(_FOLDERS)}; "
            f"{tests.elsewhere or 'its repository'} may have them: unpack that, and name its folder, "
            f"as in `nox -s check-{verified.plan.identifier} -- {TESTS_OPTION} FOLDER`",
            code="no-tests-in-source",
        )
    title = f"tests of {cell.release}, {source.title}"
    return TestFolder(source.path, tests, title, source.identity)


def find_tests(verified: VerifiedWheel) -> UpstreamTests:
    """Return upstream's tests that judge a wheel by the facts, or all tests of an extension.

    The latter have no names of files yet. Raises ConfigError if the facts name none of another
    package.
    """
    package = verified.cell.build.package
    candidates = read_session_facts(
        verified, "upstream_tests", lambda file: file.read_each(package, UpstreamTests)
    )
    for tests in candidates:
        if is_within(tests.release, verified.cell.release.version):
            return tests
    if is_extension(verified):
        return UpstreamTests(requires=("pytest",), source="tools/proof/test_files.py")
    raise ConfigError(
        f"build_configs/upstream_tests.toml names no tests of {verified.cell.release}: "
        f"add them as [[{package}]]",
        code="no-upstream-tests",
    )


def _users_folder(folder: Path, tests: UpstreamTests, release: str) -> TestFolder:
    """Return the tests in a folder that the user named: a clone, or its folder of tests."""
    if not folder.is_dir():
        raise ConfigError(f"{TESTS_OPTION} {folder}: there is no such folder", code="no-such-tests")
    # What an archive lacks, a clone may have.
    tests = replace(tests, left_out={})
    found = _with_files(folder, tests)
    path = folder
    if not found.files:
        path = folder.resolve().parent
        found = _with_files(path, replace(tests, folder=folder.resolve().name))
    if not found.files:
        raise ConfigError(
            f"{TESTS_OPTION} {folder}: has no file {' or '.join(_PATTERNS)}, "
            f"in no folder {' or '.join(_FOLDERS)} either",
            code="no-such-tests",
        )
    digest = digest_contents(path / found.folder)
    return TestFolder(path, found, f"tests of {release}, in {folder}", f"contents {digest}")


def _with_files(path: Path, tests: UpstreamTests) -> UpstreamTests:
    """Return tests with the folder and the files that a source has; without files if it has none."""
    if tests.files:
        return tests
    for folder in [tests.folder] if tests.folder else _FOLDERS:
        files = dict(_all_files(path / folder, tests.left_out))
        if files:
            return replace(tests, folder=folder, files=files)
    return tests


def _all_files(folder: Path, left_out: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield the test files below a folder, with the whole of their tests as a share."""
    files: set[str] = set()
    for pattern in _PATTERNS:
        files.update(path.relative_to(folder).as_posix() for path in folder.rglob(pattern))
    for file in sorted(files):
        if file not in left_out:
            yield file, 1.0
