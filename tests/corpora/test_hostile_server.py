"""Downloads from servers that answer wrongly, endlessly, slowly, or with a redirect: refused in bounded time."""

import dataclasses
import itertools
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from tests.commands.novel import refusal
from txlcli.corpora.corpus import CorpusError, Download
from txlcli.corpora.download import Patience, fetch
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.planning import PrepareOptions, make_plan
from txlcli.workflows.preparation.preparing import run_plan
from txlcli.workflows.reporter import SilentReporter

HURRY = Patience(answer_s=1.0, least_bytes_per_s=1000, window_s=0.3)
OK = b"HTTP/1.1 200 OK\r\n"
BODY = b"x" * 10_000


@contextmanager
def server(answer, *, pause_s=0.0, context=None):
    """Serve connections on loopback; yield the address without scheme and the list of requests.

    Args:
        answer: blocks of the answer, which may be endless, or a function that returns them for the address.
        pause_s: time between blocks.
        context: of TLS.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    requests, stopped = [], threading.Event()

    def handle(connection):
        try:
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            requests.append(connection.recv(1 << 16))
            for block in answer(host) if callable(answer) else answer:
                if stopped.wait(pause_s) if pause_s else stopped.is_set():
                    break
                connection.sendall(block)
        except OSError:
            pass
        finally:
            connection.close()

    def accept():
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield host, requests
    finally:
        stopped.set()
        listener.close()


def failure(directory, host, *, scheme="http", size=None, seconds=5.0):
    """Return the error of a download, which must end in time."""
    started = time.monotonic()
    with pytest.raises(CorpusError) as refused:
        fetch(Download("text.zip", (f"{scheme}://{host}/x",), size), directory, patience=HURRY)
    assert time.monotonic() - started < seconds
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"could not download text.zip ({scheme}://{host}/x: ").removesuffix(")")


def endless():
    while True:
        yield b"x" * (1 << 16)


@pytest.mark.parametrize("length", ["abc", "-5", "1e9", "0x10", "٣", "9" * 5000, "1, 2"])
def test_a_malformed_content_length_is_refused(tmp_path, length):
    with server([OK, f"Content-Length: {length}\r\n\r\n".encode(), BODY]) as (host, _):
        assert failure(tmp_path, host) == "malformed Content-Length"


@pytest.mark.parametrize(
    "location", ["http://[", "http://127.0.0.1:port/", "http://127.0.0.1:99999/", "//", "http://", "http://a b\x01/"]
)
def test_a_malformed_redirect_is_refused(tmp_path, location):
    with server([f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()]) as (host, _):
        assert failure(tmp_path, host)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["ftp", "file", "data", "gopher"])
def test_a_redirect_to_another_protocol_is_refused(tmp_path, scheme):
    answer = f"HTTP/1.1 302 Found\r\nLocation: {scheme}://127.0.0.1/etc/passwd\r\nContent-Length: 0\r\n\r\n"
    with server([answer.encode()]) as (host, requests):
        assert failure(tmp_path, host).startswith("HTTP 302 ")
    assert len(requests) == 1


def test_a_redirect_loop_ends(tmp_path):
    loop = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with server([loop]) as (host, requests):
        assert failure(tmp_path, host) == "HTTP 302 redirected too often, Found"
    assert len(requests) <= 6


def test_a_chain_of_redirects_ends(tmp_path):
    count = iter(range(1000))

    def answer(host):
        return [
            f"HTTP/1.1 302 Found\r\nLocation: /{next(count)}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        ]

    with server(answer) as (host, requests):
        assert failure(tmp_path, host) == "HTTP 302 redirected too often, Found"
    assert len(requests) == 6


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """Make a certificate for loopback that this process trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    try:
        subprocess.run([*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def test_https_is_not_downgraded(tmp_path, tls):
    body = [OK, b"Content-Length: 1\r\n\r\nx"]
    with server(body) as (plain, requests):
        answer = [f"HTTP/1.1 302 Found\r\nLocation: http://{plain}/x\r\nContent-Length: 0\r\n\r\n".encode()]
        with server(answer, context=tls) as (host, _):
            message = failure(tmp_path / "new", host, scheme="https")
    assert message == "HTTP 302 redirects from https to http, refused"
    assert requests == []


def test_http_may_be_redirected_to_https(tmp_path, tls):
    with server([OK, b"Content-Length: 1\r\n\r\nx"], context=tls) as (secure, _):
        answer = [f"HTTP/1.1 302 Found\r\nLocation: https://{secure}/x\r\nContent-Length: 0\r\n\r\n".encode()]
        with server(answer) as (host, _):
            path = fetch(Download("text", (f"http://{host}/x",)), tmp_path / "new")
    assert path.read_bytes() == b"x"


def test_a_longer_file_than_published_is_refused_at_once(tmp_path):
    with server([OK, b"Content-Length: 99999999999\r\n\r\n", BODY]) as (host, _):
        assert failure(tmp_path, host, size=7) == "99,999,999,999 bytes instead of 7"
        assert failure(tmp_path, host) == "99,999,999,999 bytes instead of 8,589,934,592"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("header", [b"", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_without_end_is_cut_at_the_published_size(tmp_path, header):
    def answer(host):
        yield OK + header + b"\r\n"
        for block in endless():
            yield b"%x\r\n%s\r\n" % (len(block), block) if header else block

    with server(answer) as (host, _):
        assert failure(tmp_path, host, size=100_000) == "more than 100,000 bytes"
    assert list(tmp_path.iterdir()) == []


def test_another_part_than_requested_is_refused(tmp_path):
    (tmp_path / "text.zip.part").write_bytes(b"abc")
    with server([b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n", BODY]) as served:
        assert failure(tmp_path, served[0]) == "answers with another part of the file than requested"
    assert (tmp_path / "text.zip.part").read_bytes() == b"abc"


def test_a_body_that_trickles_is_given_up(tmp_path):
    blocks = [OK + b"Content-Length: 10000\r\n\r\n", *[b"x"] * 10_000]
    with server(blocks, pause_s=0.05) as (host, _):
        assert failure(tmp_path, host).startswith("slower than 1000 bytes/s after ")


def test_headers_that_trickle_are_given_up(tmp_path):
    with server([b"HTTP/1.1 200 OK\r\nX-Header: ", *[b"x"] * 10_000], pause_s=0.05) as (host, _):
        assert failure(tmp_path, host) == "no answer (TimeoutError)"


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize("frame", [b"5;", b"0\r\nX-Trailer: "], ids=["the size of a chunk", "a trailer"])
def test_the_frame_of_a_chunk_that_trickles_is_given_up(tmp_path, frame):
    with server([CHUNKED + frame, *[b"x"] * 10_000], pause_s=0.05) as (host, _):
        assert failure(tmp_path, host) == "interrupted after 3 bytes (TimeoutError)"


def test_trailers_without_end_are_given_up(tmp_path):
    with server(lambda _: itertools.chain([CHUNKED + b"0\r\n"], itertools.repeat(b"X: x\r\n" * 99))) as (host, _):
        assert failure(tmp_path, host) == "interrupted after 3 bytes (TimeoutError)"


def test_a_slow_download_continues_without_a_least_rate(tmp_path):
    blocks = [OK + b"Content-Length: 20\r\n\r\n", *[b"x"] * 20]
    with server(blocks, pause_s=0.03) as (host, _):
        patience = dataclasses.replace(HURRY, least_bytes_per_s=0)
        assert fetch(Download("text", (f"http://{host}/x",)), tmp_path, patience=patience).read_bytes() == b"x" * 20


@pytest.mark.parametrize(("rate", "gives_up"), [(1e6, True), (0, False)])
def test_the_least_rate_of_a_preparation_can_be_chosen(tmp_path, rate, gives_up):
    blocks = [OK + b"Content-Length: 700\r\n\r\n", *[b"a " * 5] * 70]
    plan = make_plan("text8", tmp_path, PrepareOptions(min_rate=rate, workers=1))
    patience = dataclasses.replace(plan.patience, window_s=0.2)
    with server(blocks, pause_s=0.01) as (host, _):
        downloads = (Download("text8", (f"http://{host}/x",)),)
        corpus = dataclasses.replace(plan.corpus, downloads=downloads, digests={})
        plan = dataclasses.replace(plan, corpus=corpus, patience=patience)
        if gives_up:
            with pytest.raises(CorpusInputError, match="slower than 1e\\+06 bytes/s"):
                run_plan(plan, SilentReporter())
        else:
            assert run_plan(plan, SilentReporter()).info("train").tokens == 630


def test_the_reason_of_a_server_is_cut(tmp_path):
    with server([b"HTTP/1.1 500 " + b"a" * 5000 + b"\r\nContent-Length: 0\r\n\r\n"]) as (host, _):
        assert failure(tmp_path, host) == f"HTTP 500 {'a' * 100}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stdlib", "--min-rate", "1"], "--min-rate has no effect here: nothing is downloaded; leave it out"),
        (["text8", "--min-rate", "-1"], "--min-rate -1 is no rate; give bytes/s, or 0 for no limit"),
        (["text8", "--min-rate", "nan"], "--min-rate nan is no rate; give bytes/s, or 0 for no limit"),
    ],
)
def test_a_rate_without_effect_or_sense_is_refused(tmp_path, arguments, message):
    assert refusal("prepare", *arguments, "--data-dir", tmp_path) == message
