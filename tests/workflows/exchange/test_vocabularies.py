"""Reading a vocabulary from files of every format, and refusing other files."""

import io
import json
import pickle
import re
from collections import Counter, OrderedDict

import pytest
import sentencepiece
import torch

from tests.errors import rejection
from txlcli.data.sentencepiece_model import train
from txlcli.data.vocabulary import Vocab
from txlcli.errors import VocabularyError
from txlcli.workflows.exchange import vocabularies

WORDS = ["<eos>", "the", "naïve", "語", "<unk>", "fox"]
VOCAB = Vocab("word", WORDS, boundary=0, unknown=4)
FIELDS = {
    **{"counter": Counter(WORDS), "special": ["<eos>"], "min_freq": 0, "max_size": None, "lower_case": False},
    **{"delimiter": None, "vocab_file": None, "never_split": ("<eos>",), "idx2sym": WORDS},
    **{"sym2idx": OrderedDict((word, number) for number, word in enumerate(WORDS)), "eos_idx": 0, "unk_idx": 4},
}
"""Attributes that Hugging Face's tokenizer saves."""
OF_OBJECTS = {**FIELDS, "pattern": re.compile("[^s][.,]"), "never_split": {"<eos>"}}
"""With objects that are not plain containers, as transformers 4 writes them; these are not built."""


def py2_pickle(words):
    """Pickle {"idx2sym": words} as Python 2 did with byte strings: protocol 0, STRING opcodes."""
    items = "".join(f"S{repr(word.encode())[1:]}\na" for word in words)
    return f"(dS'idx2sym'\n(l{items}s.".encode()


