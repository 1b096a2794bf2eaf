"""txl prepare with text in other containers and encodings: the store is that of the same text in a plain file."""

import bz2
import csv
import gzip
import io
import json
import lzma

import pyarrow as arrow
import pytest
from pyarrow import parquet

from tests.commands.novel import digests, done, json_of, refusal, store
from txlcli.workflows.user_text import UserText

ROWS = [f'line {number} of "many", é' + "\nand a second" * (number % 7 == 0) for number in range(97)]
TEXT = "".join(f"{row}\n" for row in ROWS).encode()
TABLE = arrow.table({"id": range(len(ROWS)), "text": ROWS, "title": ["a title"] * len(ROWS)})


def json_lines(rows=ROWS, **more):
    return "".join(json.dumps({"id": 1, "text": row, "title": "a title"} | more) + "\n" for row in rows).encode()


def delimited(delimiter):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([["id", "text", "title"], *([7, row, "a title"] for row in ROWS)])
    return file.getvalue().encode()


def arrow_bytes(new_writer, table=TABLE):
    stream = arrow.BufferOutputStream()
    with new_writer(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=31)
    return stream.getvalue().to_pybytes()


def parquet_bytes():
    stream = arrow.BufferOutputStream()
    parquet.write_table(TABLE, stream)
    return stream.getvalue().to_pybytes()


def zstd(data):
    return arrow.compress(data, "zstd", asbytes=True)


CONTAINERS = {
    "rows.jsonl": json_lines(),
    "rows.csv": delimited(","),
    "marked.tsv": b"\xef\xbb\xbf" + delimited("\t"),
    "of a spreadsheet.csv": b"\xef\xbb\xbf" + delimited(";"),
    "bars.csv": delimited("|"),
    "rows.arrow": arrow_bytes(arrow.ipc.new_file),
    "stream": arrow_bytes(arrow.ipc.new_stream),
    "dictionary": arrow_bytes(
        arrow.ipc.new_stream, TABLE.set_column(1, "text", TABLE["text"].combine_chunks().dictionary_encode())
    ),
    "0f3a9c": parquet_bytes(),
    "text.gz": gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]),
    "text.xz": lzma.compress(TEXT),
    "any name": bz2.compress(TEXT),
    "empty first": bz2.compress(b"") + bz2.compress(TEXT),
    "text.txt.zst": zstd(TEXT[:1000]) + zstd(TEXT[1000:]),
    "skipped first.zst": b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd(TEXT),
    "skipped last mark.zst": b"\x5f\x2a\x4d\x18\0\0\0\0" + zstd(TEXT),
    "rows.ndjson.gz": gzip.compress(json_lines()),
    "rows.csv.zst": zstd(delimited(",")),
    "unpacked by a download.csv.gz": delimited(","),
    "packed.jsonl": gzip.compress(json_lines()),
}


@pytest.fixture
def plain(untouched):
    (untouched / "plain.txt").write_bytes(TEXT)
    done("prepare", "plain.txt", "--tokenizer", "char")
    return untouched


AGAIN = ("--name", "again", "--tokenizer", "char", "--force")
TRAIN = ("--split", "100,0,0")


def bytes_of_train(*arguments):
    """Return the bytes of a store whose only split is train."""
    return json_of("prepare", *arguments, *TRAIN)["splits"]["train"]["bytes"]


def test_a_container_gives_the_store_of_its_text(plain):
    for name, packed in CONTAINERS.items():
        (plain / name).write_bytes(packed)
        done("prepare", name, *AGAIN)
        assert digests("again") == digests("plain"), name
        assert store("again").source_digest == store("plain").source_digest, name


def test_a_text_in_another_encoding_is_converted(plain):
    for encoding in ("utf-16", "utf-16-le", "utf-32-be", "cp1252", "utf-8-sig"):
        (plain / "legacy.txt").write_bytes(TEXT.decode().encode(encoding))
        (plain / "rows.csv.gz").write_bytes(gzip.compress(delimited(",").decode().encode(encoding)))
        for name in ("legacy.txt", "rows.csv.gz"):
            named = "utf8" if encoding == "utf-8-sig" else encoding  # a byte order mark is no part of the first column
            done("prepare", name, "--encoding", named, *AGAIN)
            assert digests("again") == digests("plain"), (name, encoding)


