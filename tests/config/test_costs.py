"""runs.toml and linking.toml: what is read, and what is refused."""

from pathlib import Path

from torchmill.config import cost_reader
from torchmill.config.model import Facts

RUN = """
[[run]]
package = "torch"
release = "1.13.1"
variant = "cpu"
machine = "two cores"
scope = "{scope}"
{rest}
source = "test"
"""


def test_a_report_may_say_little(tmp_path: Path) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(RUN.format(scope="job", rest="wall_seconds = 60"))
    problems: list[str] = []
    (run,), peaks, _ = cost_reader.read_runs(path, problems)
    assert (run.wall, run.cpu, run.cores, run.peak, peaks) == (60, None, None, None, ())


def test_mistakes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(RUN.format(scope="night", rest='wall_secnds = 60\n[assumed]\nscaling = "much"'))
    problems: list[str] = []
    cost_reader.read_runs(path, problems)
    told = "\n".join(problems)
    assert "'scope' is 'night', expected one of compile, job" in told
    assert "'scaling' is 'much', expected a number" in told
    assert "key 'job_seconds' is missing" not in told
    assert "runs.toml: assumed: job_seconds: key 'low' is missing" in told


def test_an_unknown_key_is_told(tmp_path: Path) -> None:
    path = tmp_path / "linking.toml"
    path.write_text('limit = "2 GiB"\nmargin = 0.3\nspilt = ">=1.8"\n')
    problems: list[str] = []
    cost_reader.read_linking(path, problems)
    assert problems == ["linking.toml: unknown key 'spilt'; did you mean 'split'?"]


def test_without_files_there_is_nothing(tmp_path: Path) -> None:
    problems: list[str] = []
    assert cost_reader.read_runs(tmp_path / "runs.toml", problems) == ((), (), None)
    assert cost_reader.read_linking(tmp_path / "linking.toml", problems) is None
    assert problems == []


def test_what_is_shipped_names_releases_and_sources(shipped: Facts) -> None:
    assert shipped.linking is not None
    versions = {name: {one.version for one in all_} for name, all_ in shipped.releases.items()}
    assert [run.source for run in shipped.runs if run.release not in versions[run.package]] == []
    assert [one.source for one in shipped.linking.reports if one.release not in versions["torch"]] == []
    assert all(run.source and run.machine for run in shipped.runs)
