"""A file is the same text wherever it is read: txl prepare, txl eval --text, run.score, prompts."""

import gzip
import io
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

import txlcli
from tests.commands.novel import done, json_of, refusal
from tests.commands.test_containers import CONTAINERS, TEXT
from tests.samples import sampled
from txlcli.errors import CorpusInputError

ONE_LANE = ("--batch-size", 1, "--mem-len", 0, "--seg-len", 97)
CONTENT = ("stream", "0f3a9c", "text.gz")
"""Containers that are recognized without their names; txl prepare reads every kind."""
SCORED_IN_PYTHON = ("rows.jsonl", "text.gz")


def scored(*source, stdin=None):
    (row,) = json_of("eval", "byte", "--text", *source, *ONE_LANE, stdin=stdin)["rows"]
    return row["tokens"], row["loss_nats"], row["bits_per_byte"]


def test_the_text_in_a_container_is_scored_as_the_plain_text(here):
    (here / "plain.txt").write_bytes(TEXT)
    plain = scored("plain.txt")
    assert plain[0] == len(TEXT) - 1
    byte = txlcli.load("byte")
    from_python = byte.score(Path("plain.txt")).bits_per_byte
    for name in {*CONTENT, *SCORED_IN_PYTHON, "rows.csv.zst"}:
        packed = CONTAINERS[name]
        (here / name).write_bytes(packed)
        assert scored(name) == plain, name
        if name in CONTENT:
            assert scored("-", stdin=packed) == plain, name
        if name in SCORED_IN_PYTHON:
            assert byte.score(Path(name)).bits_per_byte == from_python, name


def test_another_encoding_and_a_column_are_read_as_prepare_reads_them(here):
    (here / "plain.txt").write_text("naïve fox\n" * 40)
    (here / "wide.txt").write_text("naïve fox\n" * 40, encoding="utf-16")
    (here / "rows.csv").write_text("title,body\n" + "a,naïve fox\n" * 40)
    assert scored("wide.txt", "--encoding", "utf-16") == scored("plain.txt")
    assert scored("rows.csv", "--column", "body") == scored("plain.txt")
    byte = txlcli.load("byte")
    from_python = byte.score(Path("plain.txt")).bits_per_byte
    assert byte.score(Path("wide.txt"), encoding="utf-16").bits_per_byte == from_python
    assert byte.score(Path("rows.csv"), column="body").bits_per_byte == from_python
    assert "--column" in refusal("eval", "byte", "--text", "rows.csv", code=1)
    assert "no effect" in refusal("eval", "byte", "--text", "plain.txt", "--column", "body")
    assert "--column" in refusal("eval", "byte", "--text", "-", "--column", "body", stdin="a", code=1)
    assert "a split is scored" in refusal("eval", "byte", "--encoding", "utf-16")
    assert "not known" in refusal("eval", "byte", "--text", "wide.txt", "--encoding", "utf-17")


@pytest.mark.parametrize(
    "rows",
    [
        b"title,body\n" + b"a,the fox\n" * 40,
        b"title\tbody\n" + b"a\tthe fox\n" * 40,
        b'{"title": "a", "body": "the fox"}\n' * 40,
        json.dumps([{"title": "a", "body": "the fox"}] * 40).encode(),
        gzip.compress(b"title,body\n" + b"a,the fox\n" * 40),
    ],
    ids=["csv", "tsv", "jsonl", "json", "packed"],
)
def test_a_column_of_stdin_is_read_as_that_of_a_file(here, rows):
    (here / "plain.txt").write_text("the fox\n" * 40)
    assert scored("-", "--column", "body", stdin=rows) == scored("plain.txt")


@pytest.mark.parametrize(
    ("name", "content", "packed"),
    [
        ("b.jsonl", '{"text": "the fox"}\n{"text": "the owl"}\n', False),
        ("metadata.json", '{"title": "The Fox", "year": 1900}\n', False),
        ("list.csv", "id,year\n1,1900\n", True),
        ("rows.csv", "id,text\n1,the fox\n", False),
    ],
)
def test_rows_next_to_text_are_scored_as_prepare_reads_them(here, name, content, packed):
    (here / "mixed").mkdir()
    (here / "mixed/a.txt").write_text("the fox jumps over\n" * 40)
    (here / f"mixed/{name}").write_text(content)
    if packed:
        (here / "mixed/a.txt.gz").write_bytes(gzip.compress((here / "mixed/a.txt").read_bytes()))
        (here / "mixed/a.txt").unlink()
    prepared = json_of("prepare", "mixed", "--split", "100,0,0")
    result = json_of("eval", "byte", "--text", "mixed", *ONE_LANE)
    assert result["notes"] == prepared["notes"] != []
    first_bytes = 2  # nothing precedes them
    assert result["rows"][0]["tokens"] == prepared["splits"]["train"]["tokens"] - first_bytes
    assert len(txlcli.load("byte").score(Path("mixed")).tokens) == result["rows"][0]["tokens"]
    if name == "rows.csv":
        (row,) = json_of("eval", "byte", "--text", "mixed", "--column", "text", *ONE_LANE)["rows"]
        assert row["tokens"] == len("the fox\n") - 1


