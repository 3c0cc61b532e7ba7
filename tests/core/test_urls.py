"""URLs that users give, and the parts of them that messages show."""

import pytest

from torchmill.core import urls
from torchmill.core.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "https://x/whl",
        "http://[::1]:8080/a%20b/",
        "https://me:secret@x/",
        "file:///a/b",
        "file://localhost/a",
    ],
)
def test_the_url_of_a_folder_is_accepted(url: str) -> None:
    assert urls.validate_url("--to", url, ("https", "http", "file"), "").geturl() == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "https://",
        "https://x/ü",
        "https://x\n/",
        "https://[1]/",
        "file:a",
        "file://x/a",
        "https://x/#",
    ],
)
def test_any_other_text_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)^--to .*: write it as https://y/z$"):
        urls.validate_url("--to", url, ("https", "file"), "https://y/z")


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://me:secret@x/y", "https://x/y"),
        ("https://me:sec/secret@x/y?z", "https://x/y"),
        ("https://me:sec?secret#@x/y", "https://x/y"),
        ("https://x/y?token=secret", "https://x/y"),
        ("me:secret@x", "me:x"),
        ("s3:secret@x", "s3:x"),
        ("C:/plain/folder", "C:/plain/folder"),
        ("https://x/t/mi-1234567890/team", "https://x/t/team"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, redacted: str) -> None:
    assert urls.redact_url(url) == redacted


def test_a_login_is_refused_and_can_be_removed() -> None:
    with pytest.raises(ConfigError, match=r"^--to https://x:8/y/: set TOKEN$"):
        urls.validate_url("--to", "https://token@x:8/y/", ("https",), "", no_login="set TOKEN")
    assert urls.strip_login("https://token@x:8/y/") == "https://x:8/y/"
    assert urls.strip_login("//me:a@b@x/y@1//z@2") == "//x/y@1//z@2"
    assert urls.strip_login("http://[bad/") == "http://[bad/"
    urls.validate_url("--to", "https://x/@scope", ("https",), "", no_login="set TOKEN")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (
            "https://b.example/w.whl?X-Amz-Signature=secret: it answers 403",
            "https://b.example/w.whl it answers 403",
        ),
        ("gone: 'https://x/y?token=secret' (url: /y?sig=secret)", "gone: 'https://x/y' (url: /y)"),
        ("https//me:secret@x/y is left out", "https//x/y is left out"),
        ("what? a=b", "what? a=b"),
        (
            "https://conda.anaconda.org/t/mi-1234567890/team/linux-64",
            "https://conda.anaconda.org/t/team/linux-64",
        ),
        ("/opt/t/long-folder/x is gone", "/opt/t/long-folder/x is gone"),
    ],
)
def test_a_shown_text_has_no_secret(text: str, redacted: str) -> None:
    assert urls.hide_password(text) == redacted


def test_schemes_in_capitals_hide_their_password_too() -> None:
    assert urls.hide_password("HTTPS://TOKEN@host/x") == "HTTPS://host/x"
