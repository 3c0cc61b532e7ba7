"""Whether addresses answer: each host is connected to once, all at the same time, and none is waited for long."""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from torchmill.core.silence import SilentError, silence_limit
from torchmill.core.urls import SCP_URL, hide_password, host_of
from torchmill.fetch.download import connection_complaint, describe_http_error, http_session

VARIABLE = "TORCHMILL_PROBE"  # "off": nothing is asked
ANSWER_SECONDS = 15.0  # for all answers together, unless the limit of silence is shorter
# what a server answers that wants a login, or fewer requests: whoever fetches may have what it wants
_CLOSED_TO_US = {401, 403, 407, 429}
_LOWEST_ERROR = 400
_WEB = ("http://", "https://")
_CONNECTED = {"http", "https", "git"}  # not ssh: its hosts have names of their own in its settings


def probe_addresses(
    addresses: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return why each address does not answer, as a clause; "" where it does. What cannot be asked is left out.

    Files and folders are looked at. Raises ConfigError for a wrong TORCHMILL_SILENCE.
    """
    if environ.get(VARIABLE, "").lower() == "off":
        return {}
    names = list(dict.fromkeys(addresses))
    answers = {
        name: complaint for name in names if (complaint := _local_complaint(name)) is not None
    }
    hosts = {
        name: host
        for name in names
        if name not in answers and (host := _host_address(name)) is not None
    }
    limit = min(ANSWER_SECONDS, silence_limit(environ))
    connections = _ask_all(set(hosts.values()), _connection_complaint, limit)
    connected = [
        name for name, host in hosts.items() if not connections[host] and name.startswith(_WEB)
    ]
    pages = _ask_all(connected, _page_complaint, limit)
    return answers | {name: pages.get(name, connections[host]) for name, host in hosts.items()}


def _host_address(address: str) -> str | None:
    """Return the address of a host by another one on it; None where no connection can be tried."""
    try:
        parts = urlsplit(address)
    except ValueError:  # http://[bad/
        return None
    return (
        parts._replace(path="/", query="", fragment="").geturl()
        if parts.scheme in _CONNECTED
        else None
    )


def _local_complaint(address: str) -> str | None:
    """Return why a file or folder of this machine does not serve; None for an address of another machine."""
    if "://" in address and not address.startswith("file://"):
        return None
    if SCP_URL.match(address):
        return None
    path = (
        Path(url2pathname(urlsplit(address).path))
        if address.startswith("file://")
        else Path(address)
    )
    try:
        return "" if path.exists() else f"there is no {path}"
    except OSError as error:
        return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"


def _connection_complaint(address: str) -> str:
    """Return a clause where the host of an address cannot be connected to."""
    complaint = connection_complaint(address)
    return f"{host_of(address)} cannot be reached ({complaint})" if complaint else ""


def _page_complaint(address: str) -> str:
    """Return a clause where a server does not give a page, of which no more than the head is read."""
    import requests

    shown = hide_password(address).partition("?")[0]
    limit = min(ANSWER_SECONDS, silence_limit())
    try:
        with (
            http_session() as session,
            session.get(address, stream=True, timeout=limit) as response,
        ):
            status = response.status_code
            if status < _LOWEST_ERROR or status in _CLOSED_TO_US:
                return ""
            return f"{shown} answers {status} {response.reason}".rstrip()
    except (requests.RequestException, OSError, SilentError) as error:
        return f"{shown} cannot be read ({describe_http_error(error)})"
    except ValueError as error:  # a redirect to http://[bad/
        return f"{shown} cannot be read ({hide_password(str(error))})"


def _ask_all(names: Collection[str], ask: Callable[[str], str], limit: float) -> dict[str, str]:
    """Return what `ask` returns for each name; what is not known after `limit` seconds has not answered.

    The threads are not waited for: a server that sends a byte now and then would keep them for ever.
    """
    found: dict[str, str] = {}

    def note(name: str) -> None:
        found[name] = ask(name)

    threads = [
        threading.Thread(target=note, args=(name,), daemon=True, name=f"ask {name}")
        for name in names
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    silent = "{} gives no answer in {:g} s"
    return {name: found.get(name, silent.format(host_of(name), limit)) for name in names}
