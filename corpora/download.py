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

BLOCK = 1 << 20
LARGEST = 8 << 30  # bytes of a file whose size is not published
ATTEMPTS = 3  # per address, as long as each receives more bytes
TIMEOUT_S = 60.0  # until the connection, and between two blocks


def is_complete(download: Download, directory: Path) -> bool:
    """Return True if the verified file is in `directory`."""
    target = directory / download.file
    return target.exists() and fault(target, download) is None


def fetch(
    download: Download,
    directory: Path,
    progress: Callable[[int], None],
    agent: str,
    timeout_s: float = TIMEOUT_S,
) -> Path:
    """Return the verified file in `directory`, which is created; download it if it does not exist.

    An interrupted download leaves a .part file, which the next call continues. The mirror of the download is not used.
    If no address provided the right file, the CorpusError has the reason of each. `progress` gets the bytes on disk;
    `agent` replaces Python's own user agent, which some hosts reject.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / download.file
    part = directory / f"{download.file}.part"
    if is_complete(download, directory):
        return target
    failures: dict[str, CorpusError] = {}
    for address in download.addresses:
        request = urllib.request.Request(address, headers={"User-Agent": agent})
        for _ in range(ATTEMPTS):
            before = _size(part)
            try:
                _complete(part, request, download, progress, timeout_s)
                return part.replace(target)
            except CorpusError as error:
                failures[address] = error
            if _size(part) <= before:
                break
    reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
    raise CorpusError(f"could not download {download.file} ({reasons})")


def fault(path: Path, download: Download) -> str | None:
    """Return the difference between a file and `download`, or None."""
    size = path.stat().st_size
    if download.size is not None and size != download.size:
        return f"{size:,} bytes instead of {download.size:,}"
    if download.digest is None:
        return None
    return digest_fault(path, download.digest)


def digest_fault(path: Path, digest: str) -> str | None:
    """Return the difference between the digest of a file and the expected "algorithm:hex", or None."""
    algorithm, expected = digest.split(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual == expected:
        return None
    return f"wrong digest: {algorithm} {actual} instead of {expected}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _complete(
    part: Path, request: urllib.request.Request, download: Download, progress: Callable[[int], None], timeout_s: float
) -> None:
    """Complete the .part file and verify it; remove it if it is complete but wrong, so that it is not continued."""
    received = _size(part)
    max_size = download.size or LARGEST
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            mode = "wb"
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                mode = "ab"
            with part.open(mode) as file:
                while block := response.read1(BLOCK):
                    file.write(block)
                    received = file.tell()
                    if received > max_size:
                        part.unlink()
                        raise CorpusError(f"more than {max_size:,} bytes")
                    progress(received)
                if response.length:
                    received = file.tell()
                    raise CorpusError(f"interrupted after {received:,} of {received + response.length:,} bytes")
    except (OSError, http.client.HTTPException, ValueError) as error:  # a redirect may have a malformed address
        # A file that is as long as the server's, or longer, is complete.
        if getattr(error, "code", None) != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise CorpusError(_reason(error)) from error
    wrong = fault(part, download)
    if wrong is not None:
        part.unlink()
        raise CorpusError(wrong)


def _reason(error: Exception) -> str:
    """Return why a connection failed, on one line."""
    cause = error.reason if type(error) is urllib.error.URLError else error
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(reason.split())[:100]
