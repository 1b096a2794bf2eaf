"""Downloads the original files of a corpus over HTTP; resumes interrupted downloads, verifies size and digest.

The standard library has no download that can be resumed, and another dependency for these files is not worth it.
"""

import hashlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import CorpusError, Download
from .special_files import reject_special

# Called with the number of bytes on disk and the total, or None if the server does not send it.
Progress = Callable[[int, int | None], None]

BLOCK = 1 << 20
LARGEST = 8 << 30  # bytes of a file whose size is not published
LONGEST_REASON = 100  # characters of a server's message
ATTEMPTS = 3  # per address, as long as each receives more bytes
TIMEOUT_S = 60.0  # until the connection, and between two blocks
# TLS errors are OSErrors, too. A full disk is also an OSError, so only calls that do not write may catch these.
NETWORK_ERRORS = (OSError, http.client.HTTPException)
# A redirect to a malformed address raises a ValueError.
OPENING_ERRORS = (*NETWORK_ERRORS, ValueError)
AGENT = "txl"  # some hosts refuse Python's own user agent


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects over HTTP and HTTPS, and none from HTTPS to HTTP."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the next request; raise an HTTPError if it may not be made."""
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            reason = f"redirects from {req.type} to {scheme}, rejected"
            raise urllib.error.HTTPError(newurl, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def silent(done: int, total: int | None) -> None:
    """Report nothing."""


def is_complete(download: Download, directory: Path) -> bool:
    """Return True if the verified file is in `directory`."""
    target = directory / download.file
    return target.exists() and fault(reject_special(target), download) is None


def fetch(
    download: Download,
    directory: Path,
    progress: Progress = silent,
    agent: str = AGENT,
    timeout_s: float = TIMEOUT_S,
) -> Path:
    """Return the verified file in `directory`, which is created; download it if it does not exist.

    An interrupted download leaves a .part file, which the next call continues. The mirror of the download is not used.
    If no address provided the right file, the CorpusError has the reason of each.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target, part = directory / download.file, directory / (download.file + ".part")
    if is_complete(download, directory):
        return target
    client = _Client(progress, timeout_s, {"User-Agent": agent})
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
    """Progress, time limit and headers of all requests of a download."""

    progress: Progress
    timeout_s: float
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
        response = urllib.request.build_opener(_Redirects).open(request, timeout=client.timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
            if download.digest and fault(part, download) is None:
                return None  # complete
            part.unlink()  # as long as the server's file or longer, so it is not a beginning of that
        return f"HTTP {error.code} {' '.join(str(error.reason).split())[:LONGEST_REASON]}"
    except urllib.error.URLError as error:
        return str(error.reason)[:LONGEST_REASON]
    except OPENING_ERRORS as error:
        return f"no answer ({type(error).__name__})"
    with response:
        return _save(response, part, received, download.size, client.progress)


def _save(
    response: http.client.HTTPResponse, part: Path, received: int, size: int | None, progress: Progress
) -> str | None:
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if resumes and not response.headers.get("Content-Range", "").startswith(f"bytes {received}-"):
        return "answers with another part of the file than requested"
    done, most = received if resumes else 0, LARGEST if size is None else size
    total = size if response.length is None else done + response.length
    if total is not None and total > most:
        return f"{total:,} bytes instead of {most:,}"
    with part.open("ab" if resumes else "wb") as file:
        while True:
            try:
                block = response.read1(BLOCK)
            except NETWORK_ERRORS as error:
                return f"interrupted after {done:,} bytes ({type(error).__name__})"
            done += len(block)
            if done > most or not block:
                break
            file.write(block)
            progress(done, total)
    if done > most:
        part.unlink()
        return f"more than {most:,} bytes"
    return f"interrupted after {done:,} of {total:,} bytes" if total is not None and done < total else None
