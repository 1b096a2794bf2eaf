import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
import zlib

import pytest

from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.signatures import format_of, reject_packed
from txlcli.corpora.unpack import SMALL, unpack

EVERYTHING = ".+"


def a_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def a_tar(path, members, links=()):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("make", [a_zip, a_tar])
def test_only_wanted_members_are_written(tmp_path, out, make):
    archive = make(tmp_path / "archive", {"a/train.txt": b"one", "a/other.txt": b"two"})
    unpack(archive, out, r"train\.txt")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"train.txt": b"one"}


@pytest.mark.parametrize("make", [a_zip, a_tar])
@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:evil.txt"])
def test_no_member_is_written_outside_the_directory(tmp_path, out, make, name):
    unpack(make(tmp_path / "archive", {name: b"x"}), out, EVERYTHING)
    assert [path.name for path in out.iterdir()] == ["evil.txt"]
    assert list(tmp_path.rglob("*evil*")) == [out / "evil.txt"]


def test_links_in_a_tar_are_not_written(tmp_path, out):
    unpack(a_tar(tmp_path / "a.tgz", {"a": b"one"}, links=[("way-out", "/etc")]), out, EVERYTHING)
    assert [path.name for path in out.iterdir()] == ["a"]


def test_a_single_gzip_file_is_unpacked_under_its_own_name(tmp_path, out):
    (tmp_path / "text8.gz").write_bytes(gzip.compress(b" a b"))
    unpack(tmp_path / "text8.gz", out, "another")
    assert (out / "text8").read_bytes() == b" a b"


def test_archives_are_recognized_by_content(tmp_path):
    (tmp_path / "plain.zip").write_bytes(b"no zip at all")
    (tmp_path / "empty.tgz").write_bytes(b"")
    assert not format_of(tmp_path / "plain.zip")
    assert not format_of(tmp_path / "empty.tgz")
    assert not format_of(tmp_path)
    whole = a_zip(tmp_path / "a", {"x": b"1"})
    assert format_of(whole)
    (tmp_path / "a.part").write_bytes(whole.read_bytes()[:9])
    assert format_of(tmp_path / "a.part")
    assert format_of(a_tar(tmp_path / "b", {"x": b"1"}))


def a_compressed(module):
    def make(path, members):
        path.write_bytes(module.compress(b"".join(members.values())))
        return path

    return make


def a_plain_tar(path, members, tar_format):
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name in members:
            archive.addfile(tarfile.TarInfo(name))
    return path


PACKERS = {
    "zip": a_zip,
    "tar.gz": a_tar,
    "tar": lambda path, members: a_plain_tar(path, members, tarfile.PAX_FORMAT),
    "GNU's tar": lambda path, members: a_plain_tar(path, members, tarfile.GNU_FORMAT),
    "gz": a_compressed(gzip),
    "bz2": a_compressed(bz2),
    "xz": a_compressed(lzma),
}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files_of_every_format_are_rejected_as_text(tmp_path, kind):
    (tmp_path / "plain.txt").write_text("plain")
    packed = PACKERS[kind](tmp_path / "book.txt", {"a": b"text"})
    with pytest.raises(CorpusError, match=r"book\.txt: an archive or compressed file is not text; unpack it first"):
        reject_packed([tmp_path / "plain.txt", packed])


@pytest.mark.parametrize("content", [b"", b"BZh is no bzip2", b"7z", bytes(range(256)) * 3, bytes(1000)])
def test_text_and_other_bytes_are_not_recognized_as_packed(tmp_path, content):
    (tmp_path / "book.txt").write_bytes(content)
    packed = a_zip(tmp_path / "packed.zip", {"a": b"text"})
    with pytest.raises(CorpusError, match=r"packed\.zip: an archive"):
        reject_packed([tmp_path / "book.txt", packed])


HUGE = 3 << 30


def refusal(path):
    """Return the error of unpacking, which must not write a large file."""
    directory = path.parent / "out"
    directory.mkdir()
    with pytest.raises(CorpusError) as refused:
        unpack(path, directory, EVERYTHING)
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


def test_a_zip_bomb_is_rejected_by_its_stated_size(tmp_path):
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


def test_a_gzip_bomb_is_rejected(tmp_path):
    (tmp_path / "text8.gz").write_bytes(gzipped(zeros()))
    assert refusal(tmp_path / "text8.gz") == BOMB


@pytest.mark.parametrize("name", ["text", "large.bin"])
def test_a_tar_bomb_is_rejected(tmp_path, name):
    info = tarfile.TarInfo(name)
    info.size = HUGE
    (tmp_path / "a.tgz").write_bytes(gzipped(zeros(info.tobuf())))
    assert refusal(tmp_path / "a.tgz") == BOMB


def a_deflated_zip(path):
    zipped(path, {"text8": b"the fox " * 1000})
    return bytearray(path.read_bytes())


def test_an_encrypted_zip_is_rejected(tmp_path):
    content = a_deflated_zip(tmp_path / "a.zip")
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert refusal(tmp_path / "a.zip").endswith("; unpack it with another program and name the folder")


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
        unpack(path, directory, r"text\..*")
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


@pytest.mark.parametrize("kind", ["tgz", "tbz", "txz", "zip"])
def test_a_damaged_archive_is_never_taken_for_text(tmp_path, kind):
    MAKERS[kind](tmp_path / "whole", three_texts())
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / f"ptb.train.{kind}"
    for place in range(12, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        assert format_of(path)
