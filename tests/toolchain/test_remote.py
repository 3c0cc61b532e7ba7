"""The one setting that names a shared cache: what it may say, what it shows, and whether anyone answers."""

import socket

import pytest

from torchmill.core.errors import ConfigError
from torchmill.toolchain import remote_cache
from torchmill.toolchain.remote_cache import RemoteCache


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("none", None),
        ("gha", RemoteCache("gha")),
        ("redis://cache.example", RemoteCache("redis", "cache.example")),
        (
            "redis://me:p%2Fw@[::1]:6380/2#read-only",
            RemoteCache("redis", "::1", 6380, "/2", "me", "p/w", read_only=True),
        ),
        (
            "http://cache.example/a/?layout=bazel",
            RemoteCache("http", "cache.example", None, "/a", more={"layout": "bazel"}),
        ),
        ("file:///mnt/cache", RemoteCache("file", path="/mnt/cache")),
        (
            "s3://Wheels/torch?region=auto",
            RemoteCache("s3", "Wheels", None, "/torch", more={"region": "auto"}),
        ),
    ],
)
def test_each_kind_is_read(text: str, found: RemoteCache | None) -> None:
    assert remote_cache.parse_remote(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("redis", "'' is no kind of cache"),
        ("memcached://cache", "'memcached' is no kind of cache"),
        ("redis://", "it names no host"),
        ("s3:///prefix", "it names no bucket"),
        ("file://mnt/cache", "a folder begins with a slash: file:///FOLDER"),
        ("file:///", "a folder begins with a slash: file:///FOLDER"),
        ("redis://cache/first", "the database of Redis is a number, not 'first'"),
        ("redis://cache:port", "Port could not be cast"),
        ("redis://cache:99999", "Port out of range"),
        ("http://[cache", "Invalid IPv6 URL"),
        ("http://cache/?ttl=1", "'ttl' says nothing to it"),
        ("http://cache/a b", "it holds a blank, a bar or a backslash"),
        ("http://cache|read-only", "it holds a blank, a bar or a backslash"),
        ("gha#rw", "'#rw' is not '#read-only'"),
        ("s3://me:key@bucket", "who may use a bucket is said by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket?endpoint=ftp://x", "'ftp'"),
    ],
)
def test_what_names_no_cache_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        remote_cache.parse_remote(text)
    said = str(caught.value)
    assert said.startswith("TORCHMILL_CACHE is '")
    assert f", but {why}" in said
    assert said.endswith("s3://BUCKET/PREFIX, gha or none")


def test_a_password_is_never_shown() -> None:
    found = remote_cache.parse_remote("http://me:secret@cache.example:8080/a")
    assert str(found) == "http://cache.example:8080/a"
    wrong_ones = (
        "redis://me:secret@cache/first",
        "mongo://me:secret@cache",
        "http://me:secret@ca che",
        "redis://me:12/secret@cache",  # as it is, not as URLs have it
        "redis://:12#secret@cache",
        "http://me:12?secret@cache",
        "http://me:secret/34@cache",
        "http://me:secret\N{ACCOUNT OF}@cache",
    )
    for wrong in wrong_ones:
        with pytest.raises(ConfigError) as caught:
            remote_cache.parse_remote(wrong)
        assert "secret" not in str(caught.value)


def known(text: str) -> RemoteCache:
    found = remote_cache.parse_remote(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("redis://cache", ("cache", 6379)),
        ("https://cache/a", ("cache", 443)),
        ("s3://wheels", None),
        ("s3://wheels?endpoint=minio:9000", ("minio", 9000)),
        ("s3://wheels?endpoint=https://minio", ("minio", 443)),
        ("file:///mnt", None),
    ],
)
def test_who_must_answer_is_known(text: str, endpoint: tuple[str, int] | None) -> None:
    assert known(text).endpoint == endpoint


def test_nobody_who_listens_and_nobody_of_that_name_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        assert remote_cache.why_unreachable(known(address), {}) is None
    assert remote_cache.why_unreachable(known(address), {}) == "Connection refused"
    assert remote_cache.why_unreachable(known("http://no.such.host.invalid"), {})


def test_only_a_workflow_reaches_its_cache() -> None:
    environ = {"ACTIONS_RESULTS_URL": "https://x", "ACTIONS_RUNTIME_TOKEN": "t"}
    assert remote_cache.why_unreachable(known("gha"), environ) is None
    del environ["ACTIONS_RUNTIME_TOKEN"]
    said = remote_cache.why_unreachable(known("gha"), environ)
    assert said == "no ACTIONS_RUNTIME_TOKEN, which only a step of a workflow can export"


@pytest.mark.parametrize("host", ["cache..example", "x" * 70])
def test_a_host_that_cannot_be_one_is_not_reached(host: str) -> None:
    assert remote_cache.why_unreachable(known(f"redis://{host}"), {}) == f"{host} is no name of a host"


def test_who_is_reached_by_a_proxy_is_not_asked_past_it() -> None:
    environ = {"HTTPS_PROXY": "http://proxy.example:3128"}
    assert remote_cache.why_unreachable(known("https://no.such.host.invalid"), environ) is None
    assert remote_cache.why_unreachable(known("redis://no.such.host.invalid"), environ)
    assert remote_cache.why_unreachable(known("https://no.such.host.invalid"), {"HTTPS_PROXY": ""})
