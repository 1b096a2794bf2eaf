import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from txlcli.corpora.corpus import CorpusError
from txlcli.corpora.signatures import refuse_packed
from txlcli.corpora.unpack import is_archive, unpack


def everything(member: str) -> bool:
    return True


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


@pytest.mark.parametrize("make", [a_zip, a_tar])
def test_only_wanted_members_are_written(tmp_path, make):
    archive = make(tmp_path / "archive", {"a/train.txt": b"one", "a/other.txt": b"two"})
    unpack(archive, tmp_path / "out", lambda member: member.endswith("train.txt"))
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["train.txt"]
    assert (tmp_path / "out/a/train.txt").read_bytes() == b"one"


@pytest.mark.parametrize("make", [a_zip, a_tar])
@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:evil.txt"])
def test_a_member_outside_the_directory_is_refused(tmp_path, make, name):
    archive = make(tmp_path / "archive", {name: b"x"})
    with pytest.raises(CorpusError, match="would leave the folder"):
        unpack(archive, tmp_path / "out", everything)
    assert not list(tmp_path.rglob("evil*"))


def test_links_in_a_tar_are_refused(tmp_path):
    with pytest.raises(CorpusError, match='"way-out" is a link'):
        unpack(a_tar(tmp_path / "a.tgz", {}, links=[("way-out", "/etc")]), tmp_path / "out", everything)


def test_links_in_a_zip_are_refused(tmp_path):
    info = zipfile.ZipInfo("way-out")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc")
    with pytest.raises(CorpusError, match='"way-out" is a link'):
        unpack(tmp_path / "a.zip", tmp_path / "out", everything)


def test_a_single_gzip_file_is_unpacked_under_its_own_name(tmp_path):
    (tmp_path / "text8.gz").write_bytes(gzip.compress(b" a b"))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "text8.gz", tmp_path / "out", everything)
    assert (tmp_path / "out/text8").read_bytes() == b" a b"


def test_a_truncated_archive_is_reported_as_damaged(tmp_path):
    whole = a_tar(tmp_path / "a.tgz", {"text": bytes(range(256)) * 400}).read_bytes()
    (tmp_path / "b.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"b\.tgz: the archive is damaged"):
        unpack(tmp_path / "b.tgz", tmp_path / "out", everything)


def test_a_truncated_zip_is_reported_as_damaged(tmp_path):
    whole = a_zip(tmp_path / "a.zip", {"text": bytes(range(256)) * 4}).read_bytes()
    (tmp_path / "b.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"b\.zip: the archive is damaged \(File is not a zip file\); fetch it again"):
        unpack(tmp_path / "b.zip", tmp_path / "out", everything)


def test_an_archive_without_the_wanted_files_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="none of the files that are needed; give the corpus's own"):
        unpack(a_zip(tmp_path / "a.zip", {"x": b""}), tmp_path / "out", lambda member: False)


def test_archives_are_recognized_by_content(tmp_path):
    (tmp_path / "plain.zip").write_bytes(b"no zip at all")
    (tmp_path / "empty.tgz").write_bytes(b"")
    assert not is_archive(tmp_path / "plain.zip")
    assert not is_archive(tmp_path / "empty.tgz")
    assert not is_archive(tmp_path)
    whole = a_zip(tmp_path / "a", {"x": b"1"})
    assert is_archive(whole)
    (tmp_path / "a.part").write_bytes(whole.read_bytes()[:9])
    assert is_archive(tmp_path / "a.part")
    assert is_archive(a_tar(tmp_path / "b", {"x": b"1"}))


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
def test_packed_files_of_every_format_are_refused_as_text(tmp_path, kind):
    (tmp_path / "plain.txt").write_text("plain")
    packed = PACKERS[kind](tmp_path / "book.txt", {"a": b"text"})
    with pytest.raises(CorpusError, match=r"book\.txt: an archive or compressed file is not text; unpack it first"):
        refuse_packed([tmp_path / "plain.txt", packed])


@pytest.mark.parametrize("content", [b"", b"BZh is no bzip2", b"7z", bytes(range(256)) * 3, bytes(1000)])
def test_text_and_other_bytes_are_not_recognized_as_packed(tmp_path, content):
    (tmp_path / "book.txt").write_bytes(content)
    packed = a_zip(tmp_path / "packed.zip", {"a": b"text"})
    with pytest.raises(CorpusError, match=r"packed\.zip: an archive"):
        refuse_packed([tmp_path / "book.txt", packed])
