"""txl eval --words: the words of a text with their bits, which add up to those of the text."""

import csv
import itertools
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


@pytest.mark.parametrize("name", ["byte", "sentencepiece"])
def test_windows_give_the_bits_of_their_own_reading(story, name):
    windows = ["--attn-len", "4,9", "--stride", 1]
    told = json_of("eval", name, "--text", story, *windows, "--words", "words.tsv")["rows"]
    for length, result in zip((4, 9), told, strict=True):
        total = sum(float(row[f"bits_N{length}"]) for row in rows_of("words.tsv"))
        assert total == pytest.approx(result["bpc"] * result["tokens"], abs=1e-4)


def test_the_blank_after_a_word_belongs_to_the_word(story):
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


def test_as_many_words_as_the_perplexity_per_word_counts(here):
    Path("words.txt").write_text(text_of("test"), encoding="utf-8")
    (row,) = json_of("eval", "byte", "--text", "words.txt", "--words", "words.tsv")["rows"]
    nats = row["loss_nats"] * row["tokens"]
    assert np.exp(nats / len(rows_of("words.tsv"))) == pytest.approx(row["ppl_per_word"], rel=1e-6)


def test_words_are_rejected_where_there_are_none(story):
    assert "--text" in refusal("eval", "byte", "--words", "words.tsv", code=2)
    assert ".tsv" in refusal("eval", "byte", "--text", story, "--words", "words.csv", code=2)
    assert "--words" in refusal("eval", "byte", "--text", story, "--words", "words.tsv", "--cache", 5, code=2)
    Path("mine.tsv").write_text("my\town\n")
    assert "mine.tsv" in refusal("eval", "byte", "--text", story, "--words", "mine.tsv", "--force", code=2)
    assert Path("mine.tsv").read_text() == "my\town\n"
    story.write_bytes(b"the \xff fox\n")
    assert "not UTF-8" in refusal("eval", "byte", "--text", story, "--words", "words.tsv", code=1)
    assert not Path("words.tsv").exists()
