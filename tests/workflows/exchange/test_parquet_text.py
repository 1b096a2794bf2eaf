"""The text column of Parquet files: read from files of other programs, and written."""

import pyarrow as arrow
import pytest
from pyarrow import parquet

from tests.errors import rejection
from txlcli.corpora.corpus import CorpusError
from txlcli.errors import CorpusInputError
from txlcli.workflows.exchange import containers, parquet_text

ROWS = ["the fox", "", "naïve\n", "語 🦊", "the fox"]
JOINED = "the fox\n\nnaïve\n語 🦊\nthe fox\n".encode()


def read(path, column=None, *, only_utf8=False):
    (file,) = containers.find(path, column, None)
    path.with_suffix(".txt").unlink(missing_ok=True)
    with path.with_suffix(".txt").open("ab") as output:
        extracted = containers.extract(file, output, only_utf8=only_utf8)
    data = path.with_suffix(".txt").read_bytes()
    assert len(data) == extracted.size
    return data, extracted.missing


def refusal(path, column=None, **options):
    return rejection((CorpusInputError, CorpusError), read, path, column, **options)


def write_column(path, column, **options):
    parquet.write_table(arrow.table({"text": column}), path, **options)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [arrow.string(), arrow.large_string(), arrow.string_view(), arrow.binary(), arrow.large_binary()]
)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_rows_become_lines_in_every_type_of_text(tmp_path, kind, compression):
    values = [row.encode() if "binary" in str(kind) else row for row in ROWS]
    write_column(tmp_path / "a.parquet", arrow.array(values, kind), compression=compression)
    assert read(tmp_path / "a.parquet") == (JOINED, 0)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (arrow.array(ROWS).dictionary_encode(), (JOINED, 0)),
        (arrow.array(["a", None, "b", None], arrow.string()), (b"a\nb\n", 2)),  # rows without a text are left out
        (arrow.array([], arrow.string()), (b"", 0)),
    ],
)
def test_dictionaries_row_groups_and_missing_rows_are_read(tmp_path, column, expected):
    write_column(tmp_path / "a.parquet", column, row_group_size=2)
    assert read(tmp_path / "a.parquet") == expected


def test_the_column_is_text_or_the_only_one_or_the_named_one(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"id": [1], "meta": [{"a": 1, "b": "x"}], "text": ["t"], "title": ["h"]}), path)
    assert read(path) == (b"t\n", 0)
    assert read(path, "title") == (b"h\n", 0)
    parquet.write_table(arrow.table({"id": [1], "story": ["once"]}), path)
    assert read(path) == (b"once\n", 0)
    structures = arrow.array([{"b": 1000 * "x"}, {"b": "y"}])  # a column may be called like a field of another
    for columns in ({"a": structures, "a.b": ["c", "d"]}, {"a.b": ["c", "d"], "a": structures}):
        parquet.write_table(arrow.table(columns), path)
        assert read(path, "a.b") == (b"c\nd\n", 0)
        assert 'the text of "a"' in refusal(path)  # "a.b" may be an id


def test_rows_longer_than_a_batch_are_read(tmp_path):
    rows = ["a" * 7, "b" * (parquet_text.BYTES_PER_BATCH + 3), "c" * 5]
    write_column(tmp_path / "a.parquet", arrow.array(rows))
    assert read(tmp_path / "a.parquet")[0] == "".join(row + "\n" for row in rows).encode()


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_every_encoding_of_text_is_read(tmp_path, encoding):
    path = tmp_path / "a.parquet"
    values = [f"the same beginning of row {number}" for number in range(999)]
    options = {"use_dictionary": False, "column_encoding": {"text": encoding}, "data_page_version": "2.0"}
    write_column(path, arrow.array(values), row_group_size=300, **options)
    assert read(path) == ("".join(value + "\n" for value in values).encode(), 0)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_column_that_is_missing_or_no_text_is_rejected(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"id": [1], "title": ["a"], "body": ["b"]}), path)
    for column, missing in ((None, "text"), ("text", "text"), ("id", "id")):
        assert f'no column "{missing}" has text; give `column` one of: "title", "body"' in refusal(path, column)
    parquet.write_table(arrow.table({"id": [1], "tags": [["a"]]}), path)
    assert "no column has text" in refusal(path)
    assert refusal(path) == refusal(path, "id")


