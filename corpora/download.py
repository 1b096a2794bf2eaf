"""Fetches the original files of a corpus over HTTP: resumable, with size and digest verified."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from corpora.corpus import CorpusError, Download

# Called with the bytes that lie on disk and the bytes in all, where the server says them.
Progress = Callable[[int, int | None], None]

BLOCK = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 3  # per address, as long as each brings something
# TLS fails with an OSError of its own. Only calls that do not write may be watched for these: a full disk is one, too.
NETWORK_ERRORS = (OSError, http.client.HTTPException)
# Some hosts turn away Python's own name.
HEADERS = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"
}


def silent(done: int, total: int | None) -> None:
    """Report nothing."""


def fetch(download: Download, folder: Path, progress: Progress = silent) -> Path:
    """The verified file in `folder`, downloaded where it is not there yet.

    A download that breaks off leaves a .part file, and the next call goes on from there.

    Raises:
        CorpusError: no address gave the right file; the message says what each of them did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / download.file, folder / (download.file + ".part")
    if target.exists() and fault(target, download) is None:
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
    """What is wrong with a file that should be `download`, or None."""
    size = path.stat().st_size
    if download.size is not None and size != download.size:
        return f"{size:,} bytes instead of {download.size:,}"
    return digest_fault(path, download.digest) if download.digest else None


def digest_fault(path: Path, digest: str) -> str | None:
    """What is wrong with the content of a file whose digest should be "algorithm:hex", or None."""
    algorithm, expected = digest.split(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    return None if found == expected else f"wrong digest: {algorithm} {found} instead of {expected}"


def _try_address(address: str, part: Path, download: Download, progress: Progress) -> str | None:
    """Fill the .part file from one address; what went wrong, or None."""
    failure: str | None = "nothing came"
    for _ in range(ATTEMPTS):
        before = _size(part)
        failure = _receive(address, part, download, progress)
        if failure is None:
            failure = fault(part, download)
            if failure is None:
                return None
            part.unlink()  # complete but wrong: going on from it cannot help
            return failure
        if _size(part) <= before:
            return failure
    return failure


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(address: str, part: Path, download: Download, progress: Progress) -> str | None:
    """Append what the server sends after what is there; None once it is complete."""
    have = _size(part)
    if download.size is not None and have >= download.size:
        return None
    request = urllib.request.Request(address, headers=HEADERS | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            if download.digest and fault(part, download) is None:
                return None  # nothing is missing
            part.unlink()  # as long as the server's file or longer, so not a beginning of it
        return f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except NETWORK_ERRORS as error:
        return f"no answer ({type(error).__name__})"
    with response:
        return _save(response, part, have, download.size, progress)


def _save(
    response: http.client.HTTPResponse, part: Path, have: int, size: int | None, progress: Progress
) -> str | None:
    goes_on = response.status == http.HTTPStatus.PARTIAL_CONTENT
    done = have if goes_on else 0
    coming = response.headers.get("Content-Length")
    total = done + int(coming) if coming else size
    with part.open("ab" if goes_on else "wb") as file:
        while True:
            try:
                block = response.read(BLOCK)
            except NETWORK_ERRORS as error:
                return f"broke off after {done:,} bytes ({type(error).__name__})"
            if not block:
                break
            file.write(block)
            done += len(block)
            progress(done, total)
    if total is not None and done < total:
        return f"broke off after {done:,} of {total:,} bytes"
    return None
