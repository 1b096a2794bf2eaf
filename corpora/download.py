"""Downloads the original files of a corpus over HTTP; resumes interrupted downloads, verifies size and digest.

The standard library has no download that can be resumed, and another dependency for these files is not worth it.
"""

import hashlib
import http.client
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import CorpusError, Download
from .special_files import refuse_special

# Called with the number of bytes on disk and the total, or None if the server does not send it.
Progress = Callable[[int, int | None], None]

BLOCK = 1 << 20
LARGEST = 8 << 30  # bytes of a file whose size is not published
LONGEST_LENGTH = 18  # digits
LONGEST_REASON = 100  # characters of a server's message
ATTEMPTS = 3  # per address, as long as each receives more bytes
# TLS errors are OSErrors, too. A full disk is also an OSError, so only calls that do not write may catch these.
NETWORK_ERRORS = (OSError, http.client.HTTPException)
# A redirect to a malformed address raises a ValueError.
OPENING_ERRORS = (*NETWORK_ERRORS, ValueError)
AGENT = "txl"  # some hosts refuse Python's own user agent


@dataclass(frozen=True)
class Patience:
    """How long a server may take."""

    answer_s: float = 60.0
    """Seconds until the answer begins, redirects included, and between two blocks of it."""
    least_bytes_per_s: float = 1000.0
    """Least rate, as the mean over `window_s`."""
    window_s: float = 30.0
    """Seconds over which the rate is measured."""


