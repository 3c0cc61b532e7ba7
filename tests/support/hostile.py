"""Repositories whose authors mean harm, one fault each, and the home of a user who clones them."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Builder = Callable[[Path, "Victim"], None]

TREE = "v1.13.1/wheel-3.10-cpu"  # of a release and a cell that the shipped facts have
WHEEL = "torch-1.13.1+cpu-cp310-cp310-linux_x86_64.whl"
CANARY = "from pathlib import Path\nPath({!r}).write_text('a repository ran code')\n"
MODULES = (
    "json",
    "pip",
    "nox",
    "invoke",
    "filelock",
    "torchmill",
    "tomllib",
    "usercustomize",
    "sitecustomize",
)


@dataclass(frozen=True, slots=True)
class Victim:
    """A user with a home, other work in it, and a place where code of others would leave a trace."""

    home: Path

    @property
    def repo(self) -> Path:
        """Return where the repository is cloned to."""
        return self.home / "repo"

    @property
    def loot(self) -> Path:
        """Return a folder that looks like all that torchmill removes: trees, sources, logs, wheels, environments."""
        return self.home / "loot"

    @property
    def canary(self) -> Path:
        """Return the file that code of the repository would write."""
        return self.home.with_name("canary")


def make_victim(home: Path) -> Victim:
    """Fill a home with what an attack would be after."""
    victim = Victim(home)
    write(home / ".bashrc", "echo mine\n")
    write(home / ".ssh" / "id_ed25519", "secret\n")
    write(home / "build_configs" / "gpus.toml", "mine = 1\n")
    for folder in (TREE, "torch/v1.13.1"):
        write(victim.loot / folder / "key", "k")
        write(victim.loot / folder / "tree" / "setup.py", "")
        write(victim.loot / folder / "packed" / "file", "")
        write(victim.loot / folder / "lock", "this file is mine\n")
    write(victim.loot / ".gone-1-x", "left")
    write(victim.loot / "wheel-3-10-cpu" / "pyvenv.cfg", "home = /usr/bin\n")
    write(victim.loot / "v1.13.1-wheel-3.10-cpu.log", "log\n")
    write_wheel(victim.loot)
    write(victim.loot / "linux-64" / "torch-1.13.1-0.conda", "package")
    write(victim.loot / "conda" / "linux-64" / "torch-1.13.1-0.conda", "package")
    write_index(victim.loot / "index")
    return victim


def write(path: Path, text: str) -> None:
    """Write a file and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_wheel(dist: Path) -> None:
    """Write what looks like a wheel that was built here, with its manifest."""
    write(dist / WHEEL, "wheel")
    manifest = {"package": "torch", "tag": "v1.13.1", "identifier": "wheel-3.10-cpu"}
    write(dist / f"{WHEEL}.json", json.dumps(manifest))


def write_index(index: Path) -> None:
    """Write an index that an earlier run could have written."""
    write(index / "index.html", "a page of mine\n")
    digest = hashlib.sha256(b"a page of mine\n").hexdigest()
    state = {"format": 1, "yanked": {}, "wheels": {}, "written": {"index.html": [digest]}}
    write(index / ".torchmill" / "index.json", json.dumps(state))


def link_to(place: str, target: str) -> Builder:
    """Return the builder of a repository that has a link at a place, to what lies in the user's home."""

    def build(repo: Path, victim: Victim) -> None:
        link = repo / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(victim.home / target, link.parent))

    return build


def file_at(place: str, text: str) -> Builder:
    """Return the builder of a repository that has a file at a place."""
    return lambda repo, _: write(repo / place, text)


def forged_source(repo: Path, _: Victim) -> None:
    """Bring a source that was never fetched, with its record."""
    folder = repo / ".torchmill" / "sources" / "torch" / "v1.13.1"
    write(folder / "tree" / "setup.py", "raise SystemExit\n")
    write(folder / "source.json", "{}")
    write(repo / ".torchmill" / "selected.json", '{"tag": "v1.13.1"}\n')


def forged_tree(repo: Path, _: Victim) -> None:
    """Bring a tree that claims to be complete."""
    write(repo / ".torchmill" / "trees" / TREE / "key", "k")
    write(repo / ".torchmill" / "trees" / TREE / "kit" / "bin" / "ninja", "#!/bin/sh\n")


def forged_environment(repo: Path, victim: Victim) -> None:
    """Bring an environment of a build whose Python is a script."""
    place = repo / ".nox" / "wheel-3-12-cpu"
    write(place / "pyvenv.cfg", "home = /usr/bin\n")
    write(place / "bin" / "python", f"#!/bin/sh\ntouch {victim.canary}\n")
    (place / "bin" / "python").chmod(0o755)


