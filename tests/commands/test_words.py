"""txl eval --words: the words of a text with their bits, which add up to those of the text."""

import csv
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import txlcli
from tests.commands.novel import TOKENIZERS, done, json_of, refusal, text_of
from txlcli.errors import UsageError

TEXT = 'the fox\tjumps "over"\n\nthe lazy  dogs été 語 🦊 cats\n'
READ = ["--mem-len", "0,5", "--batch-size", 1]


def rows_of(path):
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture
def story(here):
    path = Path("story.txt")
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bits_of_the_words_add_up_to_those_of_the_text(story, name):
    told = json_of("eval", name, "--text", story, *READ, "--words", "words.tsv")["rows"]
    rows = rows_of("words.tsv")
    expected = ["the", "fox", "jumps", '"over"', "\n", "\n", "the", "lazy", "dogs", "été", "語", "🦊", "cats", "\n"]
    assert [row["word"] for row in rows] == expected
    assert [TEXT[int(row["start"]) : int(row["end"])] for row in rows] == expected
    assert sum(int(row["tokens"]) for row in rows) == told[0]["tokens"]
    for mem_len, result in zip((0, 5), told, strict=True):
        total = sum(float(row[f"bits_M{mem_len}"]) for row in rows)
        assert total == pytest.approx(result["bpc"] * result["tokens"], abs=1e-4)
    known = {row["word"] for row in rows if row["unknown"] == "0"}
    assert ("cats" in known) is (name != "word")


def test_every_line_end_is_a_cell(story):
    story.write_bytes(b"the\rfox\r\r\nowl\n")
    done("eval", "byte", "--text", story, "--words", "words.tsv")
    assert [row["word"] for row in rows_of("words.tsv")] == ["the", "\r", "fox", "\r", "\r\n", "owl", "\n"]


@pytest.mark.parametrize("name", ["byte", "sentencepiece"])
def test_windows_give_the_bits_of_their_own_reading(story, name):
    windows = ["--attn-len", "4,9", "--stride", 1]
    told = json_of("eval", name, "--text", story, *windows, "--words", "words.tsv")["rows"]
    for length, result in zip((4, 9), told, strict=True):
        total = sum(float(row[f"bits_N{length}"]) for row in rows_of("words.tsv"))
        assert total == pytest.approx(result["bpc"] * result["tokens"], abs=1e-4)


