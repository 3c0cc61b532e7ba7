"""An archive of Debian packages, built by dpkg-deb, for apt to read from the disk."""

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_apt = pytest.mark.skipif(
    not all(map(shutil.which, ("apt-get", "apt-cache", "dpkg-deb"))), reason="needs apt and dpkg"
)


@dataclass
class DebianArchive:
    """An archive with one suite and the component main, for amd64."""

    folder: Path
    suite: str = "bookworm"

    @property
    def etc(self) -> Path:
        """Return a folder that looks like /etc/apt of a machine that uses this archive."""
        etc = self.folder / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        line = f"deb [trusted=yes] file:{self.folder} {self.suite} main\n"
        (etc / "sources.list").write_text(line)
        return etc

    def add(
        self, name: str, version: str, files: Mapping[str, str], source: str = "", depends: str = ""
    ) -> Path:
        """Add a package; a file "-> TARGET" is a link, one that begins with "#!" a program."""
        tree = self.folder / "trees" / name
        fields = {
            "Package": name,
            "Version": version,
            "Architecture": "amd64",
            "Maintainer": "T <t@example.org>",
        }
        fields |= {"Source": source} if source else {}
        fields |= {"Depends": depends} if depends else {}
        fields |= {"Description": "for a test"}
        text = "".join(f"{key}: {value}\n" for key, value in fields.items())
        for path, content in {**files, "DEBIAN/control": text}.items():
            file = tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith("-> "):
                file.symlink_to(content.removeprefix("-> "))
            else:
                file.write_text(content)
                file.chmod(0o755 if content.startswith("#!") else 0o644)
        deb = self.folder / "pool" / f"{name}_{version}_amd64.deb"
        deb.parent.mkdir(exist_ok=True)
        build = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(deb)]
        subprocess.run(build, check=True, capture_output=True)
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        listed = f"Filename: pool/{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"
        (self.folder / "pool" / f"{name}.listed").write_text(text + listed)
        return deb

    def add_source(self, name: str, version: str, files: Mapping[str, str]) -> None:
        """Add a source package: its authors' part, in the folder that its archives have."""
        packed = self.folder / "pool" / f"{name}_{version.rpartition('-')[0]}.orig.tar.xz"
        packed.parent.mkdir(exist_ok=True)
        with tarfile.open(packed, "w:xz") as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(f"{name}-src/{path}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
        sizes = f" {hashlib.sha256(packed.read_bytes()).hexdigest()} {packed.stat().st_size} {packed.name}"
        (self.folder / "pool" / f"{name}.sources").write_text(
            f"Package: {name}\nBinary: {name}\nVersion: {version}\nArchitecture: any\nFormat: 3.0 (quilt)\n"
            f"Directory: pool\nChecksums-Sha256:\n{sizes}\n"
        )

    def publish(self) -> None:
        """Write the lists of what was added."""
        suite, pool = self.folder / "dists" / self.suite, self.folder / "pool"
        digests = ""
        for name, added in (("binary-amd64/Packages", "*.listed"), ("source/Sources", "*.sources")):
            lists = suite / "main" / name
            lists.parent.mkdir(parents=True, exist_ok=True)
            lists.write_text("\n".join(one.read_text() for one in sorted(pool.glob(added))))
            digest = hashlib.sha256(lists.read_bytes()).hexdigest()
            digests += f" {digest} {lists.stat().st_size} main/{name}\n"
        (suite / "Release").write_text(
            f"Origin: Test\nSuite: {self.suite}\nCodename: {self.suite}\nArchitectures: amd64\n"
            f"Components: main\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n{digests}"
        )
