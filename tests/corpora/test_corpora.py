import gzip
import io
import lzma
import os
import pickle
import re
import sqlite3
import zipfile
import zlib

import numpy as np
import pyarrow as arrow
import pytest
import torch

from txlcli import corpora
from txlcli.corpora import OWN_TEXT as own
from txlcli.corpora import english
from txlcli.corpora.corpus import SPLITS, CorpusError, ReadOptions, Slice
from txlcli.corpora.locate import text_files

PLAIN = ReadOptions()


def content(pieces: tuple[Slice, ...]) -> bytes:
    return b"".join(piece.path.read_bytes()[piece.start : piece.stop] for piece in pieces)


def texts(text) -> dict[str, bytes]:
    return {split: content(pieces) for split, pieces in text.splits.items()}


@pytest.mark.parametrize("name", corpora.CORPORA)
def test_rows_of_a_mirror_belong_to_files_with_a_digest_in_the_order_of_their_names(name):
    corpus = corpora.CORPORA[name]
    files = [file for download in corpus.downloads for file in download.mirror if file.rows_of is not None]
    assert {file.rows_of for file in files} == (set(corpus.digests) if files else set())
    for original in corpus.digests:
        names = [file.file for file in files if file.rows_of == original]
        assert names == sorted(names)


LETTERS = (b" abcdefghijklmnopqrstuvwxyz" * 4)[:103]


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_a_prefix_has_a_twentieth_each_for_valid_and_test(tmp_path, name):
    an_archive(tmp_path / f"{name}-copy.zip")  # not the file of the corpus
    (tmp_path / f"{name}.first103").write_bytes(LETTERS)
    text = corpora.CORPORA[name].read(tmp_path, PLAIN)
    assert [len(part) for part in texts(text).values()] == [93, 5, 5]
    assert b"".join(texts(text).values()) == LETTERS
    assert text.notes == ("a prefix of 103 of 100,000,000 bytes",)


@pytest.mark.parametrize(
    ("size", "message"),
    [(19, "19 bytes are too short to split"), (100_000_001, "this is another file; give enwik8 or")],
)
def test_a_file_too_short_to_split_or_larger_than_the_corpus_is_rejected(tmp_path, size, message):
    with (tmp_path / "enwik8").open("wb") as file:
        file.truncate(size)
    with pytest.raises(CorpusError, match=message):
        corpora.CORPORA["enwik8"].read(tmp_path / "enwik8", PLAIN)


OTHER_BYTES = [("text8", other) for other in (b"T", b"8", b"\n", b"\xc3")]
OTHER_BYTES += [("enwik8", other) for other in (b"\x01", b"\xff", b"\0", b"\r")]


@pytest.mark.parametrize(("name", "other"), OTHER_BYTES)
def test_a_file_with_a_byte_that_the_corpus_does_not_have_is_rejected(tmp_path, name, other):
    valid = b" the fox jumps" * 300_000  # longer than the block in which the file is read
    (tmp_path / name).write_bytes(valid + other + b"over " + other)
    with pytest.raises(CorpusError, match=f"byte 4,200,000 is 0x{other.hex()}"):
        corpora.CORPORA[name].read(tmp_path / name, PLAIN)


def an_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("text", "a b c\n" * 9)


ONE, SPLIT = "expected one file {0}.*, found 0; give --source the file itself", "found no file of {0}; expected "


@pytest.mark.parametrize(
    ("name", "message"), [("enwik8", ONE), ("text8", ONE), ("ptb", SPLIT), ("wt103", SPLIT), ("lm1b", SPLIT)]
)
def test_neither_an_archive_nor_any_file_is_the_file_of_a_corpus(tmp_path, name, message):
    an_archive(tmp_path / f"{name}-copy.zip")
    (tmp_path / "notes.md").write_text("a")
    with pytest.raises(CorpusError, match=message.format(name)):
        corpora.CORPORA[name].read(tmp_path, PLAIN)


def test_the_official_names_win_over_others(tmp_path):
    for name in ("ptb.train.txt", "ptb.char.train.txt", "ptb.valid.txt", "ptb.char.valid.txt", "ptb.test.txt"):
        (tmp_path / name).write_text(name)
    found = texts(corpora.CORPORA["ptb"].read(tmp_path, PLAIN))
    assert found == {split: f"ptb.{split}.txt".encode() for split in SPLITS}


