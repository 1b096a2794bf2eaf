import base64
import io
import json
from dataclasses import asdict

import numpy as np
import pytest
import sentencepiece as sentencepiece_library
from hypothesis import given
from hypothesis import strategies as st

from txlcli.data.sentencepiece_model import train
from txlcli.data.vocabulary import Vocab, smallest_dtype
from txlcli.errors import CorpusInputError, UsageError, VocabularyError

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SENTENCES = [
    f"{who} {what} the {thing}  twice" for who in ("anna", "bert") for what in ("sees", "sells") for thing in "xyz"
]


@pytest.fixture(scope="module")
def sentencepiece() -> Vocab:
    return Vocab("sentencepiece", boundary=0, unknown=1, model=train(SENTENCES * 5, size=275, model_type="unigram"))


def words(lower_case: bool = False) -> Vocab:
    return Vocab("word", ["<eos>", "<unk>", "a", "b", "n"], boundary=0, unknown=1, lower_case=lower_case)


@given(st.binary(), ANY_TEXT)
def test_all_bytes_are_encoded_and_decode_to_the_text(data, text):
    assert Vocab.of_bytes(range(256)).encode(data).tolist() == list(data)
    vocab = Vocab.of_bytes(reversed(range(256)))
    assert vocab.decode(vocab.encode(text)) == text


@given(st.text("abc\n \u00e9\U0001f600"))
def test_characters_decode_to_the_text_and_unknown_ones_to_the_replacement_character(text):
    vocab = Vocab("char", ["<unk>", *"abc\n \u00e9\U0001f600"], unknown=0)
    assert vocab.decode(vocab.encode(f"{text}z")) == f"{text}\ufffd"


UNUSUAL = ("", "\n", " a  b \n\n", "\u2581a\u2581", "\0", "<eos> <unk> <0x41>", "\ufeff\r\n\t", "\u3000x\u00a0")


@pytest.mark.parametrize("unusual", UNUSUAL)
@given(text=ANY_TEXT)
def test_sentencepiece_decodes_to_any_text(sentencepiece, unusual, text):
    assert sentencepiece.decode(sentencepiece.encode(unusual + text)) == unusual + text


def test_sentencepiece_encodes_line_ends_as_the_boundary(sentencepiece):
    ids = sentencepiece.encode("anna sees\n\nbert")
    assert np.flatnonzero(ids == sentencepiece.boundary).size == 2
    assert sentencepiece.symbol(sentencepiece.boundary) == "<eos>"


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_largest_possible_vocab_size_and_empty_text_are_named(model_type):
    message = r"`vocab_size` 9999 does not fit this text; the nearest possible is (\d+)$"
    with pytest.raises(UsageError, match=message) as caught:
        train(SENTENCES, size=9999, model_type=model_type)
    largest = int(str(caught.value).split()[-1])
    assert train(SENTENCES, size=largest, model_type=model_type)
    with pytest.raises(UsageError, match="nearest possible"):
        train(SENTENCES, size=largest + 1, model_type=model_type)
    with pytest.raises(CorpusInputError, match="give more text"):
        train(["", " "], size=300, model_type=model_type)


def test_sentencepiece_training_ignores_blanks_at_line_ends():
    assert train(SENTENCES * 5, size=275, model_type="bpe") == train(
        [f"{line} " for line in SENTENCES * 5], size=275, model_type="bpe"
    )


@pytest.mark.parametrize(
    ("text", "lower_case", "ids"),
    [
        ("a b\n\n b a", False, [2, 3, 0, 0, 3, 2]),
        ("a\r\nb\ra\n", False, [2, 0, 3, 0, 2, 0]),  # three line ends
        ("a zebra\n", False, [2, 1, 0]),
        ("A N\n", True, [2, 4, 0]),
        ("A N\n", False, [1, 1, 0]),
    ],
)
def test_words_get_their_ids_and_each_line_ends_with_the_boundary(text, lower_case, ids):
    assert words(lower_case).encode(text).tolist() == ids


@given(st.lists(st.lists(st.sampled_from(["a", "b", "n"]), min_size=1).map(" ".join)).map("\n".join))
def test_words_joined_by_single_blanks_decode_to_the_text(text):
    assert words().decode(words().encode(text)) == text


