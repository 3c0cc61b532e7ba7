"""twine's upload with a limit on how long the server may stay silent.

Usage: `python -m torchmill.deliver.publish.twine_upload SECONDS …`.

The other arguments are those of `twine upload`. The last line of stdout is a JSON object about a
failed upload: {"kind": name of the exception, "status": of the HTTP answer or null, "pause": seconds
that the answer asks to wait, "text": words}.
"""

import contextlib
import json
import re
import sys
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from torchmill.core.retries import requested_pause

_MAX_CHARACTERS = 2000  # of an answer


def main(arguments: list[str]) -> int:
    """Upload files and return the exit code.

    The first argument limits each read and write of a connection, in seconds.
    """
    limit = float(arguments[0])
    send = HTTPAdapter.send

    def send_in_time(
        adapter: HTTPAdapter, request: requests.PreparedRequest, **options: Any
    ) -> requests.Response:
        return send(adapter, request, **(options | {"timeout": limit}))

    # twine sets no timeout and has no option for one: a server that stops answering would hold it
    # for ever.
    HTTPAdapter.send = send_in_time  # type: ignore[method-assign,assignment]
    try:
        import twine.cli

        with contextlib.redirect_stdout(sys.stderr):
            twine.cli.dispatch(["upload", *arguments[1:]])
    # SystemExit: argparse ends the process if this twine does not have an option.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the caller reports it
        report = _describe_failure(error)
        print(json.dumps(report))  # noqa: T201 - the caller reads it
        return 1
    return 0


def _describe_failure(error: BaseException) -> dict[str, object]:
    """Return the object about a failed upload."""
    status = None
    pause = 0.0
    text = str(error)
    if isinstance(error, SystemExit):
        text = f"twine ended with exit code {error.code}"
    response = getattr(error, "response", None)
    if response is not None:
        status = response.status_code
        pause = requested_pause(response.headers)
        # The answer may be a page: only its words are shown.
        words = re.sub(r"<style.*?</style>|<[^>]*>", " ", response.text, flags=re.DOTALL)
        # Pages are indented: their white space must not use up the limit.
        words = " ".join(words.split())
        text = f"{response.reason} {words[:_MAX_CHARACTERS]}"
    return {
        "kind": type(error).__name__,
        "status": status,
        "pause": pause,
        "text": " ".join(text.split()),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