def test_similar_file_names_are_recognized_unless_two_are_for_one_split(tmp_path):
    (tmp_path / "wiki.train.tokens.first7lines").write_text("a")
    (tmp_path / "my-dev.txt").write_text("b")
    assert texts(corpora.CORPORA["wt103"].read(tmp_path, PLAIN)) == {"train": b"a", "valid": b"b"}
    (tmp_path / "train.old").write_text("c")
    with pytest.raises(CorpusError, match=r"train\.old, wiki\.train\.tokens\.first7lines look like the train split"):
        corpora.CORPORA["wt103"].read(tmp_path, PLAIN)


def lm1b_directory(tmp_path):
    train = tmp_path / "training-monolingual.tokenized.shuffled"
    held = tmp_path / "heldout-monolingual.tokenized.shuffled"
    train.mkdir()
    held.mkdir()
    for number in (2, 1):
        (train / f"news.en-0000{number}-of-00100").write_text(f"train {number}\n")
    for number in (0, 1, 2):
        (held / f"news.en.heldout-0000{number}-of-00050").write_text(f"held {number}\n")
    (held / "news.en-00000-of-00100").write_text("held 0\nheld 1\nheld 2\n")
    (tmp_path / "1b_word_vocab.txt").write_text("<S> 3\n")
    return tmp_path


def test_lm1b_reads_its_shards_in_order_and_two_heldout_ones(tmp_path):
    text = corpora.CORPORA["lm1b"].read(lm1b_directory(tmp_path), PLAIN)
    assert texts(text) == {"train": b"train 1\ntrain 2\n", "valid": b"held 1\n", "test": b"held 0\n"}
    assert not corpora.CORPORA["lm1b"].has_file("news.en-00000-of-00100")  # it has the test
    assert text.vocabulary_file == tmp_path / "1b_word_vocab.txt"
    shard = tmp_path / "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
    assert texts(corpora.CORPORA["lm1b"].read(shard, PLAIN)) == {"test": b"held 0\n"}


def test_stdlib_is_split_by_whole_files(tmp_path):
    for number in range(101):
        place = tmp_path / f"package{number % 7}"
        place.mkdir(exist_ok=True)
        (place / f"module{number}.py").write_text(f"# {number}\n" * 50)
    for left_out in ("site-packages", "test", "x/tests", "x/__pycache__"):
        (tmp_path / left_out).mkdir(parents=True)
        (tmp_path / left_out / "never.py").write_text("never\n")
    (tmp_path / "notes.txt").write_text("never\n")
    text = corpora.CORPORA["stdlib"].read(tmp_path, PLAIN)
    parts = texts(text)
    sizes = {split: len(part) for split, part in parts.items()}
    assert b"never" not in b"".join(parts.values())
    assert sum(sizes.values()) == sum(path.stat().st_size for path in tmp_path.rglob("module*.py"))
    assert 0.85 < sizes["train"] / sum(sizes.values()) < 0.95
    assert min(sizes.values()) > 0
    assert texts(corpora.CORPORA["stdlib"].read(tmp_path, PLAIN)) == parts
    by_option = corpora.CORPORA["stdlib"].read(tmp_path, ReadOptions(shares=(60, 20, 20)))
    shares = [read.conventions["split"].split(" ", 1) for read in (text, by_option)]
    assert shares == [
        [share, "by whole files, in the order of their names' sha256"] for share in ("90/5/5", "60/20/20")
    ]


@pytest.mark.parametrize(("text", "end"), [("word " * 500, " "), ("語" * 333, "語")])
def test_text_without_line_ends_is_cut_at_blanks_else_between_characters(tmp_path, text, end):
    (tmp_path / "one-line.txt").write_text(text, encoding="utf-8")
    parts = texts(own.read(tmp_path / "one-line.txt", ReadOptions(shares=(61, 19, 20))))
    assert "".join(part.decode() for part in parts.values()) == text
    assert all(part.decode().endswith(end) for part in parts.values())


@pytest.mark.parametrize(
    "text",
    [
        b"word " * 20_000 + b"\n",  # its only line end is no place for a cut
        (b"word " * 4_000 + b"\n") * 10,  # the nearest line end is the end of the text, or the same for both cuts
        b"word " * 42_000 + b"\n" + b"word " * 18_000,  # a line end in the middle of train is near, and too far
    ],
)
def test_no_cut_leaves_a_split_with_little_text(tmp_path, text):
    (tmp_path / "long lines.txt").write_bytes(text)
    parts = texts(own.read(tmp_path / "long lines.txt", PLAIN))
    assert b"".join(parts.values()) == text
    assert [round(20 * len(part) / len(text)) for part in parts.values()] == [18, 1, 1]


