"""Downloads the original files of a corpus over HTTP; resumes interrupted downloads, verifies size and digest.

The standard library has no download that can be resumed, and another dependency for these files is not worth it.
"""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

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
    failures = []
    for address in download.addresses:
        request = urllib.request.Request(address, headers={"User-Agent": agent})
        failure = _complete_part(request, part, download, progress, timeout_s)
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


def _complete_part(
    request: urllib.request.Request, part: Path, download: Download, progress: Progress, timeout_s: float
) -> str | None:
    """Complete the .part file from one address; return the error, or None."""
    failure: str | None = None
    for _ in range(ATTEMPTS):
        before = _size(part)
        failure = _receive(request, part, download, progress, timeout_s)
        if failure is None:
            failure = fault(part, download)
            if failure is not None:
                part.unlink()  # complete but wrong, so it cannot be continued
            return failure
        if _size(part) <= before:
            return failure
    return failure


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(
    request: urllib.request.Request, part: Path, download: Download, progress: Progress, timeout_s: float
) -> str | None:
    """Append the rest of the file; return the error, or None once it is complete."""
    received = _size(part)
    if download.size is not None and received >= download.size:
        return None
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
            return None  # as long as the server's file, or longer
        return f"HTTP {error.code} {' '.join(str(error.reason).split())[:LONGEST_REASON]}"
    except urllib.error.URLError as error:
        return str(error.reason)[:LONGEST_REASON]
    except OPENING_ERRORS as error:
        return f"no answer ({type(error).__name__})"
    with response:
        return _save(response, part, received, download.size, progress)


def _save(
    response: http.client.HTTPResponse, part: Path, received: int, size: int | None, progress: Progress
) -> str | None:
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
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
