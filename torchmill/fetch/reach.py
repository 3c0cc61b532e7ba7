"""Find out within seconds which addresses do not answer: all hosts are probed at the same time."""

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

VARIABLE = "TORCHMILL_PROBE"  # "off": nothing is probed
ANSWER_SECONDS = 15.0  # for all answers together, unless the limit of silence is shorter
# Statuses of a server that wants a login, or fewer requests. The program that downloads later may
# have the login, so these count as answers.
_CLOSED_TO_US = {401, 403, 407, 429}
_LOWEST_ERROR = 400
_WEB = ("http://", "https://")
# Not ssh: its hosts may be aliases that only the user's ssh_config resolves.
_PROBED_SCHEMES = {"http", "https", "git"}


def probe_addresses(
    addresses: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return for each address why it does not answer, as a clause; "" if it answers.

    Addresses that cannot be probed (ssh, s3) are left out. For a path or a file: URL it is checked
    whether the file exists. Raises ConfigError for a wrong TORCHMILL_SILENCE.
    """
    if environ.get(VARIABLE, "").lower() == "off":
        return {}
    answers: dict[str, str] = {}
    hosts: dict[str, str] = {}  # address -> the top page of its host
    for address in dict.fromkeys(addresses):
        complaint = _local_complaint(address)
        host = _host_url(address)
        if complaint is not None:
            answers[address] = complaint
        elif host is not None:
            hosts[address] = host
    limit = min(ANSWER_SECONDS, silence_limit(environ))
    connections = _probe_all(set(hosts.values()), _connection_complaint, limit)
    # a page is asked for only if its host took a connection: otherwise each page would wait in vain
    pages = []
    for address, host in hosts.items():
        if not connections[host] and address.startswith(_WEB):
            pages.append(address)
    page_complaints = _probe_all(pages, _page_complaint, limit)
    for address, host in hosts.items():
        answers[address] = page_complaints.get(address, connections[host])
    return answers


def _host_url(address: str) -> str | None:
    """Return the URL of the host's top page; None if no connection to the host can be tried."""
    try:
        parts = urlsplit(address)
    except ValueError:  # http://[bad/
        return None
    if parts.scheme not in _PROBED_SCHEMES:
        return None
    return parts._replace(path="/", query="", fragment="").geturl()


def _local_complaint(address: str) -> str | None:
    """Return why a local file or folder cannot be used; None for an address of another machine."""
    is_file_url = address.startswith("file://")
    if "://" in address and not is_file_url:
        return None
    if SCP_URL.match(address):
        return None
    path = Path(url2pathname(urlsplit(address).path)) if is_file_url else Path(address)
    try:
        return "" if path.exists() else f"there is no {path}"
    except OSError as error:
        return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"


def _connection_complaint(url: str) -> str:
    """Return a clause if the host of a URL takes no connection, else ""."""
    complaint = connection_complaint(url)
    return f"{host_of(url)} cannot be reached ({complaint})" if complaint else ""


def _page_complaint(url: str) -> str:
    """Return a clause if a server does not give a page, else "". Only the head is read."""
    import requests

    shown_url = hide_password(url).partition("?")[0]
    limit = min(ANSWER_SECONDS, silence_limit())
    try:
        with http_session() as session, session.get(url, stream=True, timeout=limit) as response:
            status = response.status_code
            if status < _LOWEST_ERROR or status in _CLOSED_TO_US:
                return ""
            return f"{shown_url} answers {status} {response.reason}".rstrip()
    except (requests.RequestException, OSError, SilentError) as error:
        return f"{shown_url} cannot be read ({describe_http_error(error)})"
    except ValueError as error:  # a redirect to http://[bad/
        return f"{shown_url} cannot be read ({hide_password(str(error))})"


def _probe_all(
    addresses: Collection[str], probe: Callable[[str], str], limit: float
) -> dict[str, str]:
    """Return what `probe` returns for each address, or after `limit` seconds that it is silent.

    Threads that are not done by then are left alone: a server that sends a byte now and then would
    keep them for ever, because each byte begins a new timeout.
    """
    complaints: dict[str, str] = {}

    def note(address: str) -> None:
        complaints[address] = probe(address)

    threads = []
    for address in addresses:
        name = f"probe {address}"
        thread = threading.Thread(target=note, args=(address,), daemon=True, name=name)
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answers = {}
    for address in addresses:
        silent = f"{host_of(address)} gives no answer in {limit:g} s"
        answers[address] = complaints.get(address, silent)
    return answers