def test_markdown_next_to_json_is_text_unless_it_is_a_readme(here):
    (here / "notes").mkdir()
    (here / "notes/package.json").write_text('{"type": "module"}')
    (here / "notes/README.md").write_text("about\n")
    assert len(txlcli.load("byte").score(Path("notes")).tokens) == len("odule\n")
    (here / "notes/fox.md").write_text("the fox\n" * 20)
    told = json_of("prepare", "notes", "--split", "100,0,0")
    assert told["splits"]["train"]["bytes"] > len("the fox\n" * 20)
    assert "package.json: read as plain text, including the keys" in told["notes"][0]


def test_a_folder_of_rows_may_have_a_file_without_rows_and_a_link_that_leads_nowhere(here):
    (here / "rows").mkdir()
    (here / "rows/gone.txt").symlink_to(here / "nowhere")
    empty = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
    for name, table in (("a.parquet", pyarrow.table({"text": ["the fox", "the owl"]})), ("b.parquet", empty)):
        parquet.write_table(table, here / "rows" / name)
    (row,) = json_of("eval", "byte", "--text", "rows", "--documents", "records", *ONE_LANE)["rows"]
    assert row["tokens"] == len("he fox\n") + len("he owl\n")
    for command in (("prepare", "rows"), ("eval", "byte", "--text", "rows")):
        assert "no effect on Parquet" in refusal(*command, "--encoding", "cp1252")


UNREADABLE = {
    "wide.txt": "the fox\n".encode("utf-16") * 9,
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(99),
    "cut.gz": gzip.compress(TEXT)[:-9],
    "more.gz": gzip.compress(TEXT) + b"more",
    "ids.jsonl": b'{"ids": [1, 2]}\n' * 9,
    "array.npy": b"\x93NUMPY" + bytes(99),
}


@pytest.mark.parametrize(("name", "run"), sampled(2, UNREADABLE, ["byte", "char"]))
def test_what_prepare_rejects_is_not_scored_either(here, name, run):
    (here / name).write_bytes(UNREADABLE[name])
    refusal("prepare", name, "--tokenizer", "byte", code=1)
    refusal("eval", run, "--text", name, "-q", code=1)
    with pytest.raises(CorpusInputError):
        txlcli.load(run).score(here / name)


def test_a_prompt_from_stdin_may_be_compressed_and_is_rejected_if_it_is_not_text(here):
    prompt = ("generate", "byte", "--prompt", "-", "--greedy", "--tokens", 5)
    plain = json_of(*prompt, stdin="the fox\n")
    assert json_of(*prompt, stdin=gzip.compress(b"the fox\n")) == plain
    refused = refusal(*prompt, stdin="the fox".encode("utf-16"), code=1)
    assert "utf-16" in refused
    assert "--encoding" not in refused  # which generate does not have
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"title": ["fox"], "body": ["the fox"]}), table)
    assert "--column" not in refusal(*prompt, stdin=table.getvalue(), code=1)


def test_text_that_is_json_or_numbers_has_a_note_wherever_it_is_read(here):
    for name, text, word in (
        ("rows.txt", '{"text": "a"}\n' * 40, "JSON"),
        ("codes.txt", "65 66 10 255 0\n" * 40, "from 0 to 255"),
        ("hex.txt", "48 65 6c 6c 6f 0a\n" * 40, "hexadecimal"),
        ("ids.txt", "[5012, 7, 7, 50256]\n" * 40, "token ids"),
        ("letters.txt", "t h e _ ö w l\n" * 40, "single characters"),
        ("marked.txt", "the fox<|endoftext|>\nthe owl<|endoftext|>\n" * 40, "<|endoftext|>"),
    ):
        (here / name).write_text(text)
        told = json_of("prepare", name, "-q")
        (note,) = [note for note in told["notes"] if word in note]
        assert note in json_of("eval", "byte", "--text", name, "-q")["notes"]
    for name, unit, data, note in (
        ("zeros.txt", "blank-lines", b"the fox\0\n\n" * 40, "40 NUL bytes"),
        ("legacy.txt", "blank-lines", "the öwl\n\n".encode("cp1252") * 40, "not UTF-8 in 40 places"),
        (
            "lacking.jsonl",
            "records",
            b'{"text": "the fox"}\n{"id": 7}\n' * 40,
            "without a text, which were left out: 40",
        ),
        ("rows.txt", "blank-lines", b'{"text": "a"}\n\n' * 40, "keys, quotes and escapes of JSON"),
    ):
        (here / name).write_bytes(data)
        (whole,) = json_of("eval", "byte", "--text", name)["notes"]
        assert note in whole
        assert json_of("eval", "byte", "--text", name, "--documents", unit)["notes"] == [whole]
    assert json_of("eval", "byte", "--text", "marked.txt", "--documents", "<|endoftext|>")["notes"] == []
    assert "token ids" in done("eval", "byte", "--text", "ids.txt", "-q").stdout
    (here / "poem.txt").write_text("12 men and 7 foxes\n" * 40)
    assert json_of("prepare", "poem.txt")["notes"] == []