def own_wheels(repo: Path, _: Victim) -> None:
    """Bring wheels with manifests, in dist/."""
    write_wheel(repo / "dist")


def own_index(repo: Path, _: Victim) -> None:
    """Bring an index."""
    write_index(repo / "index")


def modules(repo: Path, victim: Victim) -> None:
    """Bring modules that have the names of those that torchmill imports."""
    for name in MODULES:
        write(repo / f"{name}.py", CANARY.format(str(victim.canary)))
    write(repo / "build_configs" / "gpus.py", CANARY.format(str(victim.canary)))


def settings_of_tools(repo: Path, victim: Victim) -> None:
    """Bring the files in which tools look for settings, each with something to run."""
    code = CANARY.format(str(victim.canary))
    for name in ("noxfile.py", "tasks.py", "invoke.py", "conftest.py", "setup.py"):
        write(repo / name, code)
    write(repo / "invoke.yaml", f"run:\n  shell: {victim.canary}\n")
    write(repo / "uv.toml", 'index-url = "http://127.0.0.1:9/"\n')
    write(repo / "pip.conf", "[global]\nindex-url = http://127.0.0.1:9/\n")
    write(repo / ".pip" / "pip.conf", "[global]\nindex-url = http://127.0.0.1:9/\n")
    write(repo / ".python-version", f"{victim.canary}\n")


