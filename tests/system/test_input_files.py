import io
import os
import socket
from pathlib import Path

import pytest

from txlcli.errors import UsageError
from txlcli.system.input_files import read_bytes, read_stream, read_text
from txlcli.system.plain_json import parse_json

SPECIAL = {
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_rejected_before_it_is_opened(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    SPECIAL[kind](Path("input"))
    with pytest.raises(UsageError, match="input is a pipe, socket or device"):
        read_bytes(Path("input"), 7)


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "text").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("text")
    assert read_bytes(tmp_path / "link", 3) == b"abc"


@pytest.mark.parametrize(("most", "size"), [(1 << 10, "1 KiB"), (3 << 20, "3 MiB")])
def test_a_file_above_the_limit_is_rejected(tmp_path, most, size):
    path = tmp_path / "text"
    path.write_bytes(b"x" * most)
    assert len(read_bytes(path, most)) == most
    path.write_bytes(b"x" * (most + 1))
    with pytest.raises(UsageError, match=f"larger than {size}"):
        read_bytes(path, most)


def test_a_stream_is_not_read_beyond_the_limit():
    stream = io.BytesIO(b"x" * 9999)
    with pytest.raises(UsageError, match="stdin: larger than 1 KiB"):
        read_stream(stream, 1 << 10, "stdin")
    assert stream.tell() == 1025


def test_text_is_read_without_mark_and_with_plain_line_ends(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\r\nb\rc\n".encode())
    assert read_text(tmp_path / "text", 99) == "a\nb\nc\n"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "{", ""])
def test_json_that_cannot_be_parsed_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
