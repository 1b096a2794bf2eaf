"""Stores that others wrote, with correct checksums: links, bombs, wrong ids, vocabularies of any content."""

import base64
import hashlib
import io
import json
import os
import random
import resource
import time

import h5py
import numpy as np
import pytest
import sentencepiece

from tests.data.test_token_store import FACTS, VOCAB, write
from tests.hdf5_files import unsealed
from txlcli.data.sentencepiece_model import train
from txlcli.data.token_store import SplitCounts, TokenStore, writing
from txlcli.data.vocabulary import Vocab
from txlcli.errors import StoreError

LINKS = {
    "broken": lambda _: h5py.SoftLink("/nowhere"),
    "endless": lambda part: h5py.SoftLink(f"/{part}"),
    "to the file": lambda _: h5py.SoftLink("/"),
    "to another file": lambda _: h5py.ExternalLink("pipe", "/"),
}
AGAIN = '; run "txl prepare PATH --name tiny --force" again'
SENTENCES = [f"{who} {what} the {thing}" for who in ("anna", "bert") for what in ("sees", "sells") for thing in "xyz"]


def use(path):
    """Read everything that a store has."""
    store = TokenStore.open(path)
    for split in store.splits:
        ids = store.ids(split)
        store.sentence_starts(split)
        store.vocab.decode(ids[:100])
        store.vocab.encode("a b\n")
        [store.vocab.symbol(int(number)) for number in ids[:100]]
    return store