def test_the_blank_after_a_word_belongs_to_the_word(here):
    """Of bytes, directly; of pieces, by the probability that any piece with a blank follows."""
    run = txlcli.load("byte")
    score = run.score("ab cd\n")
    first, second, line_end = score.words()
    bits = score.loss_nats.astype(np.float64) / np.log(2)  # of "b", blank, "c", "d", line end
    assert (first.bits, second.bits, line_end.bits) == pytest.approx((bits[:2].sum(), bits[2:4].sum(), bits[4]))

    run = txlcli.load("sentencepiece")
    text = "the fox jumps\n"
    score = run.score(text)
    log_probs = run.log_probs(text).astype(np.float64)[:-1]  # (T, V), of the tokens of the text
    pieces = run.vocab.pieces
    begins = np.array([piece[:1] in (b" ", b"\n") for piece in pieces])
    blanks = [number for number, piece in enumerate(pieces) if piece[:1].isspace()]
    before = np.where(begins[score.tokens], -np.log(np.exp(log_probs[:, blanks]).sum(axis=1)), 0.0)
    firsts = np.flatnonzero(begins[score.tokens])  # the first word begins without a blank
    edges = [0, *firsts, len(score.tokens)]
    expected = []
    for start, end in itertools.pairwise(edges):
        after = before[end] if end < len(before) else 0.0
        expected.append(score.loss_nats[start:end].sum(dtype=np.float64) - before[start] * (start > 0) + after)
    assert [word.bits * np.log(2) for word in score.words()] == pytest.approx(expected, rel=1e-5)
    assert [word.word for word in score.words()] == ["the", "fox", "jumps", "\n"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_have_their_places_in_a_text_that_begins_with_a_byte_order_mark(here, name):
    text = "\ufefffox jumps\n"
    run = txlcli.load(name)
    score = run.score(text)
    words = score.words()
    assert [word.word for word in words] == ["\ufefffox", "jumps", "\n"]
    assert [text[word.start : word.end] for word in words] == [word.word for word in words]
    assert score.tokens.tolist() == run.vocab.encode(text)[-len(score.tokens) :].tolist()
    Path("marked.txt").write_text(text, encoding="utf-8")
    assert [word.word for word in run.score(Path("marked.txt")).words()] == ["fox", "jumps", "\n"]


def test_of_documents_the_first_one_has_the_byte_order_mark_of_the_file(here):
    Path("marked.txt").write_text("\ufefffox|\n\ufeffcats\n", encoding="utf-8")
    done("eval", "word", "--text", "marked.txt", "--documents", "|", "--words", "words.tsv")
    assert [row["word"] for row in rows_of("words.tsv")] == ["fox|", "\n", "\ufeffcats", "\n"]


def test_a_pickled_score_has_losses_but_no_words(here):
    score = txlcli.load("byte").score("the fox\n")
    copy = pickle.loads(pickle.dumps(score))
    assert copy.total_nats == score.total_nats
    assert copy.tokens.tolist() == score.tokens.tolist()
    with pytest.raises(UsageError, match="pickled"):
        copy.words()


def test_text_without_blanks_gets_characters_and_says_so(story):
    story.write_text("我爱北京。\n天安门\n", encoding="utf-8")
    told = done("eval", "byte", "--text", story, "--words", "words.tsv").stderr
    assert "characters" in told
    assert [row["word"] for row in rows_of("words.tsv")] == [*"我爱北京。", "\n", *"天安门", "\n"]
    done("eval", "byte", "--text", story, "--words", "words.tsv", "--force")


DOCUMENTS = {"b.txt": "the fox jumps\n", "a.txt": "the lazy dogs\nsleep\n", "part/c.txt": "cats\n"}


@pytest.fixture
def stories(here):
    for name, text in DOCUMENTS.items():
        path = Path("stories", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    Path("stories/empty.txt").touch()
    return Path("stories")


def words_by_document(run, *options):
    """Return the words and the total bits of each document in words.tsv, and the table's row."""
    (row,) = json_of("eval", run, *options, "--words", "words.tsv", "--force")["rows"]
    words, bits = {}, {}
    (column,) = [name for name in rows_of("words.tsv")[0] if name.startswith("bits")]
    for line in rows_of("words.tsv"):
        words.setdefault(line["document"], []).append(line["word"])
        bits[line["document"]] = bits.get(line["document"], 0) + float(line[column])
    assert sum(bits.values()) == pytest.approx(row["bpc"] * row["tokens"], abs=1e-4)
    assert row["documents"] == len(words)
    return words, bits


@pytest.mark.parametrize("reading", [["--mem-len", 5], ["--attn-len", 6]], ids=["memory", "windows"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_file_of_a_folder_is_read_from_an_empty_memory(stories, name, reading):
    words, bits = words_by_document(name, "--text", stories, *reading)
    assert words == {
        f"stories/{file}": text.replace("\n", " \n ").split(" ")[:-1] for file, text in sorted(DOCUMENTS.items())
    }
    for file, total in bits.items():
        (alone,) = json_of("eval", name, "--text", file, *reading, "--batch-size", 1)["rows"]
        assert total == pytest.approx(alone["bpc"] * alone["tokens"], abs=1e-4)
    assert "left out: 1" in done("eval", name, "--text", stories, *reading).stdout


def test_several_texts_records_and_marks_are_documents(stories):
    (folder, of_folder) = words_by_document("byte", "--text", stories, "--mem-len", 5)
    files = [f"stories/{name}" for name in sorted(DOCUMENTS)]
    options = [option for name in files for option in ("--text", name)]
    assert words_by_document("byte", *options, "--mem-len", 5) == (folder, pytest.approx(of_folder))

    texts = [DOCUMENTS[name] for name in sorted(DOCUMENTS)]
    Path("records.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    numbered, of_records = words_by_document(
        "byte", "--text", "records.jsonl", "--documents", "records", "--mem-len", 5
    )
    assert list(numbered) == ["records.jsonl:1", "records.jsonl:2", "records.jsonl:3"]
    assert list(of_records.values()) == pytest.approx(list(of_folder.values()), abs=1e-4)

    Path("blank.txt").write_text("\n".join(texts))
    divided, _ = words_by_document("byte", "--text", "blank.txt", "--documents", "blank-lines", "--mem-len", 5)
    assert [words[0] for words in divided.values()] == ["the", "the", "cats"]
    Path("marks.txt").write_text("<|end|>".join(texts))
    assert len(words_by_document("byte", "--text", "marks.txt", "--documents", "<|end|>", "--mem-len", 5)[0]) == 3


def test_a_folder_is_scored_from_python_with_the_document_of_each_word(stories):
    run = txlcli.load("byte")
    score = run.score(stories, mem_len=5)
    _, bits = words_by_document("byte", "--text", stories, "--mem-len", 5)
    found = {}
    for word in score.words():
        found[word.document] = found.get(word.document, 0) + word.bits
    assert found == pytest.approx(bits, abs=1e-4)


def test_the_note_on_windows_has_the_number_of_documents(stories):
    shown = " ".join(done("eval", "byte", "--text", stories, "--attn-len", 4).stdout.split())
    assert "one prediction per window" in shown
    assert "Documents: 3;" in shown


def test_files_that_a_folder_leaves_out_or_that_describe_it_are_told(stories):
    (stories / "figure.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    (stories / "README.md").write_text("three stories\n")
    told = json_of("eval", "byte", "--text", stories, "--mem-len", 5)
    assert told["rows"][0]["documents"] == 4
    notes = " ".join(told["notes"])
    assert "left out: figure.png" in notes
    assert "README.md: part of the text" in notes


def test_documents_are_rejected_where_there_are_none(stories):
    Path("nothing").mkdir()
    Path("empty").mkdir()
    Path("empty/empty.txt").touch()
    for words, telling, code in (
        ("--documents records", "--text", 2),
        ("--text stories/a.txt --documents records", "records", 2),
        ("--text - --text -", "stdin", 2),
        ("--text stories --documents blank-line", "blank-lines", 2),
        ("--text stories --html page.html", "--html", 2),
        ("--text nothing", "no text", 1),
        ("--text empty", "no token", 1),
    ):
        assert telling in refusal("eval", "byte", *words.split(), code=code)
    assert "--text" in refusal("eval", "byte", "--text", "")


def test_as_many_words_as_the_perplexity_per_word_counts(here):
    Path("words.txt").write_text(text_of("test"), encoding="utf-8")
    (row,) = json_of("eval", "byte", "--text", "words.txt", "--words", "words.tsv")["rows"]
    nats = row["loss_nats"] * row["tokens"]
    assert np.exp(nats / len(rows_of("words.tsv"))) == pytest.approx(row["ppl_per_word"], rel=1e-6)


def test_words_are_rejected_where_there_are_none(story):
    Path("mine.tsv").write_text("my\town\n")
    for words, telling in (
        ("--words words.tsv", "--text"),
        ("--text story.txt --words words.csv", ".tsv"),
        ("--text story.txt --words words.tsv --cache 5", "--words"),
        ("--text story.txt --words mine.tsv --force", "mine.tsv"),
    ):
        assert telling in refusal("eval", "byte", *words.split())
    assert Path("mine.tsv").read_text() == "my\town\n"
    for run, data, telling in (
        ("byte", b"the \xff fox\n", "story.txt"),
        *((run, b"   ", "only blanks") for run in ("byte", "char", "sentencepiece")),
    ):
        story.write_bytes(data)
        assert telling in refusal("eval", run, "--text", story, "--words", "words.tsv", code=1)
    assert not Path("words.tsv").exists()
