"""txl prepare --documents stores where documents begin; training shuffles them, txl eval can read each on its own."""

import itertools
import json

import pytest

from tests.cards import read_log
from tests.commands.novel import TOKENIZERS, done, json_of, refusal, reports, store, train
from tests.samples import sampled
from txlcli.corpora.documents import Documents, text_of
from txlcli.corpora.locate import whole

DOCUMENTS = [
    f"the fox {number % 7}\njumps over\n" * (1 + number % 5) + "\u8a9e owl\n" * (number % 2) for number in range(60)
]
SIZES = {"sentencepiece": ["--vocab-size", "283"]}


@pytest.fixture
def many(here):
    """Make the store "many" of words, whose documents are files."""
    write_files(here / "many")
    done("prepare", "many", "--documents", "files", "--tokenizer", "word", "--split", "80,10,10")
    return here


def stored(name, split):
    """Return the text of each document of a split."""
    own = store(name)
    starts, ids = own.sentence_starts(split).tolist(), own.ids(split)
    assert starts[0] == 0
    return [own.vocab.decode(ids[first:end]) for first, end in zip(starts, [*starts[1:], len(ids)], strict=True)]


def write_files(directory):
    directory.mkdir()
    for number, text in enumerate(DOCUMENTS):
        (directory / f"{number:02}.txt").write_text("\ufeff" * (number == 3) + text, encoding="utf-8")


def write_records(path):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS), encoding="utf-8")


def write_blank_lines(path):
    path.write_text("\n \n\n".join(DOCUMENTS), encoding="utf-8")


UNITS = {
    "files": ("many", write_files, ""),
    "records": ("many.jsonl", write_records, ""),
    "blank-lines": ("many.txt", write_blank_lines, "\n \n\n"),
}


@pytest.mark.parametrize(("tokenizer", "unit"), sampled(2, TOKENIZERS, UNITS))
def test_documents_are_kept_whole_and_their_places_are_stored(untouched, tokenizer, unit):
    name, write, between = UNITS[unit]
    write(untouched / name)
    size = SIZES.get(tokenizer, [])
    told = json_of("prepare", name, "--documents", unit, "--tokenizer", tokenizer, "--split", "60,20,20", *size)
    found = [text for split in ("train", "valid", "test") for text in stored("many", split)]
    expected = [text + between for text in DOCUMENTS[:-1]] + DOCUMENTS[-1:]
    if tokenizer == "word":  # a blank in an empty line is no word
        expected = [text.replace("\n \n\n", "\n\n\n") for text in expected]
    assert found == expected
    assert told["conventions"]["documents"] == unit
    assert told["conventions"]["split"] == "60/20/20 by position, cut between documents"
    numbers = [told["splits"][split]["documents"] for split in ("train", "valid", "test")]
    assert sum(numbers) == len(DOCUMENTS)
    size = len("".join(expected).encode())
    assert [round(info["bytes"] / size, 1) for info in told["splits"].values()] == [0.6, 0.2, 0.2]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("beginning", [b"\n\n", b" \r\n\r\n"])
def test_blank_lines_are_found_whatever_the_blocks(tmp_path, block, beginning):
    data = beginning + b"one\n\ntwo\nlines\r\n\r\n \t\n  three\n\n\n"
    (tmp_path / "a").write_bytes(data)
    starts = Documents("blank-lines", block).starts([whole(tmp_path / "a")])
    assert [data[first:end] for first, end in zip(starts, [*starts[1:], len(data)], strict=True)] == [
        beginning + b"one\n\n",
        b"two\nlines\r\n\r\n \t\n",
        b"  three\n\n\n",
    ]


def test_documents_are_shuffled_in_training_and_scored_from_an_empty_memory(many):
    train("corpus.store=many", "corpus.shuffle_documents=true", name="many")
    documents = stored("many", "valid")
    result = json_of("eval", "many", "--split", "valid", "--reset-at-documents", "--batch-size", 2, "--mem-len", "0,99")
    for row, mem_len in zip(result["rows"], (0, 99), strict=True):
        nats = tokens = most = 0
        for text in documents:  # a line end precedes each document in the store, and is implied before a text
            (many / "one.txt").write_text(text, encoding="utf-8")
            (one,) = json_of("eval", "many", "--text", "one.txt", "--batch-size", 1, "--mem-len", mem_len)["rows"]
            nats, tokens = nats + one["loss_nats"] * one["tokens"], tokens + one["tokens"]
            most = max(most, one["attn_len_max"])
        assert (row["documents"], row["tokens"], row["attn_len_max"]) == (len(documents), tokens, most)
        assert row["loss_nats"] == pytest.approx(nats / tokens, rel=1e-5)
    shown = done("eval", "many", "--split", "valid", "--reset-at-documents").stdout
    assert f"Documents: {len(documents)}, each from an empty memory. L = 5, " in shown
    assert "lanes" not in shown