def test_a_saved_dataset_has_the_splits_of_its_folders(plain):
    for split in ("train", "validation"):
        (plain / "saved" / split).mkdir(parents=True)
        (plain / "saved" / split / "data-00000-of-00001.arrow").write_bytes(arrow_bytes(arrow.ipc.new_stream))
        (plain / "saved" / split / "state.json").write_text("{}")
    told = json_of("prepare", "saved")
    assert {split: info["bytes"] for split, info in told["splits"].items()} == dict.fromkeys(
        ("train", "valid"), len(TEXT)
    )
    assert told["changes"] == {"files_skipped": 2}


@pytest.mark.parametrize(
    ("names", "data"),
    [
        (["rows.jsonl", "rows.jsonl.gz"], json_lines()),
        (["train.txt", "train.txt.gz"], TEXT),
        (["train.txt.gz", "train.txt.xz"], TEXT),
    ],
)
def test_two_versions_of_a_text_are_rejected(untouched, names, data):
    contents = {".gz": gzip.compress(data), ".xz": lzma.compress(data)}
    (untouched / "both").mkdir()
    for name in names:
        path = untouched / "both" / name
        path.write_bytes(contents.get(path.suffix, data))
    assert f"{names[0]} and {names[1]} are two versions of one text" in refusal("prepare", "both", code=1)


LONG = "a word " * 20_000  # longer than the default limit of Python's csv


@pytest.mark.parametrize(
    ("rows", "text", "is_noted"),
    [
        ('1\t"Hello there\n2\tsecond\n3\tthird "\n', '"Hello there\nsecond\nthird "\n', True),
        ('1\t"Yes" or no\n\n2\t""no""\n', '"Yes" or no\n""no""\n', True),
        ('1\t"a ""word"""\n2\ta 9" pipe\n', 'a "word"\na 9" pipe\n', False),
        (f'1\t"{LONG}"\n', f"{LONG}\n", False),
        ('1\t"two\nlines"\n2\t"a\ttab"\n', "two\nlines\na\ttab\n", False),
    ],
)
def test_a_tsv_that_was_written_without_quoting_keeps_its_quotation_marks(untouched, rows, text, is_noted):
    (untouched / "rows.tsv").write_text("id\ttext\n" + rows)
    told = json_of("prepare", "rows.tsv", *TRAIN, "--tokenizer", "char")
    prepared = store("rows")
    assert prepared.vocab.decode(prepared.ids("train")) == text
    assert any("rows.tsv: written without quoting" in note for note in told["notes"]) == is_noted
    read = UserText.of_option("rows.tsv").read()
    assert any("rows.tsv: written without quoting" in note for note in read.notes) == is_noted
    (untouched / "rows.csv").write_text("id|text\n" + rows.replace("\t", "|"))
    told = json_of("prepare", "rows.csv", *TRAIN, "--tokenizer", "char", "--force")
    assert any("rows.csv: written without quoting" in note for note in told["notes"]) == is_noted
    (untouched / "bare.tsv").write_text(rows)  # without a header
    done("prepare", "bare.tsv", *TRAIN, "--tokenizer", "char", "--column", "2")
    prepared = store("bare")
    assert prepared.vocab.decode(prepared.ids("train")) == text


@pytest.mark.parametrize("text", ["naïve fox é".encode()[:-1], "naïve fox\n".encode("cp1252")])
def test_packed_text_that_is_not_utf8_is_not_read_as_words(untouched, text):
    (untouched / "a.txt.gz").write_bytes(gzip.compress(text))
    refused = refusal("prepare", "a.txt.gz", "--tokenizer", "word", code=1)
    assert "a.txt.gz: its text is not valid UTF-8; give its --encoding, such as cp1252" in refused


def test_a_quoted_tsv_that_was_truncated_in_a_text_is_rejected(untouched):
    (untouched / "rows.tsv").write_text('id\ttext\n1\t"the first"\n2\t"the sec')
    assert "damaged, or not TSV" in refusal("prepare", "rows.tsv", code=1)


