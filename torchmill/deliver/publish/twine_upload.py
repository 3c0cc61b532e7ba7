"""twine's upload with a time limit: `python -m torchmill.deliver.publish.twine_upload SECONDS FILE OPTIONS…`.

Its last line of stdout is a JSON object that says how a failed upload ended: {"kind", "status", "text"}.
"""

import contextlib
import json
import re
import sys
from typing import Any

import requests
from requests.adapters import HTTPAdapter

_LONGEST = 2000  # characters of an answer


def main(arguments: list[str]) -> int:
    """Upload; return the exit code. Each read and write of a connection may take so many seconds."""
    limit = float(arguments[0])
    send = HTTPAdapter.send

    def send_in_time(
        adapter: HTTPAdapter, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        return send(adapter, request, **(options | {"timeout": limit}))

    HTTPAdapter.send = send_in_time  # type: ignore[method-assign,assignment]
    import twine.cli

    try:
        with contextlib.redirect_stdout(sys.stderr):
            twine.cli.dispatch(["upload", *arguments[1:]])
    except Exception as error:  # noqa: BLE001 - whatever it is, twine's caller says it
        answer = getattr(error, "response", None)
        status, text = None, str(error)
        if answer is not None:  # its text may be a page, of which the words are shown
            words = re.sub(r"<style.*?</style>|<[^>]*>", " ", answer.text, flags=re.DOTALL)
            status, text = answer.status_code, f"{answer.reason} {words[:_LONGEST]}"
        text = " ".join(text.split())
        print(json.dumps({"kind": type(error).__name__, "status": status, "text": text}))  # noqa: T201 - the answer
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
