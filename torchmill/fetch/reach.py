"""Find out within seconds which addresses do not answer: all are probed at the same time.

An address is probed in two steps: a connection to its host, and then, for a web page, a request. A
complaint is a clause that says why an address does not answer; it is "" if the address answers.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from torchmill.core.silence import SilentError, silence_limit
from torchmill.core.urls import SCP_URL, hide_password, host_of
from torchmill.fetch.download import connection_complaint, http_session
from torchmill.fetch.http_failures import describe_http_error

VARIABLE = "TORCHMILL_PROBE"  # "off": nothing is probed
ANSWER_SECONDS = 15.0  # for each of the two steps, unless the limit of silence is shorter
# Statuses by which a server asks for a login, or for fewer requests. They are no complaint, because
# the program that downloads later may have the login.
_LOGIN_STATUSES = {401, 403, 407, 429}
_LOWEST_ERROR = 400
_WEB = ("http://", "https://")
# Not ssh: its hosts may be aliases that only the user's ssh_config resolves.
_PROBED_SCHEMES = {"http", "https", "git"}


def probe_addresses(
    addresses: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the complaint about each address; {} if TORCHMILL_PROBE is "off".

    A path or a file: URL answers if the file exists. Addresses that cannot be probed (ssh, s3) are
    left out. Raises ConfigError for a wrong TORCHMILL_SILENCE.
    """
    if environ.get(VARIABLE, "").lower() == "off":
        return {}
    complaints: dict[str, str] = {}
    hosts: dict[str, str] = {}  # address -> URL of its host, so that each host is probed once
    for address in dict.fromkeys(addresses):
        complaint = _local_complaint(address)
        host = _host_url(address)
        if complaint is not None:
            complaints[address] = complaint
        elif host is not None:
            hosts[address] = host
    limit = min(ANSWER_SECONDS, silence_limit(environ))
    host_complaints = _probe_all(set(hosts.values()), _host_complaint, limit)
    # A page is requested only if its host takes connections; otherwise each page would be waited
    # for once more.
    pages = []
    for address, host in hosts.items():
        if not host_complaints[host] and address.startswith(_WEB):
            pages.append(address)
    page_complaints = _probe_all(pages, _page_complaint, limit)
    for address, host in hosts.items():
        complaints[address] = page_complaints.get(address, host_complaints[host])
    return complaints


def _host_url(address: str) -> str | None:
    """Return the URL of an address's host, with the path "/"; None if it cannot be probed."""
    try:
        parts = urlsplit(address)
    except ValueError:  # http://[bad/
        return None
    if parts.scheme not in _PROBED_SCHEMES:
        return None
    return parts._replace(path="/", query="", fragment="").geturl()


def _local_complaint(address: str) -> str | None:
    """Return the complaint about an address that is a path or a file: URL; None for any other."""
    is_file_url = address.startswith("file://")
    if "://" in address and not is_file_url:
        return None
    if SCP_URL.match(address):
        return None
    if is_file_url:
        path = Path(url2pathname(urlsplit(address).path))
    else:
        path = Path(address)
    try:
        exists = path.exists()
    except OSError as error:
        return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"
    return "" if exists else f"there is no {path}"


def _host_complaint(url: str) -> str:
    """Return the complaint about the host of a URL, if it takes no connection."""
    complaint = connection_complaint(url)
    if complaint is None:
        return ""
    return f"{host_of(url)} cannot be reached ({complaint})"


def _page_complaint(url: str) -> str:
    """Return the complaint about a web page, if its server does not give it."""
    import requests

    shown_url = hide_password(url).partition("?")[0]
    limit = min(ANSWER_SECONDS, silence_limit())
    try:
        # `stream`: only the headers are read, because the page may be a large file.
        with http_session() as session, session.get(url, stream=True, timeout=limit) as response:
            status = response.status_code
            if status < _LOWEST_ERROR or status in _LOGIN_STATUSES:
                return ""
            return f"{shown_url} answers {status} {response.reason}".rstrip()
    except (requests.RequestException, OSError, SilentError) as error:
        return f"{shown_url} cannot be read ({describe_http_error(error)})"
    except ValueError as error:  # a redirect to http://[bad/
        return f"{shown_url} cannot be read ({hide_password(str(error))})"


def _probe_all(
    addresses: Collection[str], probe: Callable[[str], str], limit: float
) -> dict[str, str]:
    """Return the complaint that `probe` returns for each address, or one that it took too long.

    All addresses together have `limit` seconds. The thread of a late probe is left to itself: a
    server that sends a byte now and then would keep it for ever, because each byte begins a new
    timeout.
    """
    early_complaints: dict[str, str] = {}

    def run_probe(address: str) -> None:
        early_complaints[address] = probe(address)

    threads = []
    for address in addresses:
        name = f"probe {address}"
        thread = threading.Thread(target=run_probe, args=(address,), daemon=True, name=name)
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    complaints = {}
    for address in addresses:
        silence = f"{host_of(address)} gives no answer in {limit:g} s"
        complaints[address] = early_complaints.get(address, silence)
    return complaints
