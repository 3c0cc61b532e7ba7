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
_LINK = "-> "  # begins the text of a link


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

    @property
    def pool(self) -> Path:
        """Return the folder of the packages."""
        pool = self.folder / "pool"
        pool.mkdir(exist_ok=True)
        return pool

    def add(
        self, name: str, version: str, files: Mapping[str, str], source: str = "", depends: str = ""
    ) -> Path:
        """Add a package; the text "-> TARGET" makes a link, one that begins with "#!" a program."""
        fields = {
            "Package": name,
            "Version": version,
            "Architecture": "amd64",
            "Maintainer": "T <t@example.org>",
        }
        if source:
            fields["Source"] = source
        if depends:
            fields["Depends"] = depends
        fields["Description"] = "for a test"
        control = "".join(f"{key}: {value}\n" for key, value in fields.items())
        tree = self.folder / "trees" / name
        for path, content in {**files, "DEBIAN/control": control}.items():
            _write(tree / path, content)
        deb = self.pool / f"{name}_{version}_amd64.deb"
        build = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(deb)]
        subprocess.run(build, check=True, capture_output=True)
        place = f"Filename: pool/{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {_sha256(deb)}\n"
        (self.pool / f"{name}.listed").write_text(control + place)
        return deb

    def add_source(self, name: str, version: str, files: Mapping[str, str]) -> None:
        """Add a source package: the authors' part, below one folder."""
        upstream = version.rpartition("-")[0]
        tarball = self.pool / f"{name}_{upstream}.orig.tar.xz"
        with tarfile.open(tarball, "w:xz") as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(f"{name}-src/{path}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
        checksum = f" {_sha256(tarball)} {tarball.stat().st_size} {tarball.name}"
        (self.pool / f"{name}_{version}.sources").write_text(
            f"Package: {name}\nBinary: {name}\nVersion: {version}\nArchitecture: any\n"
            f"Format: 3.0 (quilt)\nDirectory: pool\nChecksums-Sha256:\n{checksum}\n"
        )

    def publish(self) -> None:
        """Write the lists of the packages that were added."""
        suite = self.folder / "dists" / self.suite
        digests = ""
        for name, pattern in (
            ("binary-amd64/Packages", "*.listed"),
            ("source/Sources", "*.sources"),
        ):
            lists = suite / "main" / name
            lists.parent.mkdir(parents=True, exist_ok=True)
            texts = [file.read_text() for file in sorted(self.folder.glob(f"pool/{pattern}"))]
            lists.write_text("\n".join(texts))
            digests += f" {_sha256(lists)} {lists.stat().st_size} main/{name}\n"
        (suite / "Release").write_text(
            f"Origin: Test\nSuite: {self.suite}\nCodename: {self.suite}\nArchitectures: amd64\n"
            f"Components: main\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n{digests}"
        )


def _write(file: Path, content: str) -> None:
    """Write a file, a program or a link of a package."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if content.startswith(_LINK):
        file.symlink_to(content.removeprefix(_LINK))
        return
    file.write_text(content)
    file.chmod(0o755 if content.startswith("#!") else 0o644)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
