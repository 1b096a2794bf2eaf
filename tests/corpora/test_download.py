import hashlib
import http.client
import socket
import ssl
from collections.abc import Iterator

import pytest

from tests.corpora.server import Site, serving
from txlcli.corpora import download as downloading
from txlcli.corpora.corpus import CorpusError, Download

CONTENT = bytes(range(256)) * 1009
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def fetch(wanted, directory, progress=print, **options):
    return downloading.fetch(wanted, directory, progress, "txl", **options)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving({"text.zip": CONTENT}) as site:
        yield site


def download(site: Site, *names: str, size: int | None = len(CONTENT), digest: str | None = DIGEST) -> Download:
    return Download("text.zip", tuple(site.url(name) for name in names or ("text.zip",)), size, digest)


def test_a_download_reports_progress_in_bytes(site, tmp_path):
    seen = []
    path = fetch(download(site), tmp_path / "new", seen.append)
    assert path.read_bytes() == CONTENT
    assert seen[-1] == len(CONTENT)
    assert [entry.name for entry in path.parent.iterdir()] == ["text.zip"]


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


def test_a_full_disk_is_reported_as_such(site, tmp_path):
    (tmp_path / "text.zip.part").symlink_to("/dev/full")
    with pytest.raises(CorpusError, match=r"text\.zip: No space left on device"):
        fetch(download(site), tmp_path)


def test_an_address_that_cannot_be_reached_is_named_with_the_reason(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(CorpusError, match=rf"\(http://127\.0\.0\.1:{port}/text\.zip: Connection refused\)$"):
        fetch(Download("text.zip", (f"http://127.0.0.1:{port}/text.zip",), len(CONTENT), DIGEST), tmp_path)


BEFORE = {
    "a damaged file": ("text.zip", CONTENT[:-1] + b"?", {}, [None]),
    "a part": ("text.zip.part", CONTENT[:777], {}, ["bytes=777-"]),
    "a part, no ranges": ("text.zip.part", CONTENT[:777], {"ranges": False}, ["bytes=777-"]),
    "a complete part": ("text.zip.part", CONTENT, {}, [f"bytes={len(CONTENT)}-"]),
    "a longer part": ("text.zip.part", CONTENT + b"more", {}, [f"bytes={len(CONTENT) + 4}-", None]),
    "nothing, interrupted": ("other", b"", {"break_after": 1000}, [None, "bytes=1000-"]),
}


@pytest.mark.parametrize("case", BEFORE)
def test_what_an_earlier_call_left_is_continued_or_replaced(site, tmp_path, case):
    name, content, server, ranges = BEFORE[case]
    (tmp_path / name).write_bytes(content)
    vars(site).update(server)
    assert fetch(download(site, "text.zip", "text.zip", size=None), tmp_path).read_bytes() == CONTENT
    assert site.requests == [("text.zip", wanted) for wanted in ranges]


def test_a_server_that_does_not_answer_is_named(site, tmp_path):
    site.mute = "mute.zip"
    with pytest.raises(CorpusError, match=r"/mute\.zip: Remote end closed connection"):
        fetch(download(site, "mute.zip"), tmp_path)
    assert fetch(download(site, "mute.zip", "gone.zip", "text.zip"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("published", "message"),
    [
        ({"digest": "sha256:00"}, f"wrong digest: sha256 {DIGEST[7:]} instead of 00"),
        ({"size": 99}, "more than 99 bytes"),
        ({"size": 300_000}, "258,304 bytes instead of 300,000"),
    ],
)
def test_another_file_than_published_is_rejected_and_removed(site, tmp_path, published, message):
    with pytest.raises(CorpusError, match=message):
        fetch(download(site, **published), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_partial_file_is_kept_if_every_attempt_is_interrupted(site, tmp_path):
    site.break_after, site.ranges = 1000, False
    with pytest.raises(CorpusError, match="interrupted after 1,000"):
        fetch(download(site), tmp_path)
    assert (tmp_path / "text.zip.part").stat().st_size == 1000


def test_a_silent_server_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts connections and sends nothing
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(CorpusError, match=r"/x: (timed out|<urlopen error timed out>)\)$"):
            fetch(Download("text.zip", (address,), None), tmp_path, timeout_s=0.5)