PATIENCE = Patience()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects over HTTP and HTTPS, and none from HTTPS to HTTP."""

    max_redirections, max_repeats = 5, 2
    inf_msg = "redirected too often, "

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the next request; raise an HTTPError if it may not be made."""
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            reason = f"redirects from {req.type} to {scheme}, refused"
            raise urllib.error.HTTPError(newurl, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def silent(done: int, total: int | None) -> None:
    """Report nothing."""


def is_complete(download: Download, directory: Path) -> bool:
    """Return True if the verified file is in `directory`."""
    target = directory / download.file
    return target.exists() and fault(refuse_special(target), download) is None


def fetch(
    download: Download,
    directory: Path,
    progress: Progress = silent,
    patience: Patience = PATIENCE,
    agent: str = AGENT,
) -> Path:
    """Return the verified file in `directory`; download it if it does not exist.

    An interrupted download leaves a .part file, which the next call continues.

    Args:
        download: of the file; its mirror is not used.
        directory: created if missing.
        progress: called as blocks arrive.
        patience: limits of a slow server.
        agent: user agent that the servers are told.

    Raises:
        CorpusError: no address provided the right file; the message has the error of each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target, part = directory / download.file, directory / (download.file + ".part")
    if is_complete(download, directory):
        return target
    client = _Client(progress, patience, {"User-Agent": agent})
    failures = []
    for address in download.addresses:
        failure = _try_address(address, part, download, client)
        if failure is None:
            part.replace(target)
            return target
        failures.append(f"{address}: {failure}")
    raise CorpusError(f"could not download {download.file} ({'; '.join(failures)})")


def fault(path: Path, download: Download) -> str | None:
    """Return the difference between a file and `download`, or None."""
    size = path.stat().st_size
    if download.size is not None and size != download.size:
        return f"{size:,} bytes instead of {download.size:,}"
    return digest_fault(path, download.digest) if download.digest else None


def digest_fault(path: Path, digest: str) -> str | None:
    """Return the difference between the digest of a file and the expected "algorithm:hex", or None."""
    algorithm, expected = digest.split(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    return None if actual == expected else f"wrong digest: {algorithm} {actual} instead of {expected}"


@dataclass(frozen=True)
class _Client:
    """Progress, limits and headers of all requests of a download."""

    progress: Progress
    patience: Patience
    headers: dict[str, str]


def _try_address(address: str, part: Path, download: Download, client: _Client) -> str | None:
    """Complete the .part file from one address; return the error, or None."""
    failure: str | None = "no data received"
    for _ in range(ATTEMPTS):
        before = _size(part)
        failure = _receive(address, part, download, client)
        if failure is None:
            failure = fault(part, download)
            if failure is None:
                return None
            part.unlink()  # complete but wrong, so it cannot be continued
            return failure
        if _size(part) <= before:
            return failure
    return failure


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(address: str, part: Path, download: Download, client: _Client) -> str | None:
    """Append the rest of the file; return the error, or None once it is complete."""
    received = _size(part)
    if download.size is not None and received >= download.size:
        return None
    wanted = {"Range": f"bytes={received}-"} if received else {}
    request = urllib.request.Request(address, headers=client.headers | wanted)
    try:
        response = _open(request, client.patience.answer_s)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
            if download.digest and fault(part, download) is None:
                return None  # complete
            part.unlink()  # as long as the server's file or longer, so it is not a beginning of that
        return f"HTTP {error.code} {str(error.reason)[:LONGEST_REASON]}"
    except urllib.error.URLError as error:
        return str(error.reason)[:LONGEST_REASON]
    except OPENING_ERRORS as error:
        return f"no answer ({type(error).__name__})"
    reader = _Reader(response, client.patience.answer_s)
    try:
        return _save(reader, part, received, download.size, client)
    finally:
        reader.close()


def _open(request: urllib.request.Request, seconds: float) -> http.client.HTTPResponse:
    """Open a request; a server that sends its headers byte by byte has no more time than a silent one.

    Raises:
        TimeoutError: no answer after this time.
        OSError, HTTPException, ValueError: another error of the network, or a malformed answer.
    """
    outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def open_request() -> None:
        try:
            outcome.put(urllib.request.build_opener(_Redirects).open(request, timeout=seconds))
        except Exception as error:
            outcome.put(error)

    threading.Thread(target=open_request, daemon=True).start()
    try:
        response = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(response, Exception):
        raise response
    opened: http.client.HTTPResponse = response
    return opened


class _Reader:
    """Reads an answer in a thread: between two blocks, a server may send the frame of a chunk byte by byte, or trailers
    without end, which http.client reads until they end.

    Args:
        response: closed by `close`, or as soon as the thread's read ends.
        seconds: limit for each block.
    """

    def __init__(self, response: http.client.HTTPResponse, seconds: float) -> None:
        self.response, self._seconds = response, seconds
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._blocks: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self.response:
            while self._wanted.get():
                try:
                    self._blocks.put(self.response.read1(BLOCK))
                except Exception as error:
                    self._blocks.put(error)

    def read(self) -> bytes:
        """Return the next block, empty at the end of the answer.

        Raises:
            TimeoutError: it does not arrive in time.
            OSError, HTTPException: another error of the network, or a malformed answer.
        """
        self._wanted.put(True)
        try:
            block = self._blocks.get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(block, Exception):
            raise block
        return block

    def close(self) -> None:
        """End the thread, which closes the answer."""
        self._wanted.put(False)


def _save(
    reader: _Reader,
    part: Path,
    received: int,
    size: int | None,
    client: _Client,
) -> str | None:
    response = reader.response
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    done, most = received if resumes else 0, LARGEST if size is None else size
    length = response.headers.get("Content-Length")
    wrong = _header_fault(response, received, most)
    if wrong is not None:
        return wrong
    total = done + int(length) if length else size
    rate = _Rate(client.patience, done)
    with part.open("ab" if resumes else "wb") as file:
        while True:
            try:
                block = reader.read()
            except NETWORK_ERRORS as error:
                return f"interrupted after {done:,} bytes ({type(error).__name__})"
            done += len(block)
            if done > most or not block:
                break
            file.write(block)
            client.progress(done, total)
            if rate.is_too_low(done):
                return f"slower than {client.patience.least_bytes_per_s:g} bytes/s after {done:,} bytes"
    if done > most:
        part.unlink()
        return f"more than {most:,} bytes"
    return f"interrupted after {done:,} of {total:,} bytes" if total is not None and done < total else None


def _header_fault(response: http.client.HTTPResponse, received: int, most: int) -> str | None:
    """Return what is wrong with the header of an answer, or None."""
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if resumes and not response.headers.get("Content-Range", "").startswith(f"bytes {received}-"):
        return "answers with another part of the file than requested"
    length = response.headers.get("Content-Length", "0")
    if not (length.isascii() and length.isdecimal() and len(length) <= LONGEST_LENGTH):
        return "malformed Content-Length"
    total = int(length) + (received if resumes else 0)
    return f"{total:,} bytes instead of {most:,}" if total > most else None


class _Rate:
    """Rate of a download from `done` bytes on."""

    def __init__(self, patience: Patience, done: int) -> None:
        self._patience = patience
        self._since, self._before = time.monotonic(), done

    def is_too_low(self, done: int) -> bool:
        """Return True if the rate was too low since the last complete window."""
        seconds, received = time.monotonic() - self._since, done - self._before
        if seconds < self._patience.window_s:
            return False
        self._since, self._before = time.monotonic(), done
        return received < seconds * self._patience.least_bytes_per_s
