import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile

import pytest
import sentencepiece

from tests.bombs import HUGE, packed_zeros, zip_of
from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.signatures import format_of, reject_other_than_text
from txlcli.corpora.unpack import SMALL, unpack

FLIPS = 200


def a_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def a_tar(opener, tar_format=tarfile.PAX_FORMAT, links=()):
    def make(path, members):
        with opener(path, "wb") as file, tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            for name, target in links:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                archive.addfile(info)
        return path

    return make


def a_compressed(opener):
    def make(path, members):
        with opener(path, "wb") as file:
            file.write(b"".join(members.values()))
        return path

    return make


ARCHIVES = {"zip": a_zip, "tgz": a_tar(gzip.open), "tbz": a_tar(bz2.open), "txz": a_tar(lzma.open)}
PACKERS = ARCHIVES | {
    "tar": a_tar(open),
    "GNU's tar": a_tar(open, tarfile.GNU_FORMAT),
    "gz": a_compressed(gzip.open),
    "bz2": a_compressed(bz2.open),
    "xz": a_compressed(lzma.open),
}


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("make", ARCHIVES.values(), ids=ARCHIVES)
def test_only_wanted_members_are_written(tmp_path, out, make):
    archive = make(tmp_path / "archive", {"a/train.txt": b"one", "a/other.txt": b"two", "archive": b"three"})
    unpack(archive, out, "train.txt".__eq__)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"train.txt": b"one"}


@pytest.mark.parametrize("make", ARCHIVES.values(), ids=ARCHIVES)
def test_of_two_files_with_the_same_name_none_replaces_the_other(tmp_path, out, make):
    archive = make(tmp_path / "archive", {"wikitext-2/wiki.train.tokens": b"one", "103/wiki.train.tokens": b"two"})
    with pytest.raises(CorpusError, match=r"wikitext-2/wiki\.train\.tokens and 103/wiki\.train\.tokens have the same"):
        unpack(archive, out, "wiki.train.tokens".__eq__)


@pytest.mark.parametrize("kind", ["zip", "tgz"])
@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:evil.txt"])
def test_no_member_is_written_outside_the_directory(tmp_path, out, kind, name):
    unpack(PACKERS[kind](tmp_path / "archive", {name: b"x"}), out, bool)
    assert list(tmp_path.rglob("*evil*")) == [out / "evil.txt"]


def test_links_in_a_tar_are_not_written(tmp_path, out):
    unpack(a_tar(gzip.open, links=[("way-out", "/etc")])(tmp_path / "a.tgz", {"a": b"one"}), out, bool)
    assert [path.name for path in out.iterdir()] == ["a"]


def test_a_single_gzip_file_is_unpacked_under_its_own_name(tmp_path, out):
    unpack(PACKERS["gz"](tmp_path / "text8.gz", {"a": b" a b"}), out, "another".__eq__)
    assert (out / "text8").read_bytes() == b" a b"


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files_of_every_format_are_recognized_by_content_and_rejected_as_text(tmp_path, kind):
    (tmp_path / "plain.txt").write_text("plain")
    packed = PACKERS[kind](tmp_path / "book.txt", {"a": b"text"})
    assert format_of(packed)
    assert not format_of(tmp_path)
    with pytest.raises(CorpusError, match=r"book\.txt: an archive or compressed file"):
        reject_other_than_text(tmp_path / "plain.txt", packed)


@pytest.mark.parametrize(
    "options", [{}, {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}, {"bos_id": 0, "unk_id": 1}]
)
def test_a_sentencepiece_model_is_not_text(tmp_path, options):
    path = tmp_path / "tokenizer.model"
    with path.open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the fox jumps"] * 9),
            model_writer=model,
            vocab_size=16,
            minloglevel=2,
            **({"eos_id": 2} | options),
        )
    with pytest.raises(CorpusError, match="a SentencePiece model"):
        reject_other_than_text(path)


@pytest.mark.parametrize("content", [b"", b"no zip", b"BZh is no bzip2", b"7z", bytes(range(256)) * 3, bytes(1000)])
def test_text_and_other_bytes_are_not_recognized_as_packed(tmp_path, content):
    (tmp_path / "book.zip").write_bytes(content)
    reject_other_than_text(tmp_path / "book.zip")


def refusal(path):
    """Return the error of unpacking, which must not write a large file."""
    directory = path.parent / "out"
    with pytest.raises(CorpusError) as refused:
        unpack(path, directory, bool)
    assert sum(file.stat().st_size for file in directory.rglob("*")) <= SMALL
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


def zip_bomb(path):
    zip_of(path, "text8", packed_zeros(), HUGE)


def gzip_bomb(path, head=b""):
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packed_zeros(head) + bytes(8))


def tar_bomb(path):
    info = tarfile.TarInfo("text")
    info.size = HUGE
    gzip_bomb(path, info.tobuf())


@pytest.mark.parametrize("make", [zip_bomb, gzip_bomb, tar_bomb])
def test_a_bomb_is_rejected(tmp_path, out, make):
    make(tmp_path / "bomb.gz")
    assert (tmp_path / "bomb.gz").stat().st_size < 4 << 20
    assert f"would unpack to more than {SMALL >> 20} MiB" in refusal(tmp_path / "bomb.gz")


def test_an_encrypted_zip_is_rejected(tmp_path, out):
    content = bytearray(a_zip(tmp_path / "a.zip", {"text8": b"the fox " * 1000}).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "unpack it with another program" in refusal(tmp_path / "a.zip")


def three_texts():
    words = random.Random(7).choices(["the", "fox", "jumps", "over", "dogs"], k=3000)
    return {f"text.{split}": " ".join(words[i::3]).encode() for i, split in enumerate(("train", "valid", "test"))}


def unpacked(path, data):
    """Return the content of the wanted members of an archive by name, or None if it is refused."""
    path.write_bytes(data)
    directory = path.with_name(f"{path.name}-out")
    directory.mkdir()
    try:
        unpack(path, directory, lambda name: name.startswith("text."))
    except CorpusError:
        return None
    return {entry.name: entry.read_bytes() for entry in directory.iterdir()}


def flipped(data, at, bit):
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


@pytest.mark.parametrize("kind", ARCHIVES)
def test_no_damage_of_an_archive_is_silent_or_makes_it_text(tmp_path, kind):
    random_numbers, texts = random.Random(7), three_texts()
    whole = ARCHIVES[kind](tmp_path / "whole", texts).read_bytes()
    harmless = 0
    for number in range(FLIPS):
        damaged = whole[: len(whole) * number // FLIPS]
        if number % 10:
            damaged = flipped(whole, random_numbers.randrange(len(whole)), 1 << random_numbers.randrange(8))
        content = unpacked(tmp_path / f"damaged{number}", damaged)
        assert content in (None, texts)  # a time, a comment or the operating system may differ
        harmless += content is not None
    assert harmless < FLIPS // 2
    for place in range(12, len(whole), 97):
        (tmp_path / "ptb.train").write_bytes(flipped(whole, place, 8))
        assert format_of(tmp_path / "ptb.train")


def test_files_of_a_tar_after_a_damaged_header_are_not_lost_without_a_word(tmp_path, out):
    archive = a_tar(open)(tmp_path / "a.tar", {"train.txt": b"one", "valid.txt": b"two"})
    data = bytearray(archive.read_bytes())
    data[data.index(b"valid.txt")] ^= 1
    archive.write_bytes(data)
    assert "the archive is damaged" in refusal(archive)
