"""Archives that are bombs, encrypted, packed in unknown ways or damaged: refused in one line, within two seconds."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
import time
import tracemalloc
import zipfile
import zlib

import pytest

from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.unpack import SMALL, is_archive, unpack

HUGE = 3 << 30


def refusal(path):
    """Return the error of unpacking, which must come in time, without much memory and without a large file."""
    directory = path.parent / "out"
    directory.mkdir()
    started = time.monotonic()
    with pytest.raises(CorpusError) as refused:
        unpack(path, directory, lambda member: True)
    assert time.monotonic() - started < 20  # seconds; far less on an idle machine
    assert sum(file.stat().st_size for file in directory.rglob("*")) <= SMALL
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


BOMB = f"would unpack to more than {SMALL >> 20} MiB, far more than its size; this archive is not to be trusted"


def zeros(head=b""):
    """Return `head` and 3 GiB of zeros as a raw deflate stream of 3 MB."""
    packer, step = zlib.compressobj(9, wbits=-15), 1 << 24
    begin = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(step)) + packer.flush(zlib.Z_FULL_FLUSH)  # can be repeated
    return begin + block * (HUGE // step) + packer.flush()


def gzipped(stream):
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + stream + bytes(8)


def test_a_zip_bomb_is_refused_by_its_stated_size(tmp_path):
    stream = zeros()
    # zipfile cannot write a packed stream: pack a small member, then replace its data and its sizes.
    with zipfile.ZipFile(tmp_path / "small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", b"")
        info = archive.getinfo("text8")
        info.file_size, info.compress_size = HUGE, len(stream)
        archive.fp.write(stream)
        archive.start_dir = archive.fp.tell()
        archive._didModify = True
    assert (tmp_path / "small.zip").stat().st_size < 4 << 20
    assert refusal(tmp_path / "small.zip") == BOMB


def test_a_gzip_bomb_is_refused(tmp_path):
    (tmp_path / "text8.gz").write_bytes(gzipped(zeros()))
    assert refusal(tmp_path / "text8.gz") == BOMB


@pytest.mark.parametrize("name", ["text", "large.bin"])
def test_a_tar_bomb_is_refused(tmp_path, name):
    info = tarfile.TarInfo(name)
    info.size = HUGE
    (tmp_path / "a.tgz").write_bytes(gzipped(zeros(info.tobuf())))
    assert refusal(tmp_path / "a.tgz") == BOMB


def test_many_members_that_are_a_bomb_together_are_refused(tmp_path):
    member = tarfile.TarInfo("a")
    member.size = 1 << 20
    with gzip.open(tmp_path / "a.tgz", "wb", compresslevel=1) as file:
        for _ in range(70):
            file.write(member.tobuf() + bytes(1 << 20))
    assert refusal(tmp_path / "a.tgz") == BOMB


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_a_huge_header_of_a_tar_takes_little_memory(tmp_path, kind, opener):
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, HUGE
    with opener(tmp_path / "a.tar", "wb") as file:
        file.write(info.tobuf() + bytes(1 << 20))
    tracemalloc.start()
    assert is_archive(tmp_path / "a.tar")
    assert refusal(tmp_path / "a.tar").startswith("the archive is damaged (")
    assert tracemalloc.get_traced_memory()[1] < SMALL
    tracemalloc.stop()


def test_sparse_members_of_a_tar_are_refused(tmp_path):
    info = tarfile.TarInfo("text")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(10_240))
    assert "link or device" in refusal(tmp_path / "a.tar")


def a_zip(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", b"the fox " * 1000)
    return bytearray(path.read_bytes())


def test_an_encrypted_zip_is_refused(tmp_path):
    content = a_zip(tmp_path / "a.zip")
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert refusal(tmp_path / "a.zip") == 'the member "text8" is encrypted; unpack it first'


@pytest.mark.parametrize(("offset", "value", "reason"), [(10, 99, "compression"), (6, 99, "version 9.9")])
def test_an_unknown_zip_is_refused(tmp_path, offset, value, reason):
    content = a_zip(tmp_path / "a.zip")
    content[content.index(b"PK\x01\x02") + offset] = value
    if reason == "compression":
        content[8] = value
    (tmp_path / "a.zip").write_bytes(content)
    message = refusal(tmp_path / "a.zip")
    assert reason in message
    assert message.endswith("; unpack it with another program and name the folder")


def compressed_tar(opener):
    def make(path, texts):
        with opener(path, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name, text in texts.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))

    return make


def zipped(path, texts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)


MAKERS = {
    "tgz": compressed_tar(gzip.open),
    "tbz": compressed_tar(bz2.open),
    "txz": compressed_tar(lzma.open),
    "zip": zipped,
}
FLIPS = 200


def three_texts():
    words = random.Random(7).choices(["the", "fox", "jumps", "over", "dogs"], k=3000)
    return {f"text.{split}": " ".join(words[i::3]).encode() for i, split in enumerate(("train", "valid", "test"))}


def unpacked(path):
    """Return the content of the wanted members by name, or None if the archive is refused."""
    directory = path.with_name(f"{path.name}-out")
    directory.mkdir()
    try:
        unpack(path, directory, lambda member: member.startswith("text."))
    except CorpusError:
        return None
    return {entry.name: entry.read_bytes() for entry in directory.rglob("*") if entry.is_file()}


@pytest.mark.parametrize("kind", MAKERS)
def test_no_damage_of_an_archive_is_silent(tmp_path, kind):
    random_numbers, texts = random.Random(7), three_texts()
    MAKERS[kind](tmp_path / "whole", texts)
    whole = (tmp_path / "whole").read_bytes()
    harmless = 0
    for number in range(FLIPS):
        damaged = bytearray(whole)
        if number % 10:
            damaged[random_numbers.randrange(len(whole))] ^= 1 << random_numbers.randrange(8)
        else:
            damaged = damaged[: len(whole) * number // FLIPS]
        path = tmp_path / f"damaged{number}"
        path.write_bytes(damaged)
        content = unpacked(path)
        assert content in (None, texts)  # a time, a comment or the operating system may differ
        harmless += content is not None
    assert harmless < FLIPS // 2


def test_no_damage_of_a_name_in_a_zip_hides_its_member(tmp_path):
    zipped(tmp_path / "whole", three_texts())
    whole = (tmp_path / "whole").read_bytes()
    for name in three_texts():
        start = whole.rindex(name.encode())  # in the list at the end
        for place in range(start, start + len(name)):
            path = tmp_path / f"damaged{place}"
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert unpacked(path) is None


def test_no_damage_of_a_header_in_a_tar_hides_a_member(tmp_path):
    compressed_tar(open)(tmp_path / "whole", three_texts())
    whole = (tmp_path / "whole").read_bytes()
    for name in list(three_texts())[1:]:
        start = whole.index(name.encode())
        for place in range(start, start + 512, 7):
            path = tmp_path / f"damaged{place}"
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert unpacked(path) is None


def test_a_tar_that_ends_after_a_member_is_refused(tmp_path):
    compressed_tar(open)(tmp_path / "whole", three_texts())
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "short").write_bytes(whole[: whole.index(b"text.test")])
    assert unpacked(tmp_path / "short") is None


@pytest.mark.parametrize("kind", ["tgz", "tbz", "txz", "zip"])
def test_a_damaged_archive_is_never_taken_for_text(tmp_path, kind):
    MAKERS[kind](tmp_path / "whole", three_texts())
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / f"ptb.train.{kind}"
    for place in range(12, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        assert is_archive(path)
