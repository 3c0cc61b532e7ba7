"""Releases on GitHub as a target, against a server that behaves as GitHub documents."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import requests

from tests.support import documented_wheels
from tests.support import publishing_servers as servers
from tests.support.publishing_servers import GitHub
from tests.support.refusals import refused
from tests.support.repeated_steps import one_try
from torchmill.commands.publish import deliver_files
from torchmill.deliver.publish import github, targets, upload_set
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile
from torchmill.wheel import dist_files, finished_wheel

TAG = "tinytorch-v1.13.1"  # the default for the wheel


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[UploadFile]:
    wheel = documented_wheels.built(tmp_path_factory.mktemp("dist"), "1.13.1+cpu")
    return list(
        upload_set.upload_files(finished_wheel.read_wheel(wheel), dist_files.DOCUMENT_SUFFIXES)
    )


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with servers.github() as hub:
        yield hub


def target_of(
    hub: GitHub, tag: str = "", token: str = servers.TOKEN, repository: str = ""
) -> PublishTarget:
    suffix = f"@{tag}" if tag else ""
    to = f"github:{repository or hub.repository}{suffix}"
    return targets.choose_target(to, {"GH_TOKEN": token, "GITHUB_API_URL": hub.url})


def publish(hub: GitHub, files: list[UploadFile], tag: str = "") -> list[str]:
    return [outcome for _, outcome in deliver_files(target_of(hub, tag), files)]


def test_a_release_is_created_filled_and_then_published(
    hub: GitHub, files: list[UploadFile]
) -> None:
    assert publish(hub, files) == [upload_set.UPLOADED] * 3
    assert hub.names(TAG) == sorted(file.name for file in files)
    assert hub.contents[3] == files[2].path.read_bytes()
    assert hub.releases[0]["draft"] is False
    assert hub.releases[0]["body"] == github.BODY
    changes = [line for line in hub.requests if not line.startswith("GET")]
    assert changes[0] == "POST /repos/me/wheels/releases"
    assert changes[-1] == "PATCH /repos/me/wheels/releases/1"
    assert publish(hub, files) == [upload_set.PRESENT] * 3
    assert len(hub.releases) == 1


def test_an_existing_release_gets_the_missing_files(hub: GitHub, files: list[UploadFile]) -> None:
    release = hub.release("v1+x")
    for number in range(3):  # more than one page
        hub.add(release, f"other-{number}", b"other")
    hub.add(release, files[0].name, files[0].path.read_bytes())
    assert publish(hub, files, "v1+x") == [
        upload_set.PRESENT,
        upload_set.UPLOADED,
        upload_set.UPLOADED,
    ]
    assert len(hub.names("v1+x")) == 6


def test_without_a_digest_of_github_the_bytes_are_compared(
    hub: GitHub, files: list[UploadFile]
) -> None:
    hub.has_digests = False
    assert publish(hub, files) == [upload_set.UPLOADED] * 3
    assert publish(hub, files) == [upload_set.PRESENT] * 3


def test_a_run_whose_connection_broke_is_continued(hub: GitHub, files: list[UploadFile]) -> None:
    hub.breaks_after = 100
    with one_try(), refused("connection-lost"):
        publish(hub, files)
    assert hub.releases[0]["draft"] is True
    assert publish(hub, files) == [upload_set.UPLOADED] * 3
    assert hub.names(TAG) == sorted(file.name for file in files)
    assert [asset["state"] for asset in hub.releases[0]["assets"]] == ["uploaded"] * 3
    assert hub.releases[0]["draft"] is False


def test_a_run_that_ended_before_the_release_was_published_is_continued(
    hub: GitHub, files: list[UploadFile]
) -> None:
    release = hub.release(TAG, draft=True, body=github.BODY)
    for file in files:
        hub.add(release, file.name, file.path.read_bytes())
    assert publish(hub, files) == [upload_set.PRESENT] * 3
    assert release["draft"] is False


def test_an_asset_that_is_not_read_to_its_end_frees_its_connection(hub: GitHub) -> None:
    large = b"x" * (4 << 20)
    asset = hub.add(hub.release(TAG), "large", large)
    api = github.GithubApi(hub.url, servers.TOKEN)
    responses: list[requests.Response] = []
    api.session.hooks["response"].append(lambda response, **_: responses.append(response))
    content = api.content(f"/repos/{hub.repository}/releases/assets/{asset['id']}")
    assert large.startswith(next(content))
    assert not responses[-1].raw.closed
    content.close()
    assert responses[-1].raw.closed
    with refused("github-refused"):
        next(api.content(f"/repos/{hub.repository}/releases/assets/99"))
    assert responses[-1].raw.closed


@pytest.mark.parametrize(("status", "code"), [(200, "not-github"), (422, "github-refused")])
def test_a_server_that_is_no_github_is_reported(
    files: list[UploadFile], status: int, code: str
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        environ = {"GH_TOKEN": "t", "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}"}
        with refused(code) as error:
            targets.choose_target("github:me/wheels", environ).existing_digests(files)
        assert "the token needs" not in str(error.value)
        server.shutdown()


def test_a_draft_of_somebody_else_stays_a_draft(hub: GitHub, files: list[UploadFile]) -> None:
    hub.release(TAG, draft=True, body="I am still writing this")
    publish(hub, files)
    assert hub.releases[0]["draft"] is True
    assert len(hub.names(TAG)) == 3


def test_a_refusal_is_reported_without_the_token(hub: GitHub, files: list[UploadFile]) -> None:
    with refused("github-refused") as error:
        target_of(hub, token="ghs_wrong").existing_digests(files)  # noqa: S106 - it is no secret
    assert "ghs_wrong" not in str(error.value)
    with refused("no-repository"):
        target_of(hub, repository="me/absent").existing_digests(files)


def test_a_dry_run_changes_nothing(hub: GitHub, files: list[UploadFile]) -> None:
    outcomes = deliver_files(target_of(hub), files, dry_run=True)
    assert [outcome for _, outcome in outcomes] == [upload_set.ABSENT] * 3
    assert {line.partition(" ")[0] for line in hub.requests} == {"GET"}


def test_a_file_that_is_too_large_for_github_is_refused_before_any_request(
    hub: GitHub, files: list[UploadFile]
) -> None:
    large = UploadFile(
        files[-1].path, files[-1].sha256, github.GithubReleases.size_limit + 1, files[-1].wheel
    )
    with refused("target-refuses"):
        deliver_files(target_of(hub), [large])
    assert hub.requests == []


def test_two_first_publishers_share_one_release(hub: GitHub, files: list[UploadFile]) -> None:
    """GitHub would make a draft of the tag for each of them."""
    first, second = target_of(hub), target_of(hub)
    assert first.existing_digests(files) == second.existing_digests(files) == {}
    first.upload(files[0])
    second.upload(files[1])
    first.upload(files[2])
    for target in (second, first):
        target.finish()
    (release,) = hub.releases
    assert release["draft"] is False
    assert hub.names(TAG) == sorted(file.name for file in files)


def test_drafts_whose_answers_were_lost_are_removed(hub: GitHub, files: list[UploadFile]) -> None:
    target = target_of(hub)
    target.existing_digests(files)
    for _ in range(3):
        hub.release(TAG, draft=True, body=github.BODY)
    hub.add(hub.release(TAG, draft=True, body=github.BODY), "other", b"in use")
    target.upload(files[0])
    assert [release["id"] for release in hub.releases] == [1, 4]
    assert hub.releases[0]["assets"]


def test_a_release_that_was_published_in_the_meantime_is_filled(
    hub: GitHub, files: list[UploadFile]
) -> None:
    late = target_of(hub)
    late.existing_digests(files)
    publish(hub, files[:1])
    late.upload(files[1])
    late.finish()
    assert [release["draft"] for release in hub.releases] == [False]
    assert len(hub.names(TAG)) == 2


def test_a_broken_upload_is_repeated(
    hub: GitHub, files: list[UploadFile], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.breaks_after = 100
    assert publish(hub, files) == [upload_set.UPLOADED] * 3
    assert [asset["state"] for asset in hub.releases[0]["assets"]] == ["uploaded"] * 3
    assert "tried again (2 of 2)" in capsys.readouterr().err