@pytest.mark.parametrize("mark", [" <|end|> ", "\n<|end|>\n", " <|end|>\n\n"])
def test_documents_that_marks_end_have_the_tokens_of_the_split(here, mark):
    (here / "marks.txt").write_text(mark.join(["the fox", "the lazy dogs\nsleep", "cats"]))
    marked = ("marks.txt", "--documents", "<|end|>")
    split = json_of("prepare", *marked, "--tokenizer", "word", "--split", "100,0,0")["splits"]["train"]
    (row,) = json_of("eval", "word", "--text", *marked)["rows"]
    assert (row["documents"], row["tokens"]) == (3, split["tokens"])


@pytest.mark.parametrize(("positions", "whole"), [(14, False), (15, False), (16, False), (22, True)])
def test_texts_of_which_a_part_is_scored_are_marked_also_if_it_ends_with_a_document(here, positions, whole):
    (here / "one.txt").write_text("the lazy dogs !\n")
    (here / "two.txt").write_text("the cats")
    texts = ("--text", "one.txt", "--text", "two.txt", "--positions", positions)
    (row,) = json_of("eval", "byte", *texts)["rows"]
    assert row["tokens"] == positions
    assert read_log("runs/byte/evals.jsonl")[-1]["whole"] == whole


@pytest.mark.parametrize("shuffled", ["true", "false"])
def test_training_that_begins_documents_anew_validates_as_the_evaluation_document_by_document(many, shuffled):
    resets = ("corpus.store=many", "train.reset_at_documents=true", f"corpus.shuffle_documents={shuffled}")
    train(*resets, "eval.same_length=off", name="many")
    (row,) = json_of("eval", "many", "--split", "valid", "--reset-at-documents")["rows"]
    losses = [line["loss_nats"] for line in reports("runs/many") if line["kind"] == "valid"]
    assert min(losses) == pytest.approx(row["loss_nats"], rel=1e-5)
    train("corpus.store=many", f"corpus.shuffle_documents={shuffled}", name="carried")
    assert reports("runs/carried")[0]["loss_nats"] != reports("runs/many")[0]["loss_nats"]


def test_what_documents_cannot_be_used_for_is_named(here):
    done("export", "novel", "pieces", "--format", "parquet")
    (here / "one.txt").write_text("one document\n" * 9)
    shuffled = "train tiny.toml --set corpus.shuffle_documents=true"
    for command, telling, code in (
        ("prepare novel --documents records", "no records", 2),
        ("prepare pieces --documents records", "no records", 2),  # the rows of an export are pieces of one text
        ("eval byte --reset-at-documents", "does not record where documents begin", 1),
        (shuffled, "does not record where documents start", 2),
        ("train tiny.toml --set train.reset_at_documents=true", "does not record where documents start", 2),
        ("prepare one.txt --documents files", "too few documents to split (1)", 1),
        ("prepare one.txt --documents <|nope|>", "other --documents", 1),
    ):
        assert telling in refusal(*command.split(), code=code)


@pytest.mark.parametrize(("unit", "what"), [("<|nope|>", '"<|nope|>"'), ("blank-lines", "blank line")])
def test_documents_that_nothing_divides_are_told(here, unit, what):
    note = f"no {what} divides the text: each file is one document"
    (here / "parts").mkdir()
    for name in ("train.txt", "valid.txt", "test.txt"):
        (here / "parts" / name).write_text("the fox\nand the owl\n")
    assert note in json_of("prepare", "parts", "--documents", unit)["notes"]
    assert note in json_of("eval", "word", "--text", "parts/train.txt", "--documents", unit)["notes"]
    (here / "parts" / "valid.txt").write_text(f"the fox\n{unit}\n\nand the owl\n")
    assert note not in json_of("prepare", "parts", "--documents", unit, "--force")["notes"]


@pytest.mark.parametrize("block", [7, 1 << 22])
def test_a_mark_ends_each_document(untouched, block):
    texts = ["the fox<|end|>\n", "an owl<|end|>\r\n\n", "<|end|>", "no more"]
    (untouched / "marked.txt").write_bytes("".join(texts).encode())
    documents = Documents("<|end|>", block)
    starts = [0, *itertools.accumulate(map(len, texts[:-1]))]
    assert documents.starts([text_of(untouched / "marked.txt")]).tolist() == starts
    (untouched / "marked.txt").write_bytes("".join(texts[:-1]).encode())  # no document begins at the end
    assert documents.starts([text_of(untouched / "marked.txt")]).tolist() == starts[:-1]


def test_splits_are_cut_behind_marks_and_the_store_keeps_the_documents(untouched):
    (untouched / "marked.txt").write_text("the fox <|endoftext|>\n" * 40)
    told = json_of("prepare", "marked.txt", "--documents", "<|endoftext|>", "--split", "50,25,25")
    assert [info["documents"] for info in told["splits"].values()] == [20, 10, 10]
    assert "<|endoftext|>" in told["conventions"]["documents"]
    assert 'unknown unit of documents "file"' in refusal("prepare", "marked.txt", "--documents", "file", "--force")