@pytest.mark.parametrize(("name", "content"), [("train.csv", b"id,text\n"), ("train.parquet", b"PAR1" + bytes(9))])
def test_a_benchmark_is_no_table_whatever_its_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=name):
        corpora.CORPORA["wt103"].read(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("shares", "names", "convention"),
    [
        (None, ["train", "valid", "test"], "90/5/5"),
        ((0, 50, 50), ["valid", "test"], "0/50/50"),
        ((62.5, 37.5, 0), ["train", "valid"], "62.5/37.5/0"),
        ((0, 0, 100), ["test"], "0/0/100"),
    ],
)
def test_a_file_is_cut_at_line_ends_and_a_share_of_zero_omits_the_split(tmp_path, shares, names, convention):
    (tmp_path / "book.txt").write_text("a line\n" * 99)
    text = own.read(tmp_path / "book.txt", ReadOptions(shares=shares))
    parts = texts(text)
    assert text.conventions == {"split": f"{convention} by position, cut at line ends where possible"}
    assert list(parts) == names
    assert b"".join(parts.values()) == (tmp_path / "book.txt").read_bytes()
    assert all(part.endswith(b"\n") for part in parts.values())


def test_a_directory_is_read_recursively_in_order_without_hidden_files(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    saved = "cache-1f2e3d4c5b6a7988.arrow"  # of Hugging Face's datasets
    for name in ("b/two.txt", "a.txt", "c.txt", ".git/config", ".hidden", "b/.hidden", saved):
        (tmp_path / name).write_text(f"{name}\n" * 10)
    (tmp_path / "empty.txt").write_text("")
    parts = texts(own.read(tmp_path, PLAIN))
    assert b"".join(parts.values()) == b"a.txt\n" * 10 + b"b/two.txt\n" * 10 + b"c.txt\n" * 10


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + b"the fox\n" * 3)
    assert texts(own.read(tmp_path, PLAIN)) == dict.fromkeys(("train", "valid"), b"the fox\n" * 3)
    cut = texts(own.read(tmp_path, ReadOptions(shares=(80, 10, 10))))
    assert b"".join(cut.values()) == b"the fox\n" * 6
    assert texts(own.read(tmp_path / "train.txt", ReadOptions(shares=(100, 0, 0)))) == {"train": b"the fox\n" * 3}


def test_links_to_directories_are_followed_and_each_directory_is_read_once(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book/a.txt").write_text("a\n" * 10)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.txt").write_text("b\n" * 10)
    (tmp_path / "book/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "book/itself").symlink_to(tmp_path / "book")
    parts = texts(own.read(tmp_path / "book", PLAIN))
    assert b"".join(parts.values()) == b"a\n" * 10 + b"b\n" * 10


@pytest.mark.parametrize(
    ("links", "read"),
    [
        ({"0.txt": "a.txt", "latest": "a.txt"}, ["a.txt"]),
        ({"snapshots/train-0": "a.txt"}, ["snapshots/train-0"]),
        ({"train.txt": "a.txt", "wiki.train.tokens": "a.txt"}, ["train.txt"]),
        ({"train.txt": "a.txt", "valid.txt": "a.txt"}, ["train.txt", "valid.txt"]),  # as the user wants it
    ],
)
def test_a_file_that_links_repeat_is_read_once_for_each_split(tmp_path, links, read):
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "a.txt").write_text("a\n" * 10)
    for link, name in links.items():
        (tmp_path / link).symlink_to(tmp_path / name)
    assert [path.relative_to(tmp_path).as_posix() for path in text_files(tmp_path)] == read


