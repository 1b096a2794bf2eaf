import hashlib
import http.client
import ssl
from collections.abc import Iterator

import pytest

from tests.corpora.server import Site, serving
from txlcli.corpora.corpus import CorpusError, Download
from txlcli.corpora.download import fetch

CONTENT = bytes(range(256)) * 1009
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving({"text.zip": CONTENT}) as site:
        yield site


def download(site: Site, *names: str, size: int | None = len(CONTENT), digest: str | None = DIGEST) -> Download:
    return Download("text.zip", tuple(site.url(name) for name in names or ("text.zip",)), size, digest)


def test_a_download_reports_progress_in_bytes(site, tmp_path):
    seen = []
    path = fetch(download(site), tmp_path / "new", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [entry.name for entry in path.parent.iterdir()] == ["text.zip"]


def test_an_existing_file_is_not_downloaded_again(site, tmp_path):
    fetch(download(site), tmp_path)
    fetch(download(site), tmp_path)
    assert len(site.requests) == 1


def test_a_damaged_existing_file_is_downloaded_again(site, tmp_path):
    (tmp_path / "text.zip").write_bytes(CONTENT[:-1] + b"?")
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT


def test_an_interrupted_download_is_resumed(site, tmp_path):
    site.break_after = 1000
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT
    assert site.requests == [("text.zip", None), ("text.zip", "bytes=1000-")]


@pytest.mark.parametrize("error", [ssl.SSLError(1, "bad record mac"), TimeoutError(), ConnectionResetError()])
def test_a_download_resumes_after_a_connection_error(site, tmp_path, monkeypatch, error):
    read, failures = http.client.HTTPResponse.read1, [None, error]

    def failing(response, amount):
        if failures and (failure := failures.pop(0)):
            raise failure
        return read(response, min(amount, 1000))

    monkeypatch.setattr(http.client.HTTPResponse, "read1", failing)
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT
    assert site.requests == [("text.zip", None), ("text.zip", "bytes=1000-")]


def test_the_next_address_is_tried_if_a_connection_always_fails(site, tmp_path, monkeypatch):
    read = http.client.HTTPResponse.read1

    def failing(response, amount):
        if site.requests[-1][0] == "other.zip":
            raise ssl.SSLError(1, "bad record mac")
        return read(response, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read1", failing)
    site.files["other.zip"] = CONTENT
    assert fetch(download(site, "other.zip", "text.zip"), tmp_path).read_bytes() == CONTENT
    with pytest.raises(CorpusError, match=r"other\.zip: interrupted after 0 bytes \(SSLError\)"):
        fetch(download(site, "other.zip"), tmp_path / "again")


def test_a_full_disk_is_not_reported_as_a_connection_error(site, tmp_path):
    (tmp_path / "text.zip.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        fetch(download(site), tmp_path)


def test_a_partial_file_from_an_earlier_call_is_continued(site, tmp_path):
    (tmp_path / "text.zip.part").write_bytes(CONTENT[:777])
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT
    assert site.requests == [("text.zip", "bytes=777-")]


def test_a_complete_partial_file_needs_no_request(site, tmp_path):
    (tmp_path / "text.zip.part").write_bytes(CONTENT)
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT
    assert site.requests == []


def test_a_complete_partial_file_of_unknown_size_is_kept(site, tmp_path):
    (tmp_path / "text.zip.part").write_bytes(CONTENT)
    assert fetch(download(site, size=None), tmp_path).read_bytes() == CONTENT
    assert site.requests == [("text.zip", f"bytes={len(CONTENT)}-")]


def test_a_partial_file_of_unknown_size_and_digest_is_downloaded_again(site, tmp_path):
    (tmp_path / "text.zip.part").write_bytes(CONTENT[::-1])
    addresses = ("text.zip", "text.zip")
    assert fetch(download(site, *addresses, size=None, digest=None), tmp_path).read_bytes() == CONTENT


def test_without_range_support_the_download_starts_again(site, tmp_path):
    site.ranges = False
    (tmp_path / "text.zip.part").write_bytes(CONTENT[:777])
    assert fetch(download(site), tmp_path).read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_file_is_discarded(site, tmp_path):
    (tmp_path / "text.zip.part").write_bytes(CONTENT + b"more")
    assert fetch(download(site, "text.zip", "text.zip", size=None), tmp_path).read_bytes() == CONTENT


def test_the_next_address_is_tried(site, tmp_path):
    assert fetch(download(site, "gone.zip", "text.zip"), tmp_path).read_bytes() == CONTENT


def test_the_http_error_of_a_server_is_reported(site, tmp_path):
    with pytest.raises(CorpusError, match=r"could not download text\.zip \(http://.*/gone\.zip: HTTP 404 Not Found\)"):
        fetch(download(site, "gone.zip"), tmp_path)


def test_a_server_that_does_not_answer_is_named(site, tmp_path):
    site.mute = "mute.zip"
    with pytest.raises(CorpusError, match=r"/mute\.zip: no answer \(RemoteDisconnected\)"):
        fetch(download(site, "mute.zip"), tmp_path)
    assert fetch(download(site, "mute.zip", "text.zip"), tmp_path).read_bytes() == CONTENT


def test_a_missing_server_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"could not download text\.zip \(http://127\.0\.0\.1:9/x: .*refused"):
        fetch(Download("text.zip", ("http://127.0.0.1:9/x",)), tmp_path)


def test_a_file_with_a_wrong_digest_is_refused_and_removed(site, tmp_path):
    with pytest.raises(CorpusError, match=f"wrong digest: sha256 {DIGEST[7:]} instead of 00"):
        fetch(download(site, digest="sha256:00"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_size_is_refused(site, tmp_path):
    with pytest.raises(CorpusError, match="258,304 bytes instead of 99"):
        fetch(download(site, size=99), tmp_path)


def test_an_incomplete_file_is_refused_and_can_be_resumed(site, tmp_path):
    site.files["text.zip"] = CONTENT[:5000]
    with pytest.raises(CorpusError, match="5,000 bytes instead of 258,304"):
        fetch(download(site), tmp_path)


def test_the_partial_file_is_kept_if_every_attempt_is_interrupted(site, tmp_path):
    site.break_after, site.ranges = 1000, False
    with pytest.raises(CorpusError, match="interrupted after 1,000"):
        fetch(download(site), tmp_path)
    assert (tmp_path / "text.zip.part").stat().st_size == 1000