def test_a_symbol_missing_from_the_vocabulary_is_named():
    with pytest.raises(VocabularyError, match=r'lacks "\?"'):
        Vocab("char", ["a", "b"]).encode("ab?")
    with pytest.raises(VocabularyError, match="lacks byte 0x0a"):
        Vocab.of_bytes(b"abc").encode("a\nb")
    with pytest.raises(VocabularyError, match='lacks "dog"'):
        Vocab("word", ["<eos>", "a"], boundary=0).encode("a dog\n")


def test_dropped_bytes_are_removed_from_the_text():
    assert Vocab.of_bytes(b"ab", dropped=b"\n").encode("a\nb\n").tolist() == [0, 1]


def test_symbols_are_printable(sentencepiece):
    vocab = Vocab.of_bytes(range(256))
    assert [vocab.symbol(number) for number in (10, 65, 200)] == ["\\n", "A", "\\xc8"]
    assert Vocab("char", ["\n", "e"]).symbol(0) == "\\n"
    assert all(sentencepiece.symbol(number).isprintable() for number in range(sentencepiece.size))


OF_IDS = (Vocab.of_ids(3), Vocab("ids", ["Bar_None", "1", "Pitch_60"]))


def test_json_preserves_vocabularies(sentencepiece):
    for vocab in (
        words(lower_case=True),
        Vocab.of_bytes(b"ba", dropped=b"\n"),
        Vocab("char", ["x"]),
        sentencepiece,
        *OF_IDS,
    ):
        copy = Vocab.from_json(vocab.to_json())
        assert asdict(copy) == asdict(vocab)
        assert (copy.to_json(), copy.fingerprint, copy.size) == (vocab.to_json(), vocab.fingerprint, vocab.size)


def test_fingerprints_distinguish_vocabularies():
    prints = {
        words().fingerprint,
        words(lower_case=True).fingerprint,
        Vocab("word", ["<eos>", "<unk>", "b", "a", "n"]).fingerprint,
    }
    assert len(prints) == 3


WORDS = {"kind": "word", "symbols": ["<eos>", "a", "b", "c"], "lower_case": False, "boundary": 0, "unknown": None}
BYTES = {"kind": "byte", "bytes": list(range(256)), "dropped": [], "boundary": None, "unknown": None}
IDS = {"kind": "ids", "size": 2, "names": ["a", "b"], "boundary": None, "unknown": None}
WRONG = {
    "a boundary of -1": WORDS | {"boundary": -1},
    "a word that is a number": WORDS | {"symbols": ["<eos>", 7, "b", "c"]},
    "unpaired surrogate": WORDS | {"symbols": ["<eos>", "\ud800", "b", "c"]},
    "a word twice": WORDS | {"symbols": ["<eos>", "a", "a", "c"]},
    "no words": WORDS | {"symbols": [], "boundary": None},
    "bytes above 255": BYTES | {"bytes": [0, 1, 2, 256]},
    "an unknown kind": WORDS | {"kind": "syllable"},
    "no ids": IDS | {"size": 0},
    "more ids than names": IDS | {"size": 3},
    "a name that is a number": IDS | {"names": ["a", 7]},
    "a name twice": IDS | {"names": ["a", "a"]},
    "an object of names": IDS | {"names": 7},
    "no boundary": {key: value for key, value in WORDS.items() if key != "boundary"},
    "an object of words": WORDS | {"symbols": {"<eos>": 0, "a": 1}},
    "a list": [],
}


NO_JSON = ("", "{", "{}", "[1]", "[" * 100_000, '{"kind":' * 100_000, '{"kind": ' + "9" * 5000 + "}")


@pytest.mark.parametrize("text", [*map(json.dumps, WRONG.values()), *NO_JSON], ids=[*WRONG, *range(len(NO_JSON))])
def test_a_vocabulary_of_wrong_facts_and_other_text_are_rejected(text):
    with pytest.raises(VocabularyError, match=r"^this is not a vocabulary of txl \(") as caught:
        Vocab.from_json(text)
    assert len(str(caught.value)) < 400
    assert "Error" not in str(caught.value)