def git_settings(repo: Path, victim: Victim) -> None:
    """Bring a git folder whose settings name programs, as an archive can."""
    write(repo / "file", "")
    subprocess.run(["git", "init", "--quiet", str(repo)], check=True)
    script = repo / ".git" / "trap"
    write(script, f"#!/bin/sh\ntouch {victim.canary}\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "core.sshCommand", "core.editor", "diff.external", "core.pager"):
        subprocess.run(["git", "-C", str(repo), "config", name, str(script)], check=True)


def git_file(repo: Path, victim: Victim) -> None:
    """Bring a `.git` file that leads elsewhere."""
    write(repo / ".git", f"gitdir: {victim.loot}\n")


def scripts_on_path(repo: Path, victim: Victim) -> None:
    """Bring programs with the names of those that torchmill asks."""
    for name in (
        "git",
        "nvidia-smi",
        "cmake",
        "cc",
        "ninja",
        "ccache",
        "docker",
        "uv",
        "python3.12",
    ):
        write(repo / name, f"#!/bin/sh\ntouch {victim.canary}\n")
        (repo / name).chmod(0o755)


def pipe(repo: Path, _: Victim) -> None:
    """Bring a pipe in the place of a fact: whoever reads it waits for ever."""
    (repo / "build_configs").mkdir()
    os.mkfifo(repo / "build_configs" / "gpus.toml")


def endless_fact(repo: Path, _: Victim) -> None:
    """Bring a link to a device in the place of a fact."""
    (repo / "build_configs").mkdir()
    (repo / "build_configs" / "toolkits.toml").symlink_to("/dev/zero")


def large_fact(repo: Path, _: Victim) -> None:
    """Bring a fact that would fill memory."""
    write(repo / "build_configs" / "gpus.toml", "")
    os.truncate(repo / "build_configs" / "gpus.toml", 1 << 25)


def climbing_tag(repo: Path, _: Victim) -> None:
    """Bring a package whose tags would be paths out of the state folder."""
    shipped = Path(__file__).parents[2] / "build_configs" / "packages" / "torch.toml"
    text = shipped.read_text("utf-8")
    write(
        repo / "build_configs" / "packages" / "torch.toml",
        f'tag = "../../../../loot/v{{version}}"\n{text}',
    )


STATE_LINKS = (
    "trees",
    "sources",
    "logs",
    "cluster",
    "bisect",
    "demo",
    "images",
    "environments",
    "conda",
    "aarch64",
)
REFUSED: Mapping[str, Builder] = {
    "state-link": link_to(".torchmill", "loot"),
    "state-link-up": link_to(".torchmill", "."),
    "state-loop": link_to(".torchmill", "repo/.torchmill"),
    "state-file": file_at(".torchmill", "a file\n"),
    "old-facts-link": link_to(".torchmill/build_configs", "."),
    **{f"{name}-link": link_to(f".torchmill/{name}", "loot") for name in STATE_LINKS},
    "selection-link": link_to(".torchmill/selected.json", ".bashrc"),
    "mark-link": link_to(".torchmill/mark", ".ssh/id_ed25519"),
    "mark-forged": file_at(".torchmill/mark", "0123456789abcdef0123456789abcdef\n"),
    "mark-empty": file_at(".torchmill/mark", "\n"),
    "tag-link": link_to(".torchmill/trees/v1.13.1", "loot/v1.13.1"),
    "cell-link": link_to(f".torchmill/trees/{TREE}", f"loot/{TREE}"),
    "key-link": link_to(f".torchmill/trees/{TREE}/lock", ".bashrc"),
    "package-link": link_to(".torchmill/sources/torch", "loot/torch"),
    "release-link": link_to(".torchmill/sources/torch/v1.13.1", "loot/torch/v1.13.1"),
    "leftover-link": link_to(".torchmill/.gone-1-loot", "loot"),
    "source-forged": forged_source,
    "tree-forged": forged_tree,
    "environment-forged": forged_environment,
    "environment-link": link_to(".nox/wheel-3-10-cpu", "loot/wheel-3-10-cpu"),
    "nox-link": link_to(".nox", "loot"),
    "dist-link": link_to("dist", "loot"),
    "dist-loop": link_to("dist", "repo/dist"),
    "dist-conda-link": link_to("dist/conda", "loot/conda"),
    "index-link": link_to("index", "loot/index"),
    "channel-link": link_to("channel", "loot"),
    "devcontainer-link": link_to(".devcontainer", "loot"),
    "facts-link": link_to("build_configs", "build_configs"),
    **{
        f"{name}-of-facts-link": link_to(f"build_configs/{name}", "loot")
        for name in ("packages", "releases", "patches")
    },
}
HARMLESS: Mapping[str, Builder] = {
    "dist-kind-link": link_to("dist/conda/linux-64", "loot/linux-64"),
    "dist-wheel-link": link_to(f"dist/{WHEEL}", f"loot/{WHEEL}"),
    "dist-leftover": link_to("dist/.gone-1-loot", "loot"),
    "index-state-link": link_to("index/.torchmill", "loot/index/.torchmill"),
    "index-page-link": link_to("index/index.html", ".bashrc"),
    "wheels": own_wheels,
    "index": own_index,
    "fact-dotfile": file_at("build_configs/.bashrc", "echo theirs\n"),
    "fact-unknown": file_at("build_configs/../.profile.toml", "a = 1\n"),
    "fact-program": file_at("build_configs/run.sh", "exit 1\n"),
    "fact-broken": file_at("build_configs/gpus.toml", "\0 = [[[\n"),
    "fact-pipe": pipe,
    "fact-endless": endless_fact,
    "fact-large": large_fact,
    "fact-file-link": link_to("build_configs/gpus.toml", ".ssh/id_ed25519"),
    "patch-folder-link": link_to("build_configs/patches/torch", "."),
    "tag-climbs": climbing_tag,
    "init-link": link_to("tasks.py", ".config/autostart"),
    "init-folder-link": link_to(".github", "loot"),
    "init-schemas-link": link_to("build_configs/schemas", "loot"),
    "init-schema-link": link_to("build_configs/schemas/gpus.schema.json", ".bashrc"),
    "modules": modules,
    "settings": settings_of_tools,
    "git-settings": git_settings,
    "git-file": git_file,
    "programs": scripts_on_path,
    "dist-file": file_at("dist", "a file\n"),
}
ONLY_ARCHIVES = {"fact-pipe", "fact-large", "git-settings", "git-file"}  # what git does not hand on


def build_repository(name: str, victim: Victim, *, cloned: bool) -> None:
    """Put a hostile repository into the victim's home: as a clone of git's, or unpacked from an archive."""
    victim.repo.mkdir()
    build = REFUSED.get(name) or HARMLESS[name]
    build(victim.repo, victim)
    if cloned:
        origin = victim.home.with_name("origin")
        shutil.rmtree(origin, ignore_errors=True)
        victim.repo.rename(origin)
        author = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        for words in (
            ("init", "--quiet"),
            ("add", "--force", "--all"),
            ("commit", "--quiet", "--message=x"),
        ):
            subprocess.run(["git", *author, "-C", str(origin), *words], check=True)
        subprocess.run(["git", "clone", "--quiet", str(origin), str(victim.repo)], check=True)


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what lies below a folder: for each path its kind and permissions, and its content or where it leads."""
    found: dict[str, tuple[object, ...]] = {}
    for inner, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(inner, name)
            status = path.lstat()
            content: object = ""
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = (
                    hashlib.sha256(path.read_bytes()).hexdigest()
                    if status.st_size < 1 << 24
                    else status.st_size
                )
            found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found
