"""`txl eval hf:FOLDER` before Transformers opens anything: names, options and texts; the rest is in tests/peer."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.commands.novel import refusal
from txlcli.errors import VocabularyError
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.evaluation.words import Words
from txlcli.workflows.exchange.external_vocab import ExternalVocab

TEXT = ("--text", "novel/test.txt")


@pytest.mark.parametrize(
    ("name", "word"),
    [("hf:absent", "no such folder"), ("absent.gguf", "no such file"), ("hf:novel", "no config.json")],
)
def test_a_name_without_a_model_says_what_to_give(here, name, word):
    assert word in refusal("eval", name, *TEXT, code=1)


def test_transformers_that_is_missing_or_older_is_named_with_the_command_that_installs_it(here):
    if find_spec("transformers") and version("transformers") >= "5":
        pytest.skip("these Transformers are new enough")
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    assert "pip install" in refusal("eval", "hf:model", *TEXT, code=1)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ((), "--store"),
        (("--split", "test"), "--store"),
        ((*TEXT, "--store", "novel"), "--store"),
        ((*TEXT, "--mem-len", "auto"), "auto"),
        ((*TEXT, "--temperature", "auto"), "auto"),
        ((*TEXT, "--cache", "10"), "--cache"),
        ((*TEXT, "--dynamic"), "--dynamic"),
        ((*TEXT, "--same-length"), "--same-length"),
        ((*TEXT, "--attention", "reference"), "--attention"),
        ((*TEXT, "--processes", "2"), "--processes"),
    ],
)
def test_options_that_only_a_run_has_are_rejected(here, options, word):
    assert word in refusal("eval", "hf:novel", *options)


@pytest.mark.parametrize("option", [("--store", "novel"), ("--trust-remote-code",)])
def test_a_run_rejects_the_options_of_other_models(here, option):
    assert option[0] in refusal("eval", "byte", *option)


class Letters:
    """A tokenizer with an id for each of some tokens, which are tried the longest first; 0 for others."""

    eos_token_id = None
    bos_token_id = 0

    def __init__(self, tokens, lost="", first=""):
        self.tokens = ["<s>", *sorted(tokens, key=len, reverse=True)]
        self.lost = lost
        self.first = first

    def __len__(self):
        return len(self.tokens)

    def __call__(self, text, **_):
        ids = []
        text = text.replace(" ", "Ġ").replace("\n", "Ċ")
        if self.lost:
            text = text.replace(self.lost, "")
        text = self.first + text
        while text:
            number = next((n for n, token in enumerate(self.tokens) if n and text.startswith(token)), 0)
            ids.append(number)
            text = text[len(self.tokens[number]) if number else 1 :]
        return {"input_ids": ids}

    def convert_ids_to_tokens(self, numbers):
        return [self.tokens[number] for number in numbers]


def test_the_bytes_of_tokens_are_those_of_the_text():
    vocab = ExternalVocab(Letters(["the", "Ġ", "Ġfox", "t", "h"]), 9, "model")
    ids = vocab.encode("the fox th")
    assert b"|".join(vocab.pieces[number] for number in ids) == b"the| fox| |t|h"
    assert "".join(vocab.spell(ids)) == "the fox th"
    assert (vocab.size, vocab.unit, vocab.boundary) == (9, "piece", 0)


def test_a_byte_may_be_the_character_of_its_number():
    """As in ByT5's tokenizer."""

    class Bytes(Letters):
        def __call__(self, text, **_):
            return {"input_ids": [byte + 1 for byte in text.encode()]}

    tokenizer = Bytes(())
    tokenizer.tokens = ["<s>", *map(chr, range(256))]
    vocab = ExternalVocab(tokenizer, 257, "model")
    text = "une vie, voilà\xad é\n"
    assert b"".join(vocab.pieces[number] for number in vocab.encode(text)) == text.encode()


@pytest.mark.parametrize(
    ("tokenizer", "size", "text", "telling"),
    [
        (Letters(["a", "b", "Ġ"], lost="b"), 9, "aaba", "at byte 2"),
        (Letters(["a", "b", "Ġ"], lost="b", first="Ġ"), 9, "aaba", "at byte 2"),  # with a blank before each text
        (Letters(["a", "b"]), 2, "ab", "id 2"),  # the model has fewer ids
        (Letters(["a"]), 9, b"a\xff", "byte 1"),
    ],
)
def test_text_that_the_tokenizer_or_the_model_cannot_take_is_named_with_its_place(tokenizer, size, text, telling):
    with pytest.raises(VocabularyError, match=telling):
        ExternalVocab(tokenizer, size, "model").encode(text)


@pytest.mark.parametrize(
    ("pieces", "rows"),
    [
        ("so|Ġ.Ċ|She", ["so", ".", "She"]),  # as Llama 3, Qwen and GPT-4 divide it
        ("so.ĊĊ|She", ["so.", "She"]),
        ("so|Ġ|.|ĠĊ|ĠShe|Ċ", ["so", ".", "\n", "She", "\n"]),
        ("so|ĊĊ|She", ["so", "\n", "She"]),
        ("so|ĊĊĠ|ĠShe", ["so", "\n", "She"]),
        ("so|ĊS|he", ["so", "She"]),
        ("ofĠthe|Ġend", ["the", "end"]),
        ("北京|天", ["京", "天"]),
    ],
)
def test_a_piece_belongs_to_the_last_word_that_it_has_letters_of_and_a_line_end_after_it_too(pieces, rows):
    vocab = ExternalVocab(Letters(pieces.split("|")), 9, "model")
    data = pieces.replace("|", "").replace("Ġ", " ").replace("Ċ", "\n").encode()
    ids = np.append(vocab.boundary, vocab.encode(data))
    text = ScoredText(title="", inputs=ids[:-1], targets=ids[1:], data=data, words=None, size=None, unit="")
    words = Words.of(vocab, text, "")
    assert words.texts == rows
    assert words.tokens.sum() == len(text.targets)
