"""txl prepare --vocab: text encoded with an existing vocabulary."""

import numpy as np
import pytest

from tests.commands.novel import STORES, TOKENIZERS, done, json_of, refusal, store


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_vocabulary_of_a_run_gives_the_ids_of_its_training_text(here, tokenizer):
    told = json_of("prepare", "novel", "--vocab", f"runs/{tokenizer}/vocab.json", "--name", "again")
    first, again = store(STORES[tokenizer]), store("again")
    assert again.fingerprint == first.fingerprint
    assert told["tokenizer"] == tokenizer
    assert told["conventions"]["vocabulary"] == "given by --vocab"
    for split in first.splits:
        assert again.info(split) == first.info(split)
        np.testing.assert_array_equal(again.ids(split), first.ids(split))


def test_a_word_list_sets_the_ids(here):
    (here / "list.txt").write_text("<eos>\nowl\nfox 12\nthe\n<unk>\n")
    (here / "text.txt").write_text("the fox\nthe dog\n" * 30)
    done("prepare", "text.txt", "--vocab", "list.txt", "--split", "90,5,5", "--name", "listed")
    assert store("listed").ids("train")[:6].tolist() == [3, 2, 0, 3, 4, 0]
    (here / "novel/list.txt").symlink_to(here / "list.txt")
    assert "would be read as text, too; move it out of novel" in refusal("prepare", "novel", "--vocab", "list.txt")


def test_a_corpus_with_another_vocabulary_is_named_after_both(here):
    (here / "novel/ptb.train.txt").write_text("the fox\nthe cat\n")
    told = json_of("prepare", "ptb", "--source", "novel/ptb.train.txt", "--vocab", "runs/word/vocab.json")
    assert told["store"] == f"data/ptb-vocab-{told['fingerprint'][:8]}.h5"
    assert told["fingerprint"] == store("word").fingerprint


def test_a_symbol_missing_from_the_vocabulary_is_named(here):
    (here / "list.txt").write_text("<eos>\nfox\nthe\n")
    (here / "text.txt").write_text("the fox\nthe dog runs\n" * 30)
    assert 'lacks "dog"' in refusal("prepare", "text.txt", "--vocab", "list.txt", code=1)
    assert not list((here / "data").glob("text*"))
    (here / "vocab.json").write_text('{"kind":"byte","bytes":[97,98],"dropped":[10],"boundary":null,"unknown":null}')
    (here / "text.txt").write_text("ab\nba\n" * 30)
    done("prepare", "text.txt", "--vocab", "vocab.json", "--name", "text")
    assert store("text").ids("train")[:4].tolist() == [0, 1, 1, 0]
    (here / "text.txt").write_text("ab\nbac\n" * 30)
    assert "lacks byte 0x63" in refusal("prepare", "text.txt", "--vocab", "vocab.json", "--force", code=1)


def test_a_split_that_is_mostly_unknown_has_a_note(untouched):
    (untouched / "words.txt").write_text("<unk>\nthe\n")
    (untouched / "text.txt").write_text("the fox jumps over\n" * 40)
    told = json_of("prepare", "text.txt", "--vocab", "words.txt", "--name", "text", "-q", "--split", "100,0,0")
    assert any("120 of the 160 tokens of train" in note for note in told["notes"])
