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
from .special_files import refuse_special

# Called with the number of bytes on disk and the total, or None if the server does not send it.
Progress = Callable[[int, int | None], None]

BLOCK = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 3  # per address, as long as each receives more bytes
# TLS errors are OSErrors, too. A full disk is also an OSError, so only calls that do not write may catch these.
NETWORK_ERRORS = (OSError, http.client.HTTPException)
# Some hosts refuse Python's own user agent.
HEADERS = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"
}


def silent(done: int, total: int | None) -> None:
    """Report nothing."""


def fetch(download: Download, folder: Path, progress: Progress = silent) -> Path:
    """Return the verified file in `folder`; download it if it does not exist.

    An interrupted download leaves a .part file, which the next call continues.

    Raises:
        CorpusError: no address provided the right file; the message has the error of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / download.file, folder / (download.file + ".part")
    if target.exists() and fault(refuse_special(target), download) is None:
        return target
    failures = []
    for address in download.addresses:
        failure = _try_address(address, part, download, progress)
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


def _try_address(address: str, part: Path, download: Download, progress: Progress) -> str | None:
    """Complete the .part file from one address; return the error, or None."""
    failure: str | None = "no data received"
    for _ in range(ATTEMPTS):
        before = _size(part)
        failure = _receive(address, part, download, progress)
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


def _receive(address: str, part: Path, download: Download, progress: Progress) -> str | None:
    """Append the rest of the file; return the error, or None once it is complete."""
    received = _size(part)
    if download.size is not None and received >= download.size:
        return None
    request = urllib.request.Request(address, headers=HEADERS | ({"Range": f"bytes={received}-"} if received else {}))
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
            if download.digest and fault(part, download) is None:
                return None  # complete
            part.unlink()  # as long as the server's file or longer, so it is not a beginning of that
        return f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except NETWORK_ERRORS as error:
        return f"no answer ({type(error).__name__})"
    with response:
        return _save(response, part, received, download.size, progress)


def _save(
    response: http.client.HTTPResponse, part: Path, received: int, size: int | None, progress: Progress
) -> str | None:
    resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
    done = received if resumes else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else size
    with part.open("ab" if resumes else "wb") as file:
        while True:
            try:
                block = response.read(BLOCK)
            except NETWORK_ERRORS as error:
                return f"interrupted after {done:,} bytes ({type(error).__name__})"
            if not block:
                break
            file.write(block)
            done += len(block)
            progress(done, total)
    if total is not None and done < total:
        return f"interrupted after {done:,} of {total:,} bytes"
    return None