def test_a_list_of_words_in_json_is_called_what_it_is():
    with pytest.raises(VocabularyError, match="it is not a JSON object"):
        Vocab.from_json('["the", "fox"]')


def json_of_model(model):
    facts = {"kind": "sentencepiece", "model": base64.b64encode(model).decode(), "boundary": 0, "unknown": 1}
    return json.dumps(facts)


@pytest.mark.parametrize("model", [b"garbage", bytes(range(256)) * 10], ids=range(2))
def test_garbage_in_place_of_a_sentencepiece_model_is_rejected(model):
    with pytest.raises(VocabularyError, match="not a SentencePiece model that can be used"):
        Vocab.from_json(json_of_model(model))


def model_of_others(**options):
    """Return a model as other programs train them: with <s> and </s>, and a blank before each text."""
    model = io.BytesIO()
    defaults = {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "vocab_size": 300,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece_library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5), model_writer=model, **(defaults | options)
    )
    return model.getvalue()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"remove_extra_whitespaces": True}, "adds or removes blanks, or changes characters"),
        ({"normalization_rule_name": "nmt_nfkc"}, "adds or removes blanks, or changes characters"),
        ({"treat_whitespace_as_suffix": True}, "adds or removes blanks, or changes characters"),
        ({"model_type": "word"}, "lacks pieces for blanks"),
        ({"byte_fallback": False, "vocab_size": 40}, "lacks pieces for the 256 bytes"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, dict) else "",
)
def test_a_sentencepiece_model_that_changes_text_is_rejected(options, reason):
    """By default it changes blanks and characters; bits per byte would count bytes that no piece stands for."""
    model = model_of_others(**options)
    with pytest.raises(VocabularyError, match=reason):
        Vocab.of_model(model)
    with pytest.raises(VocabularyError, match=reason):
        Vocab.from_json(json_of_model(model))


def test_a_sentencepiece_model_with_rules_for_some_characters_is_rejected(tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("201C\t22\n")  # a quotation mark
    model = model_of_others(normalization_rule_tsv=str(rules), normalization_rule_name="")
    with pytest.raises(VocabularyError, match="changes characters"):
        Vocab.of_model(model)


def test_an_empty_sentencepiece_model_is_called_empty():
    with pytest.raises(VocabularyError, match="is empty"):
        Vocab.of_model(b"")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False},
        {"model_type": "bpe"},
        {"pad_id": 0, "eos_id": 1, "eos_piece": "<eos>", "bos_id": 2, "unk_id": 3},
        {"user_defined_symbols": ["<sep>", "\n", "\n\n", "\t"]},
    ],
    ids=["default", "no blank", "BPE", "other ids", "symbols"],
)
def test_a_sentencepiece_model_of_others_gives_its_ids_and_restores_all_text(options):
    model = model_of_others(**options)
    vocab = Vocab.of_model(model)
    text = f"{SENTENCES[0]}\n {SENTENCES[1]}\n\n\tna\u00efve  \u2581<s><sep>\r\n\0\U0001f98a"
    assert vocab.decode(vocab.encode(text)) == text
    assert vocab.pieces[vocab.boundary] == b"\n"
    assert vocab.unknown not in vocab.encode(text)
    again = Vocab.from_json(vocab.to_json())
    assert again.fingerprint == vocab.fingerprint
    assert Vocab.of_model(vocab.model).fingerprint == vocab.fingerprint

    library = sentencepiece_library.SentencePieceProcessor(model_proto=model)
    lines = f"{SENTENCES[0]}\n{SENTENCES[1]}\n\n\n{SENTENCES[2]}\n"
    expected = library.encode(f"\n{lines}")  # a blank before the text comes before the line end
    assert expected[-len(vocab.encode(lines)) :] == vocab.encode(lines).tolist()
    assert len(expected) <= len(vocab.encode(lines)) + 2


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4"), (793_470, "u4")]
)
def test_ids_have_the_smallest_integer_type(size, dtype):
    assert smallest_dtype(size) == np.dtype(dtype)
