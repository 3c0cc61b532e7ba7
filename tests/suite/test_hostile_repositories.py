"""What a repository brings is data: no command runs it, follows it out of the clone, or deletes because of it."""

import subprocess
from pathlib import Path

import pytest

from tests.support import hostile
from tests.support.hostile import HARMLESS, ONLY_ARCHIVES, REFUSED, Victim
from tests.support.installed import install_suite, run_torchmill
from torchmill.commands.clean.command import KIND_NAMES
from torchmill.core import homes
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout

WHEEL_CELL = ("wheel-3.12-cpu", "--tag=v2.4.1")
READING = (
    ("matrix", "--tag=v2.4.1"),
    ("plan", *WHEEL_CELL),
    ("explain", *WHEEL_CELL),
    ("doctor", *WHEEL_CELL),
    ("status",),
    ("jobs", *WHEEL_CELL),
    ("facts",),
    ("verify",),
    ("report",),
    ("snippet", "--tool=uv"),
    ("build", "--dry-run", "--tag=v2.4.1", "--python=3.12", "--cuda=cpu"),
    ("clean", "--age=0s", "--dry-run"),
    ("nox", "-l"),
)
WRITING = (
    ("clean", "--age=0s"),
    ("clean", *(f"--kind={kind}" for kind in KIND_NAMES)),
    ("index",),
    ("image", "--kind=builder", "--tag=v2.4.1", "--python=3.12"),
    ("image", "--kind=devcontainer", "--tag=v2.4.1", "--python=3.12"),
    ("init", "--github"),
)
FORMS = [
    pytest.param(name, cloned, id=f"{name}-{'clone' if cloned else 'archive'}")
    for name in (*REFUSED, *HARMLESS)
    for cloned in (True, False)
    if not (cloned and name in ONLY_ARCHIVES)
]
GRAVE = (
    "old-facts-link",
    "trees-link",
    "modules",
)  # which the default run tries through the command


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_suite(tmp_path_factory.mktemp("site"))


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return hostile.make_victim(tmp_path / "home")


def layout_of(victim: Victim) -> Layout:
    return Layout(victim.repo, victim.home.with_name("cache") / "torchmill")


def changes(victim: Victim, before: dict[str, tuple[object, ...]]) -> list[str]:
    """Return what differs from a snapshot of the victim's home; new files in the clone do not count."""
    after = hostile.snapshot(victim.home)
    return sorted(
        path
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path) and (path in before or not path.startswith("repo/"))
    )


@pytest.mark.parametrize(("name", "cloned"), FORMS)
def test_state_and_links_of_a_repository_are_refused(
    name: str, cloned: bool, victim: Victim
) -> None:
    hostile.build_repository(name, victim, cloned=cloned)
    before = hostile.snapshot(victim.home)
    refusal = ""
    try:
        homes.require_own_home(layout_of(victim))
    except ConfigError as error:
        refusal = error.code
    expected = {"tracked-state", "foreign-link"} if cloned else {"foreign-state", "foreign-link"}
    # Links to facts are read, within limits, if no git tells whose they are.
    tracked_links: set[str] = set()
    if cloned:
        tracked_links = {"fact-endless", "fact-file-link", "patch-folder-link"}
        tracked_links |= {"init-schemas-link", "init-schema-link"}
    if name in REFUSED or name in tracked_links:
        assert refusal in expected
    else:
        assert refusal == ""
    assert hostile.snapshot(victim.home) == before


@pytest.mark.parametrize("name", GRAVE)
def test_the_command_leaves_the_home_of_its_user_alone(
    name: str, victim: Victim, site: Path
) -> None:
    hostile.build_repository(name, victim, cloned=True)
    before = hostile.snapshot(victim.home)
    for words in (READING[0], WRITING[1]):
        done = run_torchmill(site, victim.home, victim.repo, *words)
        assert (done.returncode == ConfigError.exit_code) == (name in REFUSED), done.stderr
    assert changes(victim, before) == []
    assert not victim.canary.exists()


@pytest.mark.long
@pytest.mark.parametrize(("name", "cloned"), FORMS)
def test_no_command_runs_follows_or_deletes(
    name: str, cloned: bool, victim: Victim, site: Path
) -> None:
    hostile.build_repository(name, victim, cloned=cloned)
    before = hostile.snapshot(victim.home)
    for words in (*READING, *WRITING):
        done = run_torchmill(site, victim.home, victim.repo, *words)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert "a bug" not in done.stderr, (words, done.stderr)
        assert changes(victim, before) == deleted_by(name, words, cloned=cloned), words
        assert not victim.canary.exists(), words
        if name in REFUSED and words[0] != "init":
            assert done.returncode != 0, words


def deleted_by(name: str, words: tuple[str, ...], *, cloned: bool) -> list[str]:
    """Return the paths in the repository that its user has asked to remove: wheels that git does not track."""
    # The first of the commands that write, `clean` without kinds, leaves wheels alone.
    removes = words in WRITING[1:]
    if not removes or cloned or name != "wheels":
        return []
    return [f"repo/dist/{hostile.WHEEL}", f"repo/dist/{hostile.WHEEL}.json"]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in (*REFUSED, *HARMLESS) if name not in ONLY_ARCHIVES]
)
def test_a_home_that_the_user_names_follows_no_tracked_link(
    name: str, victim: Victim, site: Path
) -> None:
    hostile.build_repository(name, victim, cloned=True)
    before = hostile.snapshot(victim.home)
    for words in (
        READING[0],
        READING[4],
        *WRITING[:-1],
    ):  # `init` writes to the folder that it is called in
        done = run_torchmill(site, victim.home, victim.home, *words, named=victim.repo)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert changes(victim, before) == [], words