def test_rows_in_a_folder_of_text_are_text_unless_a_column_is_named(plain):
    (plain / "mixed").mkdir()
    (plain / "mixed/notes.txt").write_text("a note\n" * 9)
    (plain / "mixed/rows.jsonl").write_bytes(json_lines([*ROWS, None, ""], title=None))
    told = json_of("prepare", "mixed", "--name", "all")
    assert "rows.jsonl: read as plain text, including the keys, quotes and escapes of JSON" in told["notes"][0]
    told = json_of("prepare", "mixed", "--column", "text", "--name", "column")
    assert sum(info["bytes"] for info in told["splits"].values()) == len(TEXT) + 1
    assert told["changes"] == {"rows_without_text": 1, "files_skipped": 1}
    (plain / "mixed/rows.jsonl").unlink()
    (plain / "mixed/rows.csv").write_text("id,text\n1,a line\n" * 9)
    note = "rows.csv: read as plain text with all columns; `column` reads one of them"
    assert json_of("prepare", "mixed", "--force")["notes"] == [note]
    (plain / "rows.txt").write_bytes(json_lines())
    assert "rows.txt: read as plain text, including the keys" in json_of("prepare", "rows.txt", "--force")["notes"][0]


def test_rows_with_another_delimiter_are_rejected_unless_their_column_is_named(plain):
    (plain / "a.tsv").write_text("id,text\n" + "1,a line\n" * 20)
    assert 'its first row is "id,text"; give --column' in refusal("prepare", "a.tsv", code=1)
    done("prepare", "a.tsv", "--column", "id,text")


def test_semicolons_are_text_unless_all_rows_have_equally_many(plain):
    rows = "one; two\n" * 20 + "three\n"
    (plain / "a.csv").write_text(rows)
    assert bytes_of_train("a.csv", "--column", 1) == len(rows)
    (plain / "a.csv").write_text("id;text\n\n" + "7;one\n" * 199 + "8;one;two\n")
    assert "ends on line 202 has 3 fields, the first one 2" in refusal("prepare", "a.csv", "--force", code=1)


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_a_first_line_that_declares_the_delimiter_is_not_a_row(plain, delimiter):
    rows = [["id", "text", "title"], *([7, row, "a"] for row in ROWS)]
    with (plain / "a.csv").open("w", newline="") as file:
        file.write(f"sep={delimiter}\r\n")
        csv.writer(file, delimiter=delimiter).writerows(rows)
    done("prepare", "a.csv", "--column", "text", *AGAIN)
    assert digests("again") == digests("plain")
    assert 'its first row is "id", "text", "title"' in refusal("prepare", "a.csv", "--column", "words", code=1)


JSON_DOCUMENTS = {
    "array": json.dumps([{"text": row, "title": 7} for row in ROWS]),
    "indented": json.dumps([{"text": row} for row in ROWS], indent=2),
    "lines": json_lines().decode(),
    "document": json.dumps({"text": TEXT.decode(), "id": 7}, indent=1),
}


def test_a_json_file_is_rows_unless_it_has_no_text(plain):
    for name, text in JSON_DOCUMENTS.items():
        (plain / "rows.json").write_text(text)
        done("prepare", "rows.json", *AGAIN)
        assert digests("again") == digests("plain"), name
    (plain / "ids").mkdir()
    (plain / "ids/0.json").write_text(json.dumps({"ids": [[7] * 40]}))
    refused = refusal("prepare", "ids", code=1)
    assert "no column has text" in refused
    assert refused.endswith("or move this file out of ids")


def test_the_first_text_of_a_csv_may_be_longer_than_python_s_limit(plain):
    csv.field_size_limit(131_072)  # Python's default, which another file may have changed
    text = "a word " * 30_000 + "\n" + "another text\n" * 90
    (plain / "long.csv").write_text(text)
    assert bytes_of_train("long.csv", "--column", 1) == len(text)