class Tokenizer:
    """An object of another package, or the released code's vocabulary itself."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def of_package(module, thing):
    """Pickle a thing as if the module had its class."""
    return pickle.dumps(thing, 2).replace(f"c{__name__}\nTokenizer".encode(), f"c{module}\nTokenizer".encode())


def text_of(text):
    return lambda path: path.write_text(text, encoding="utf-8")


def pickled(protocol, fields=FIELDS):
    return lambda path: path.write_bytes(pickle.dumps(fields, protocol))


WRITERS = {
    "vocab.json": text_of(VOCAB.to_json()),
    "vocab.txt": text_of("".join(f"{word}\n" for word in WORDS)),
    "counts.txt": text_of("".join(f"{word} {number * 7}\n" for number, word in enumerate(WORDS))),
    "without_an_ending": text_of("\n" + "\r\n\n".join(WORDS)),
    "vocab.bin": lambda path: torch.save(FIELDS, path),
    "legacy.bin": lambda path: torch.save(FIELDS, path, _use_new_zipfile_serialization=False),
    "vocab.pkl": pickled(4),
    "objects.pkl": pickled(4, OF_OBJECTS),
    "objects.bin": lambda path: torch.save(OF_OBJECTS, path),
    "sacremoses.pkl": lambda path: path.write_bytes(
        of_package("sacremoses.tokenize", {**OF_OBJECTS, "moses_tokenizer": Tokenizer(language="en")})
    ),
    "released.pkl": lambda path: path.write_bytes(of_package("utils.vocabulary", Tokenizer(**FIELDS))),
    "python2.pkl": lambda path: path.write_bytes(py2_pickle(WORDS)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_vocabulary(tmp_path, name):
    WRITERS[name](tmp_path / name)
    read = vocabularies.read(tmp_path / name)
    assert read.to_json() == VOCAB.to_json()
    assert read.fingerprint == VOCAB.fingerprint


@pytest.mark.parametrize(
    ("text", "symbols", "boundary", "unknown"),
    [
        ("<S>\nthe\n<UNK>\nthe\nfox\n", ["<S>", "the", "<UNK>", "fox"], 0, 2),  # of One Billion Word: "the" counts once
        ("a\nb\n", ["a", "b"], None, None),
    ],
)
def test_markers_in_a_list_are_recognized(tmp_path, text, symbols, boundary, unknown):
    (tmp_path / "vocab.txt").write_text(text)
    read = vocabularies.read(tmp_path / "vocab.txt")
    assert (read.symbols, read.boundary, read.unknown) == (symbols, boundary, unknown)


def test_lower_case_is_read(tmp_path):
    torch.save({**FIELDS, "lower_case": True}, tmp_path / "vocab.bin")
    assert vocabularies.read(tmp_path / "vocab.bin").encode("THE").tolist() == [1]


def test_the_most_complete_file_of_a_directory_is_chosen(tmp_path):
    assert vocabularies.find(tmp_path) is None
    for name in ("vocab.txt", "vocab.pkl", "vocab.bin", "vocab.json"):
        (tmp_path / name).touch()
        assert vocabularies.find(tmp_path) == tmp_path / name


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        (["<unk>\t0", "\u2581the\t-1.5", "ing\t-2", "\u2581fox\t-3"], "SentencePiece"),
        (["[UNK]", "the", "##ing", "fox"], "WordPiece"),
        (["the 7", "\u0120fox 3", "a 2"], "byte-level BPE"),
        (["<s>", "th@@ 4", "e 3"], "BPE"),
    ],
)
def test_a_list_of_parts_of_words_is_not_a_list_of_words(tmp_path, pieces, word):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    message = refusal(tmp_path / "vocab.txt")
    assert f"pieces of {word}" in message
    assert (".model" in message) == (word == "SentencePiece")


MODEL = train(["the fox jumps over the lazy owl"] * 9, size=283, model_type="bpe")


def test_a_sentencepiece_model_is_a_vocabulary_if_it_restores_all_text(tmp_path):
    (tmp_path / "own.model.v3").write_bytes(MODEL)
    vocab = vocabularies.read(tmp_path / "own.model.v3")
    text = "the  fox\n\tna\u00efve \U0001f98a"
    assert vocab.decode(vocab.encode(text)) == text
    assert vocab.fingerprint == Vocab("sentencepiece", boundary=0, unknown=1, model=MODEL).fingerprint
    other = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the fox jumps"] * 9), model_writer=other, vocab_size=16, minloglevel=2
    )
    (tmp_path / "other.model").write_bytes(other.getvalue())
    refused = refusal(tmp_path / "other.model")
    assert "removes blanks" in refused
    assert "train one with `tokenizer` sentencepiece" in refused
    (tmp_path / "other.model").write_bytes(b"no model")
    assert "not a SentencePiece model" in refusal(tmp_path / "other.model")


def refusal(path):
    return rejection(VocabularyError, vocabularies.read, path).removeprefix(f"{path}: ")


def test_a_missing_file_is_rejected(tmp_path):
    for path in (tmp_path / "vocab.txt", tmp_path):
        assert "no vocabulary file" in refusal(path)


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.json"])
def test_text_that_is_not_utf_8_is_rejected(tmp_path, name):
    (tmp_path / name).write_bytes("naïve\n".encode("latin-1"))
    assert "can't decode byte 0xef" in refusal(tmp_path / name)


@pytest.mark.parametrize("text", ["{", "[]", '{"the": 0, "fox": 1}', VOCAB.to_json()[:-7]])
def test_json_without_a_vocabulary_is_rejected(tmp_path, text):
    (tmp_path / "vocab.json").write_text(text)
    assert "not a vocabulary of txl" in refusal(tmp_path / "vocab.json")


BAD_FIELDS = {
    "no_list": ({"sym2idx": {"a": 0}}, "has no list idx2sym"),
    "no_dict": (WORDS, "has no list idx2sym"),
    "numbers": ({"idx2sym": ["a", 7]}, "does not hold a list of words"),
    "nothing": ({"idx2sym": []}, "does not hold a list of words"),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
@pytest.mark.parametrize("name", ["vocab.bin", "vocab.pkl"])
def test_a_pickle_without_words_is_rejected(tmp_path, name, case):
    fields, message = BAD_FIELDS[case]
    torch.save(fields, tmp_path / "vocab.bin")
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(fields))
    assert message in refusal(tmp_path / name)


PICKLE = pickle.dumps(FIELDS)
DAMAGED = [b"", b"hello", PICKLE[:50], b"I1\n0."]


@pytest.mark.parametrize("data", DAMAGED)
@pytest.mark.parametrize("name", ["vocab.bin", "vocab.pkl"])
def test_a_damaged_pickle_is_rejected(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    message = refusal(tmp_path / name)
    assert "not readable as a vocabulary" in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a 7\n\nb 3\n", "line 2 is blank"),
        ("a 7\nb 5\na 3\n", "line 3 repeats line 1"),
        ("b 1\na 0\nc 2\n", "not in the order of their ids"),
        ("b 2\na 1\nc 3\n", "not in the order of their ids"),
        ("a 1\nb 2\nc 3\n", "begin with 1, but the first line"),
        ("word id\na 0\nb 1\n", "line 1 is a header"),
        ("IQ== 0\nIg== 1\nIHRo 2\n", "pieces of tiktoken"),
        ("#version: 0.2\nt h\na n\n", "merges of BPE"),
        ("0 a\n1 b\n", "first column is numbers"),
        ("75 a\n32 b\n", "first column is numbers"),
    ],
)
def test_a_list_for_ids_has_one_word_in_each_line(tmp_path, lines, message):
    (tmp_path / "dict.txt").write_text(lines)
    with pytest.raises(VocabularyError, match=message):
        vocabularies.read_for_ids(tmp_path / "dict.txt")


def test_second_columns_of_counts_and_scores_are_not_ids(tmp_path):
    for lines in (
        "a 7\nb 5\nc 5\n",
        "a 3\nb 2\nc 1\n",
        "a 7 x\nb 5 x\n",
        "<unk>\t0\na\t-1.5\n",
        "abcd 9\n",
        "abcd\n",
        "abcd x\n",
        "<unk>\nthe 9\na 7\n",
        "=\nab==\n",
    ):
        (tmp_path / "dict.txt").write_text(lines)
        assert vocabularies.read_for_ids(tmp_path / "dict.txt").size == lines.count("\n")


def test_merges_are_not_words(tmp_path):
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\n")
    assert "merges of BPE, not words" in refusal(tmp_path / "merges.txt")


def test_a_list_for_ids_keeps_pieces_and_words_with_other_blanks(tmp_path):
    (tmp_path / "dict.txt").write_text("the 9\n10\u00a0000 7\r\n\u3000\t2\n", encoding="utf-8")
    assert vocabularies.read_for_ids(tmp_path / "dict.txt").symbols == ["the", "10\u00a0000", "\u3000"]
    (tmp_path / "dict.txt").write_text("\u2581the 9\ning 7\n", encoding="utf-8")
    pieces = vocabularies.of_fairseq(vocabularies.read_for_ids(tmp_path / "dict.txt"), has_unused_id=False)
    assert pieces.symbols == ["<s>", "<pad>", "</s>", "<unk>", "\u2581the", "ing"]
    with pytest.raises(VocabularyError, match=r"by its dict\.txt"):
        vocabularies.of_fairseq(Vocab("sentencepiece", model=MODEL, boundary=0, unknown=1), has_unused_id=False)


@pytest.mark.parametrize("names", [["Bar", "Rest", "Bar"], {"Bar": 0, "Rest": 0}])
def test_names_of_ids_that_are_the_same_are_rejected(tmp_path, names):
    path = tmp_path / "names.json"
    path.write_text(json.dumps(names))
    assert "names.json: no names, or one of them" in rejection(VocabularyError, vocabularies.read_for_ids, path)


def test_an_id_without_a_name_is_not_called_like_another(tmp_path):
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"1": 3, "Rest": 5}))
    assert vocabularies.read_for_ids(path).symbols == ["0", "<1>", "2", "1", "4", "Rest"]