def test_a_cache_of_hugging_face_has_the_files_of_its_snapshots_once(tmp_path):
    for folder in ("blobs", "refs", "snapshots/0a", "snapshots/1b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "refs/main").write_text("1b")
    (tmp_path / "blobs/3c").write_text("a\n" * 10)
    for snapshot in ("0a", "1b"):
        (tmp_path / "snapshots" / snapshot / "data.txt").symlink_to(tmp_path / "blobs/3c")
    assert text_files(tmp_path) == [tmp_path / "snapshots/0a/data.txt"]


def binary_files():
    """Return files of formats that are not text, by the name in the error: real ones where a library writes them."""
    text = b"some plain text\n" * 99
    lz4, table = arrow.BufferOutputStream(), arrow.table({"text": ["some text"] * 9})
    with arrow.CompressedOutputStream(lz4, "lz4") as file:
        file.write(text)
    stream = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    array = io.BytesIO()
    np.save(array, np.arange(99, dtype=np.uint16))
    tensor = io.BytesIO()
    torch.save(torch.arange(99), tensor)
    database = sqlite3.connect(":memory:")
    database.execute("create table lines(line)")
    return {
        "a file of Arrow": stream.getvalue().to_pybytes(),
        "a NumPy array": array.getvalue(),
        "a pickle": pickle.dumps([1, 2, 3]),
        "a file of torch.save": tensor.getvalue(),
        "an SQLite database": database.serialize(),
        "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(20),
        "a file of weights": b'\x40\0\0\0\0\0\0\0{"__metadata__"' + bytes(20),
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
        "a PNG picture": b"\x89PNG\r\n" + bytes(20),
        "an archive or compressed file": lz4.getvalue().to_pybytes(),
        "(lzma)": lzma.compress(text, format=lzma.FORMAT_ALONE),
        "(zlib)": zlib.compress(text, 1),
        "(gzip)": gzip.compress(text),
    }


@pytest.mark.parametrize("name", binary_files())
def test_a_format_is_recognized_by_its_first_bytes_under_any_name_and_behind_links(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/0f3a").write_bytes(binary_files()[name])
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/train.txt").symlink_to(tmp_path / "elsewhere/0f3a")
    for source in (tmp_path / "elsewhere/0f3a", tmp_path / "linked"):
        with pytest.raises(CorpusError, match=re.escape(name)):
            own.read(source, PLAIN)


@pytest.mark.parametrize("text", [b"x^2 + 1\n" * 9, b"x\x01y\n" * 9, b"]\n" * 9, b"some \0 text\n" * 9, b"PAR 1\n" * 9])
def test_text_that_begins_like_a_format_is_text(tmp_path, text):
    (tmp_path / "a").write_bytes(text)
    assert b"".join(texts(own.read(tmp_path / "a", PLAIN)).values()) == text


SCRIPTS = ["A line, as an editor saves it.\r\n", "Так пишет редактор: \u00a0\u2028\n", "一个简单的文本。\n"]
SCRIPTS += ["ひらがなのながいぶん\n"]  # its bytes in UTF-16 are mostly those of ASCII


@pytest.mark.parametrize("line", SCRIPTS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_utf_16_and_utf_32_are_recognized_and_named(tmp_path, line, encoding):
    (tmp_path / "a").write_text(line * 99, encoding=encoding)
    with pytest.raises(CorpusError, match=f"give `encoding` {encoding}, "):
        own.read(tmp_path / "a", PLAIN)
    (tmp_path / "a").write_text(line * 99, encoding="utf-8")
    own.read(tmp_path / "a", PLAIN)


def write_named(directory, *names):
    """Write files whose text is their name, ten times."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"{name}\n" * 10)


NAMED_AS_SPLITS = {
    "plain words": {"train": ["train.txt"], "valid": ["validation.txt"], "test": ["test.txt"]},
    "numbered": {"train": ["train-00.txt", "train-01.txt"], "test": ["test.txt"]},
    "sub-folders": {"train": ["train/b/2.txt", "train/a.txt"], "valid": ["valid/a.txt"], "test": ["test/a.txt"]},
    "in one folder": {"train": ["x/ptb.train.txt"], "valid": ["x/ptb.valid.txt"], "test": ["x/ptb.test.txt"]},
    "deeper": {"train": ["x/y/train/a.txt", "x/z/train/b.txt"], "test": ["x/y/test/c.txt"]},
    "two words for one split": {"train": ["Train.txt"], "valid": ["dev.txt", "valid.txt"]},
    "no train": {"valid": ["dev.txt"], "test": ["test.txt"]},
}


@pytest.mark.parametrize("case", NAMED_AS_SPLITS)
def test_file_names_in_a_directory_determine_the_splits_without_empty_files(tmp_path, case):
    (tmp_path / "_SUCCESS").touch()
    splits = {split: sorted(names) for split, names in NAMED_AS_SPLITS[case].items()}
    write_named(tmp_path, *(name for names in splits.values() for name in names))
    parts = texts(own.read(tmp_path, PLAIN))
    assert parts == {split: "".join(f"{name}\n" * 10 for name in names).encode() for split, names in splits.items()}


def test_splits_named_by_files_and_missing_splits_are_noted(tmp_path):
    write_named(tmp_path, *(f"train-{number}.txt" for number in range(5)), "dev.txt")
    text = own.read(tmp_path, PLAIN)
    names, missing = text.notes
    assert "train: train-0.txt, train-1.txt, train-2.txt and 2 more; valid: dev.txt" in names
    assert "no test split" in missing
    assert text.conventions == {"split": "the folder's own files"}


@pytest.mark.parametrize(
    ("names", "unfit"),
    [
        (["train.txt", "test.txt", "notes.txt"], "notes.txt"),
        (["book.txt", "dev.txt"], "book.txt"),
        (["train/a.txt", "b/c.txt"], "b/c.txt"),
        (["x/train.txt", "x/a.txt"], "x/a.txt"),
        (["test/train.txt"], "test/train.txt"),
        (["train.txt", "train-and-test.txt"], "train-and-test.txt"),
    ],
)
def test_files_without_a_split_beside_named_splits_are_rejected_without_shares(tmp_path, names, unfit):
    write_named(tmp_path, *names)
    with pytest.raises(CorpusError, match=f"{unfit} names none or several"):
        own.read(tmp_path, PLAIN)
    parts = texts(own.read(tmp_path, ReadOptions(shares=(60, 20, 20))))
    assert b"".join(parts.values()) == "".join(f"{name}\n" * 10 for name in sorted(names)).encode()


@pytest.mark.parametrize("content", ["", None])
def test_empty_text_is_rejected(tmp_path, content):
    if content is not None:
        (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(CorpusError, match="there is no text in it"):
        own.read(tmp_path, PLAIN)


def test_a_link_to_a_file_that_does_not_exist_is_named(tmp_path):
    write_named(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to("gone.txt")
    with pytest.raises(CorpusError, match=r"b\.txt: a link to a file that does not exist"):
        own.read(tmp_path, PLAIN)


def test_a_backup_that_is_a_link_to_a_file_that_does_not_exist_is_left_out(tmp_path):
    write_named(tmp_path, "a.txt")
    (tmp_path / "a.txt~").symlink_to("gone.txt")
    assert b"".join(texts(own.read(tmp_path, PLAIN)).values()) == b"a.txt\n" * 10


def test_a_pipe_in_a_folder_is_named(tmp_path):
    write_named(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(CorpusError, match=r"b\.txt is a pipe"):
        own.read(tmp_path, PLAIN)


def test_tokenized_english_is_joined():
    assert english.join_english("no , it was n't ( really ) the dog 's .") == "no, it wasn't (really) the dog's."
    assert corpora.CORPORA["wt103"].detokenize("a 3 @-@ year , 1 @,@ 000 , 2 @.@ 5") == "a 3-year, 1,000, 2.5"
    assert corpora.detokenizer("enwik8")("a , b") == "a , b"
    assert corpora.detokenizer("my notes")("a , b") == "a , b"


def test_backups_readmes_pictures_and_two_versions_of_a_text_are_not_joined_to_it(tmp_path):
    write_named(tmp_path, "train.txt", "test.txt", "README.md", "train.txt~", ".hidden", ".git/config", "#test.txt#")
    text = own.read(tmp_path, PLAIN)
    assert texts(text) == {"train": b"train.txt\n" * 10, "test": b"test.txt\n" * 10}
    (note,) = text.notes[2:]
    assert note.endswith("left out: #test.txt#, README.md, train.txt~")
    assert text.changes == {"files_skipped": 3, "hidden_files_skipped": 2, "byte_order_marks_dropped": 0}
    write_named(tmp_path, "__pycache__/train.pyc", "__MACOSX/x", "Thumbs.db")
    assert own.read(tmp_path, PLAIN).changes["hidden_files_skipped"] == 5
    write_named(tmp_path / "book", "README", "a.txt")
    (tmp_path / "book/cover.png").write_bytes(b"\x89PNG\r\n" + bytes(20))
    skipped, note = own.read(tmp_path / "book", PLAIN).notes
    assert skipped.endswith("which were left out: cover.png")
    assert note.startswith("README: part of the text")
    write_named(tmp_path, "train.txt.raw")
    for options in (PLAIN, ReadOptions(shares=(90, 5, 5))):
        with pytest.raises(CorpusError, match=r"train\.txt and train\.txt\.raw are two versions"):
            own.read(tmp_path, options)
