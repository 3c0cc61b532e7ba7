"""The report of an upload that fails."""

import json
import subprocess
import sys

import requests

from torchmill.deliver.publish import twine_upload


def test_words_that_twine_does_not_know_are_reported() -> None:
    """The parser of twine ends the process; the caller needs the report all the same."""
    argv = [sys.executable, "-m", "torchmill.deliver.publish.twine_upload", "5", "--no-such-option"]
    completed = subprocess.run(argv, check=False, capture_output=True, encoding="utf-8")
    report = json.loads(completed.stdout.splitlines()[-1])
    assert completed.returncode == 1
    assert report == {
        "kind": "SystemExit",
        "status": None,
        "pause": 0.0,
        "text": "twine ended with exit code 2",
    }


def test_white_space_does_not_hide_the_words_of_a_page() -> None:
    response = requests.Response()
    response.status_code = 400
    response.reason = "Bad Request"
    response._content = b"<html>" + b"\n" * 5000 + b"<p>File already exists</p></html>"
    report = twine_upload._describe_failure(requests.HTTPError(response=response))
    assert report["text"] == "Bad Request File already exists"