def refusal(path):
    """Return the error of reading a store, which must come in two seconds."""
    started = time.monotonic()
    with pytest.raises(StoreError) as refused:
        use(path)
    assert time.monotonic() - started < 20  # seconds; far less on an idle machine
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "part", ["splits", "splits/train", "splits/train/ids", "splits/test/sentence_starts", "vocabulary"]
)
def test_links_in_a_store_are_refused(tmp_path, monkeypatch, part, link):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    path = write(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        del file[part]
        file[part] = LINKS[link](part)
    message = refusal(path)
    assert f"({part.rpartition('/')[2]} is a link)" in message
    assert message.endswith(AGAIN)


@pytest.mark.parametrize(
    "part", ["splits", "splits/train", "splits/train/ids", "splits/test/sentence_starts", "vocabulary"]
)
def test_an_array_in_place_of_a_group_is_refused(tmp_path, part):
    path = write(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        is_group = isinstance(file[part], h5py.Group)
        del file[part]
        if is_group:
            file[part] = np.arange(3)
        else:
            file.create_group(part)
    assert refusal(path).endswith(AGAIN)


@pytest.mark.parametrize("part", ["splits/train/ids", "splits/test/sentence_starts", "vocabulary"])
def test_packed_arrays_that_are_bombs_are_refused(tmp_path, part):
    path = write(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        del file[part]
        file.create_dataset(part, shape=(1 << 40,), dtype=np.uint8, chunks=(1 << 20,), compression="gzip")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "states 1,099,511,627,776 bytes, more than the file has" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    path = write(tmp_path / "tiny.h5", {"train": [2, 3, 1, 0], "test": [1]})
    with unsealed(path) as file:
        group = file["splits/train"]
        group["ids"][2] = 4
        info = json.loads(group.attrs["info"]) | {"sha256": hashlib.sha256(group["ids"][()].tobytes()).hexdigest()}
        group.attrs["info"] = json.dumps(info)
    assert refusal(path) == f"{path}: the train split has the id 4, but its vocabulary 4{AGAIN}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, "S1"])
def test_ids_of_another_type_are_refused(tmp_path, dtype):
    path = write(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        group = file["splits/train"]
        ids = group["ids"][()].astype(dtype)
        del group["ids"]
        group["ids"] = ids
        info = json.loads(group.attrs["info"]) | {"sha256": hashlib.sha256(ids.tobytes()).hexdigest()}
        group.attrs["info"] = json.dumps(info)
    assert refusal(path) == f"{path}: the train split is damaged{AGAIN}"


@pytest.mark.parametrize("starts", [[0, 2], [1, 0], [0, 0], [-1], [0.5], [[0]]])
def test_sentences_outside_their_split_are_refused(tmp_path, starts):
    path = write(tmp_path / "tiny.h5")
    with unsealed(path) as file:
        del file["splits/test/sentence_starts"]
        file["splits/test/sentence_starts"] = starts
    assert refusal(path) == f"{path}: the list of sentences of the test split is damaged{AGAIN}"


WORDS = {"kind": "word", "symbols": ["<eos>", "a", "b", "c"], "lower_case": False, "boundary": 0, "unknown": None}
BYTES = {"kind": "byte", "bytes": list(range(256)), "dropped": [], "boundary": None, "unknown": None}
WRONG = {
    "a boundary of -1": WORDS | {"boundary": -1},
    "a boundary beyond the words": WORDS | {"boundary": 4},
    "a boundary that is no number": WORDS | {"boundary": "0"},
    "a boundary that is true": WORDS | {"boundary": True},
    "a fraction as unknown": WORDS | {"unknown": 1.0},
    "a huge unknown": WORDS | {"unknown": 10**30},
    "a word that is a number": WORDS | {"symbols": ["<eos>", 7, "b", "c"]},
    "a text of symbols": WORDS | {"symbols": "abcd"},
    "a mapping of symbols": WORDS | {"symbols": {"a": 1, "b": 2, "c": 3, "d": 4}},
    "half a character": WORDS | {"symbols": ["<eos>", "\ud800", "b", "c"]},
    "a word twice": WORDS | {"symbols": ["<eos>", "a", "a", "c"]},
    "no words": WORDS | {"symbols": [], "boundary": None},
    "lower case that is a text": WORDS | {"lower_case": "no"},
    "bytes above 255": BYTES | {"bytes": [0, 1, 2, 256]},
    "negative bytes": BYTES | {"bytes": [0, 1, 2, -1]},
    "fractions as bytes": BYTES | {"bytes": [0, 1, 2, 3.5]},
    "a byte twice": BYTES | {"bytes": [0, 1, 2, 2]},
    "dropped texts": BYTES | {"dropped": ["a"]},
    "a number of dropped bytes": BYTES | {"dropped": 10**12},
    "a number of bytes": BYTES | {"bytes": 10**12},
    "an unknown kind": WORDS | {"kind": "syllable"},
    "a list as kind": WORDS | {"kind": []},
    "no boundary": {key: value for key, value in WORDS.items() if key != "boundary"},
    "no base64": {"kind": "sentencepiece", "model": "?", "boundary": 0, "unknown": 1},
    "no model": {"kind": "sentencepiece", "model": "", "boundary": 0, "unknown": 1},
    "a number as model": {"kind": "sentencepiece", "model": 7, "boundary": 0, "unknown": 1},
    "a list": [],
    "null": None,
}


def with_vocabulary(path, text):
    """Write a store and replace its vocabulary and its fingerprint."""
    write(path)
    with unsealed(path) as file:
        del file["vocabulary"]
        file["vocabulary"] = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        file.attrs["fingerprint"] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return path


@pytest.mark.parametrize("name", WRONG)
def test_a_vocabulary_of_wrong_facts_is_refused(tmp_path, name):
    message = refusal(with_vocabulary(tmp_path / "tiny.h5", json.dumps(WRONG[name])))
    assert "this is no vocabulary of txl (" in message
    assert len(message) < 500


@pytest.mark.parametrize("text", ["[" * 100_000, '{"kind":' * 100_000, '{"kind": ' + "9" * 5000 + "}", "", "{"])
def test_a_vocabulary_that_is_no_json_is_refused(tmp_path, text):
    assert "this is no vocabulary of txl (" in refusal(with_vocabulary(tmp_path / "tiny.h5", text))


def a_model():
    return train(SENTENCES * 5, size=275, bpe=False)


def model_facts(model):
    return {"kind": "sentencepiece", "model": base64.b64encode(model).decode(), "boundary": 0, "unknown": 1}


@pytest.mark.parametrize("model", [b"garbage", b"\n" * 1000, bytes(range(256)) * 10, b"\xff" * 99], ids=range(4))
def test_garbage_in_place_of_a_sentencepiece_model_is_refused(tmp_path, model):
    assert "SentencePiece model" in refusal(with_vocabulary(tmp_path / "tiny.h5", json.dumps(model_facts(model))))


def test_a_model_that_changes_characters_is_refused(tmp_path):
    character_map = b"\x12\x05" + b"crash"
    model = a_model() + b"\x1a" + bytes([len(character_map)]) + character_map
    message = refusal(with_vocabulary(tmp_path / "tiny.h5", json.dumps(model_facts(model))))
    assert "the SentencePiece model changes characters" in message


@pytest.mark.parametrize("options", [{}, {"remove_extra_whitespaces": True}, {"remove_extra_whitespaces": False}])
def test_a_model_that_removes_blanks_is_refused(tmp_path, options):
    """It does so by default, and then bits per byte would count bytes that no piece stands for."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        byte_fallback=True,
        minloglevel=2,
        **options,
    )
    text = json.dumps(model_facts(model.getvalue()))
    if options.get("remove_extra_whitespaces", True):
        message = refusal(with_vocabulary(tmp_path / "tiny.h5", text))
        assert "the SentencePiece model removes blanks (remove_extra_whitespaces)" in message
    else:
        assert Vocab.from_json(text).tokenizer == "sentencepiece"


MUTATIONS = 10


def test_no_mutation_of_a_sentencepiece_model_ends_the_process(tmp_path):
    random_numbers, whole = random.Random(3), a_model()
    refused = 0
    for number in range(MUTATIONS):
        model = bytearray(whole)
        for _ in range(random_numbers.choice([1, 3, 30])):
            model[random_numbers.randrange(len(model))] = random_numbers.randrange(256)
        path = with_vocabulary(tmp_path / f"{number}.h5", json.dumps(model_facts(bytes(model))))
        try:
            use(path)
        except StoreError:
            refused += 1
    assert refused > MUTATIONS // 2


def test_a_correct_model_is_accepted(tmp_path):
    vocab = Vocab("sentencepiece", boundary=0, unknown=1, model=a_model())
    ids = vocab.encode("anna sees the x")
    with writing(tmp_path / "tiny.h5", FACTS, vocab) as writer:
        writer.add("train", SplitCounts(tokens=len(ids), words=1, bytes=1, unknown=0, types=1), [ids])
    assert use(tmp_path / "tiny.h5").vocab.decode(ids) == "anna sees the x"
    assert VOCAB.size == 4  # of the other stores here