def test_a_csv_without_a_header_keeps_its_first_row(plain):
    rows = [[row, 7] for row in ROWS]
    with (plain / "two.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert "number of the column" in refusal("prepare", "two.csv", code=1)
    assert "number of the column" in refusal("prepare", "two.csv", "--column", 3, code=1)
    done("prepare", "two.csv", "--column", 1, "--tokenizer", "char")
    assert digests("two") == digests("plain")
    (plain / "labels.csv").write_text("word,1\n" * 90)  # column 1, or the one called "1"?
    assert "number of another" in refusal("prepare", "labels.csv", "--column", 1, code=1)
    (plain / "one.csv").write_text("word\n" * 90)
    assert "its first row is" in refusal("prepare", "one.csv", code=1)
    assert bytes_of_train("one.csv", "--column", 1) == 450


def test_the_first_rows_of_json_may_lack_the_text(plain):
    (plain / "late.jsonl").write_text('{"title": "a"}\n{"text": null}\n' + '{"text": "word"}\n' * 20)
    assert bytes_of_train("late.jsonl") == 100
    (plain / "either.jsonl").write_text('{"title": "a"}\n' + '{"body": "word"}\n' * 20)
    assert 'one of: "title", "body"' in refusal("prepare", "either.jsonl", code=1)


def test_half_a_character_of_json_is_replaced(plain):
    (plain / "half.jsonl").write_text('{"text": "a \\ud83d b"}\n{"text": "\\ud83e\\udd8a"}\n' * 20)
    done("prepare", "half.jsonl", *TRAIN)
    assert store("half").ids("train").tobytes().decode() == "a \ufffd b\n🦊\n" * 20


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "a.jsonl",
            b'[{"text": "a"},\n{"text": "b"}]\n',
            "line 1 is null, or not valid JSON; repair the file, or fetch it again; rename an array of several lines",
        ),
        ("a.jsonl", b'[{"text": "a"}, {"text": "b"}]\n', "line 1 is an array of objects; rename the file to .json"),
        (
            "a.jsonl",
            b'{"text": "a"}{"text": "b"}\n',
            "line 1 is null, or not valid JSON; repair the file, or fetch it again; rename an array of several lines "
            "to .json; write each object to a line of its own",
        ),
        ("a.jsonl", b'{"text": "a"}\nnot JSON\n', "line 2 is null, or not valid JSON"),
        ("a.json", b'[{"text": "a"}, {"te', "not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 7}\n', '"text" of line 2'),
        ("a.jsonl", b'{"id": "a7", "messages": [{"content": "a text"}]}\n', 'no column "text" has text'),
        ("a.json", b'{"version": "2", "pages": {"1": "a text"}}', 'no column "text" has text'),
        ("a.csv", b'text,id\n"a\nb",2\na,b,3\n', "the row that ends on line 4"),
        ("a.csv", b"text,text\na,b\n", "several columns"),
        ("a.csv", b'text\n"a"b\n', "damaged, or not CSV"),
        ("a.gz", gzip.compress(TEXT)[:-9], "damaged, or not gzip"),
        ("a.arrow", arrow_bytes(arrow.ipc.new_file)[:500], "damaged, or not Arrow"),
        ("a.arrow", 2 * arrow_bytes(arrow.ipc.new_stream), "damaged, or not Arrow"),
        ("a.csv", delimited(",").decode().encode("utf-16"), "utf-16"),
        ("train.bin.gz", gzip.compress(TEXT), "contains another file (a .bin of token ids)"),
        ("a.parquet.gz", gzip.compress(parquet_bytes()), "contains another file (Parquet)"),
        ("a.xz", lzma.compress(bytes(66 << 20), preset=0), "would unpack to more than 64 MiB"),
    ],
)
def test_what_is_wrong_with_a_container_is_named(untouched, name, data, message):
    (untouched / name).write_bytes(data)
    assert refusal("prepare", name, code=1).startswith(f"{name}: {message}")


def test_an_encoding_that_is_unknown_or_does_not_fit_is_rejected(untouched):
    (untouched / "a.txt").write_bytes(b"caf\xe9\n" * 99)
    for unknown in ("cp1253x", "undefined"):
        assert f'"{unknown}" is not known' in refusal("prepare", "a.txt", "--encoding", unknown)
    assert "no effect here" in refusal("prepare", "stdlib", "--encoding", "cp1252")
    assert "not valid utf-8" in refusal("prepare", "a.txt", "--encoding", "utf-8", code=1)
    assert "give its --encoding, such as cp1252" in refusal("prepare", "a.txt", "--tokenizer", "char", code=1)