@pytest.mark.parametrize("size", [3, 11, 300])
def test_a_truncated_file_is_rejected(tmp_path, size):
    path = tmp_path / "a.parquet"
    write_column(path, arrow.array(ROWS * 50))
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(path).startswith(f"{path}: damaged, or not Parquet (")


def test_a_changed_byte_is_rejected_or_changes_nothing(tmp_path):
    path = tmp_path / "a.parquet"
    parquet_text.write(path, lambda: [b"the fox\n", b"jumps\n" * 3])
    data, refused = path.read_bytes(), []
    for at in range(0, len(data), 11):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at // 11 % 8]) + data[at + 1 :])
        try:
            assert read(path)[0] == b"the fox\n" + b"jumps\n" * 3
        except CorpusInputError as error:
            refused.append(str(error))
    assert refused
    assert all("\n" not in message for message in refused)


@pytest.mark.parametrize(
    "kind", [arrow.binary(), arrow.large_binary(), arrow.dictionary(arrow.int32(), arrow.binary())]
)
def test_bytes_that_are_not_utf8_are_rejected_only_where_characters_are_needed(tmp_path, kind):
    path = tmp_path / "a.parquet"
    values = [*([b"ok"] * 20_000), None, "naïve".encode(), b"\xff"]
    write_column(path, arrow.array(values, arrow.binary()).cast(kind))
    data, missing = read(path)
    assert data == 20_000 * b"ok\n" + "naïve\n".encode() + b"\xff\n"
    assert missing == 1
    assert 'row 20,003 of the column "text" is not valid UTF-8' in refusal(path, only_utf8=True)
    write_column(path, arrow.array(values[:-1], arrow.binary()).cast(kind))
    assert read(path, only_utf8=True) == read(path)


def test_few_bytes_do_not_become_much_text(tmp_path):
    path = tmp_path / "a.parquet"
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 10_000), arrow.array(["x" * (3 << 20)]))
    write_column(path, column, dictionary_pagesize_limit=1 << 30, write_statistics=False, compression="zstd")
    assert path.stat().st_size < 1 << 16
    assert "would unpack to more than 64 MiB" in refusal(path)


def test_a_value_beyond_the_limit_is_rejected_before_it_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    write_column(path, arrow.array(["x" * (128 << 20)]), write_statistics=False, compression="zstd")
    before = arrow.default_memory_pool()
    pool = arrow.proxy_memory_pool(before)
    arrow.set_memory_pool(pool)
    try:
        assert "would unpack to more than 64 MiB" in refusal(path)
    finally:
        arrow.set_memory_pool(before)
    assert pool.max_memory() < 1 << 20


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [JOINED, JOINED[:-1], b"", b"\n", b"\n\na", b"no line end"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_written_text_is_read_again_whatever_the_blocks(tmp_path, text, size):
    blocks = [text[start : start + size] for start in range(0, len(text), size)]
    parquet_text.write(tmp_path / "a.parquet", lambda: blocks)
    assert parquet_text.columns(tmp_path / "a.parquet").are_pieces
    assert read(tmp_path / "a.parquet")[0] == text


@pytest.mark.parametrize("data", [bytes(range(256)) * 3, "é".encode()[:1]])
def test_bytes_that_are_not_utf8_are_written_as_binary(tmp_path, data):
    parquet_text.write(tmp_path / "a.parquet", lambda: [data])
    assert parquet.read_schema(tmp_path / "a.parquet").field("text").type == arrow.binary()
    assert read(tmp_path / "a.parquet")[0] == data
    parquet_text.write(tmp_path / "a.parquet", lambda: ["é".encode()[:1], "é".encode()[1:]])
    assert parquet.read_schema(tmp_path / "a.parquet").field("text").type == arrow.string()


def test_other_programs_read_lines_and_parts_of_long_ones_that_end_between_characters(tmp_path):
    parquet_text.write(tmp_path / "a.parquet", lambda: [JOINED])
    assert parquet.read_table(tmp_path / "a.parquet")["text"].to_pylist() == JOINED.decode().splitlines(keepends=True)
    line = "語é🦊a" * (parquet_text.MIN_CUT_ROW // 3)
    parquet_text.write(tmp_path / "a.parquet", lambda: [line.encode()[:-1001], line.encode()[-1001:]])
    rows = parquet.read_table(tmp_path / "a.parquet")["text"].to_pylist()
    assert len(rows) == 2
    assert "".join(rows) == line
    assert read(tmp_path / "a.parquet")[0] == line.encode()