# What the user made is his


def git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@b")
    subprocess.run(["git", *author, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def clone(victim: Victim) -> Victim:
    hostile.build_repository("index", victim, cloned=True)
    return victim


def test_a_link_that_the_user_made_in_a_clone_is_followed(clone: Victim) -> None:
    (clone.repo / "dist").symlink_to(clone.loot)
    homes.require_own_home(layout_of(clone))
    git(clone.repo, "add", "--force", "dist")
    with pytest.raises(ConfigError) as refused:
        homes.require_own_home(layout_of(clone))
    assert refused.value.code == "foreign-link"


def test_a_link_in_a_folder_without_git_is_the_users_once_he_says_so(victim: Victim) -> None:
    victim.repo.mkdir()
    layout = layout_of(victim)
    (victim.repo / "dist").symlink_to(victim.loot)
    with pytest.raises(ConfigError) as refused:
        homes.require_own_home(layout)
    assert refused.value.code == "foreign-link"
    homes.trust_home(layout)
    homes.require_own_home(layout)
    (victim.repo / "dist").unlink()
    (victim.repo / "dist").symlink_to(victim.home)  # another one
    with pytest.raises(ConfigError):
        homes.require_own_home(layout)


def test_state_that_was_marked_is_the_users(clone: Victim) -> None:
    layout = layout_of(clone)
    homes.mark_home(layout)
    hostile.write(clone.repo / ".torchmill" / "trees" / hostile.TREE / "key", "k")
    homes.require_own_home(layout)
    homes.mark_home(layout)
    assert len((clone.repo / ".torchmill" / homes.MARK).read_text("utf-8").split()) == 1


def test_a_mark_is_of_one_folder_and_one_user(clone: Victim) -> None:
    layout = layout_of(clone)
    homes.mark_home(layout)
    moved = Layout(clone.repo.rename(clone.home / "moved"), layout.cache)
    other = Layout(moved.root, clone.home.with_name("cache-of-another") / "torchmill")
    for home in (moved, other):
        with pytest.raises(ConfigError) as refused:
            homes.require_own_home(home)
        assert refused.value.code == "foreign-state"
        homes.trust_home(home)
    homes.require_own_home(moved)
    homes.require_own_home(other)


def test_what_a_pull_adds_to_marked_state_is_refused(clone: Victim) -> None:
    homes.mark_home(layout_of(clone))
    origin = clone.home.with_name("origin")
    hostile.write(origin / ".torchmill" / "sources" / "torch" / "v1.13.1" / "source.json", "{}")
    git(origin, "add", "--force", "--all")
    git(origin, "commit", "--message=x")
    git(clone.repo, "pull", "--quiet")
    with pytest.raises(ConfigError) as refused:
        homes.require_own_home(layout_of(clone))
    assert refused.value.code == "tracked-state"


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_each_format_of_an_index_is_read_in_worktrees_and_subfolders(
    version: str, victim: Victim
) -> None:
    hostile.build_repository("trees-link", victim, cloned=True)
    tree = victim.home / "tree"
    git(victim.repo, "worktree", "add", "--quiet", str(tree), "-b", f"v{version}")
    git(tree, "update-index", f"--index-version={version}")
    with pytest.raises(ConfigError) as refused:
        homes.require_untracked_state(tree)
    assert refused.value.code == "tracked-state"
    homes.require_untracked_state(victim.home)


def test_links_are_foreign_if_the_index_of_git_cannot_be_read(clone: Victim) -> None:
    (clone.repo / "dist").symlink_to(clone.loot)
    (clone.repo / ".git" / "index").write_bytes(b"DIRC\0\0\0\x09 of another day")
    with pytest.raises(ConfigError) as refused:
        homes.require_own_home(layout_of(clone))
    assert refused.value.code == "foreign-link"


@pytest.mark.slow
def test_a_fresh_clone_has_state_only_from_those_who_write_it(clone: Victim, site: Path) -> None:
    for words in (
        ("status",),
        ("image", "--kind=builder", "--tag=v2.4.1", "--python=3.12"),
        ("status",),
    ):
        done = run_torchmill(site, clone.home, clone.repo, *words)
        assert done.returncode == 0, done.stderr
        assert (clone.repo / ".torchmill").exists() == (
            clone.repo / ".torchmill" / homes.MARK
        ).exists()
    assert (clone.repo / ".torchmill" / homes.MARK).is_file()
    moved = clone.repo.rename(clone.home / "moved")
    refused = run_torchmill(site, clone.home, moved, "status")
    assert (refused.returncode, "torchmill trust" in refused.stderr) == (2, True)
    assert run_torchmill(site, clone.home, moved, "trust").returncode == 0
    assert run_torchmill(site, clone.home, moved, "status").returncode == 0


@pytest.mark.slow
def test_facts_of_a_checkout_are_read_where_nothing_can_be_written(
    victim: Victim, site: Path
) -> None:
    shipped = Path(__file__).parents[2] / "build_configs" / "gpus.toml"
    hostile.write(victim.repo / "build_configs" / "gpus.toml", shipped.read_text("utf-8"))
    hostile.write(victim.home.with_name("cache"), "a file where the cache should be\n")
    done = run_torchmill(site, victim.home, victim.repo, "matrix", "--tag=v2.4.1")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in victim.repo.iterdir()] == ["build_configs"]
