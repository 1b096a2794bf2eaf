"""txl generate: its context, sampling and output."""

import itertools
import re

import pytest
import torch
from hypothesis import example, given, strategies

import txlcli
from tests.commands.novel import TOKENIZERS, WORDS, done, json_of, refusal, text_of, txl
from txlcli import corpora
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.runs import loading, run_directory
from txlcli.workflows.generate import detokenize_lines, until_stop

LOST = "\N{REPLACEMENT CHARACTER}"


def tokens_of(*arguments):
    (sample,) = json_of("generate", *arguments)["samples"]
    return sample["tokens"]


def test_the_text_continues_the_prompt(here):
    result = done("generate", "word", "--prompt", "the fox", "--tokens", 20)
    assert result.stdout.startswith("the fox")
    assert result.stdout.endswith("\n")
    assert set(result.stdout.split()) <= {*WORDS, "<unk>"}
    (token,) = tokens_of("word", "--prompt", "the quagga", "--tokens", 1, "--greedy")
    generated = done("generate", "word", "--prompt", "the quagga", "--tokens", 1, "--greedy")
    assert generated.stderr.startswith("1 of 2 tokens of the prompt are not in the vocabulary")
    symbol = TokenStore.open(here / "data/word.h5").vocab.symbols[token]
    assert generated.stdout == ("the quagga\n\n" if symbol == "<eos>" else f"the quagga {symbol}\n")


def test_samples_use_consecutive_seeds(here):
    options = ["generate", "byte", "--prompt", "the", "--tokens", 20]
    singles = [json_of(*options, "--seed", seed)["samples"][0] for seed in (5, 6, 7)]
    assert json_of(*options, "--samples", 3, "--seed", 5)["samples"] == singles
    assert len({sample["text"] for sample in singles}) == 3
    shown = done(*options, "--samples", 3, "--seed", 5).stdout
    assert [shown.count(f"\nthe{sample['text']}\n") for sample in singles] == [1, 1, 1]


def test_top_k_is_40_by_default_unless_top_p_is_given(here):
    options = ["byte", "--prompt", "the", "--tokens", 20]
    assert tokens_of(*options) == tokens_of(*options, "--top-k", 40)
    assert tokens_of(*options, "--top-k", 0) == tokens_of(*options, "--top-k", 256) == tokens_of(*options, "--top-p", 1)
    assert tokens_of(*options, "--top-k", 0) != tokens_of(*options)
    assert tokens_of(*options, "--top-p", 1.0, "--top-k", 40) == tokens_of(*options)


def test_an_interrupted_text_ends_its_line(watched):
    generated = []

    def on_embedding(embedded):
        if embedded.shape[1] == 1:
            generated.append(embedded)
            if len(generated) == 2:
                raise KeyboardInterrupt

    watched.on_embedding = on_embedding
    result = txl("generate", "watched", "--prompt", "the fox")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert result.stdout.startswith("the fox")
    assert result.stdout.endswith("\n")


def test_the_prompt_can_be_read_from_standard_input(here):
    options = ["--tokens", 20, "--seed", 3]
    for end in ("", "\n", "\r\n"):
        output = json_of("generate", "byte", "--prompt", "-", *options, stdin=f"\ufeffnaïve 語{end}".encode())
        assert output["context"] == "naïve 語"
    assert output["samples"] == json_of("generate", "byte", "--prompt", "naïve 語", *options)["samples"]


@torch.no_grad()
def likeliest(run, context, count):
    """Return the likeliest tokens of the model, one at a time, with a memory of the run's five tokens."""
    opened = loading.open_run(run_directory.find(run, loading.Path("runs")), device="cpu", precision="fp32")
    memory = opened.model.first_memory(1, 5)
    tokens = []
    for token in context:
        hidden, memory = opened.model(torch.tensor([[token]]), memory, mem_len=5, key_limit=5, max_distance=10)
    while len(tokens) < count:
        tokens.append(int(opened.model.log_probs(hidden)[0, -1].argmax()))
        hidden, memory = opened.model(torch.tensor([[tokens[-1]]]), memory, mem_len=5, key_limit=5, max_distance=10)
    return tokens


@pytest.mark.parametrize(("kind", "count"), [("byte", 37), ("char", 37), ("word", 300), ("sentencepiece", 37)])
def test_greedy_selects_the_likeliest_token(here, kind, count):
    prompt = "the fox\njumps over naïve 語"
    vocab = Vocab.from_json((here / f"runs/{kind}/vocab.json").read_text())
    context = [*([] if vocab.boundary is None else [vocab.boundary]), *vocab.encode(prompt).tolist()]
    generated = tokens_of(kind, "--prompt", prompt, "--tokens", count, "--greedy")
    assert generated == likeliest(kind, context, count)  # the buffer of five keys slides


@pytest.mark.parametrize("kind", ["char", "sentencepiece"])
def test_the_reference_is_the_continuation_of_the_split(here, kind):
    store = TokenStore.open(here / f"data/{kind}.h5")
    ids = store.ids("test")
    options = ["generate", kind, "--at", 50, "--context", 30, "--tokens", 17, "--reference"]
    output = json_of(*options)
    assert (output["position"], output["context"]) == (50, store.vocab.decode(ids[20:50]))
    assert output["reference"] == store.vocab.decode(ids[50:67])
    (sample,) = output["samples"]
    assert len(sample["tokens"]) == 17
    texts = re.split("^--- .* ---\n", done(*options).stdout, flags=re.MULTILINE)
    assert texts[1:] == [f"{text}\n" for text in (output["context"], sample["text"], output["reference"])]


@pytest.fixture
def wikitext(untouched):
    """Train a model on text in the format of WikiText-103."""
    (untouched / "source").mkdir()
    for split in ("train", "valid", "test"):
        (untouched / f"source/wiki.{split}.tokens").write_text(" the cat @-@ fox , jumps . \n" * 20)
    done("prepare", "wt103", "--source", "source")
    done("train", "tiny.toml", "--set", "corpus.store=wt103", "--max-steps", 1)
    return untouched


def test_a_streamed_benchmark_text_equals_the_json(wikitext):
    options = ["generate", "--tokens", 60, "--at", 7]
    output = json_of(*options, "--reference")
    assert "the cat-fox, jumps." in output["context"].replace("\n", " ")
    (sample,) = output["samples"]
    vocab = TokenStore.open(wikitext / "data/wt103.h5").vocab
    assert sample["text"] == corpora.detokenizer("wt103")(vocab.decode(sample["tokens"]))
    assert done(*options).stdout == sample["text"] + "\n"


def test_a_line_is_detokenized_as_soon_as_it_is_complete():
    pieces = iter(["a", " ,", " b", "\n", "c", " ."])
    lines = detokenize_lines(pieces, corpora.detokenizer("ptb"))
    assert next(lines) == "a, b\n"
    assert list(pieces) == ["c", " ."]


@pytest.mark.parametrize("name", ["wt103", "ptb", "lm1b"])
@given(words=strategies.lists(strategies.sampled_from([*'a " , . ( ) $', "n't", "'s", "@-@", "@,@", "<eos>"])))
def test_detokenizing_by_line_equals_detokenizing_the_whole(name, words):
    symbols = ["<eos>", *sorted({*words} - {"<eos>"})]
    vocab, change = Vocab("word", symbols, boundary=0), corpora.detokenizer(name)
    ids = [symbols.index(word) for word in words]
    assert "".join(detokenize_lines(vocab.spell(ids), change)) == change(vocab.decode(ids))


def test_characters_of_several_bytes_are_not_split(here):
    # A model that is hardly trained generates invalid UTF-8; the stream must equal the decoded whole.
    options = ["generate", "byte", "--prompt", "語", "--tokens", 150, "--top-k", 0, "--temperature", 3]
    (sample,) = json_of(*options)["samples"]
    assert LOST in sample["text"]
    assert sample["text"] == bytes(sample["tokens"]).decode("utf-8", errors="replace")
    assert done(*options).stdout == f"語{sample['text']}\n"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_spelled_token_by_token_is_the_text(here, kind):
    vocab = Vocab.from_json((here / f"runs/{kind}/vocab.json").read_text())
    text = text_of("test")
    first, *rest = vocab.encode(text).tolist()
    pieces = list(vocab.spell(rest, after=first))
    assert "".join(pieces) == vocab.decode([first, *rest]).removeprefix(vocab.decode([first]))
    assert "".join(pieces) == text.removeprefix(vocab.decode([first]))
    assert not any(LOST in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["byte", "word", "sentencepiece"])
def test_the_json_spells_a_text_as_the_terminal_and_python(here, kind):
    options = ["generate", kind, "--prompt", "the fox", "--tokens", 30, "--seed", 3]
    (sample,) = json_of(*options)["samples"]
    assert len(sample["tokens"]) == 30
    assert done(*options).stdout == f"the fox{sample['text']}\n"
    assert txlcli.load(kind).generate("the fox", tokens=30, seed=3) == sample["text"]


def test_the_json_ends_before_a_stop_text_at_the_beginning(here):
    options = ["generate", "word", "--prompt", "the fox", "--tokens", 30]
    (whole,) = json_of(*options)["samples"]
    stop = f" {whole['text'].split()[0]}"
    (stopped,) = json_of(*options, "--stop", stop)["samples"]
    assert (stopped["text"], stopped["tokens"]) == (whole["text"].partition(stop)[0], [])


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--at", 100_000], "has 459 tokens"),
        (["--reference", "--at", 450, "--tokens", 10], "has 449 tokens that 10 more follow"),
        (["--reference", "--tokens", 500], "--tokens 500: the test split of data/novel.h5 has 0 tokens that 500 more"),
    ],
)
def test_options_that_do_not_suit_the_run_are_rejected(here, arguments, message):
    assert message in refusal("generate", "byte", *arguments)


def test_a_prompt_that_is_not_utf8_is_rejected(here):
    message = refusal("generate", "byte", "--prompt", "-", stdin=b"ab\xff", code=1)
    assert "not UTF-8 at byte 2" in message
    # Python passes undecodable bytes of a command line as lone surrogates.
    assert refusal("generate", "byte", "--prompt", "ab\udcff", code=1) == message


def test_only_a_passage_needs_the_store_and_its_test_split(here):
    (here / "novel/test.txt").unlink()
    done("prepare", "novel", "--force")
    message = refusal("generate", "byte", code=1)
    assert message.endswith("has no test split, which a text continues by default; give a --prompt")
    (here / "data/novel.h5").unlink()
    assert "no token store" in refusal("generate", "byte", code=1)
    done("generate", "byte", "--prompt", "the", "--tokens", 1)


@example(text="abba", cuts=[], stops=["abba", "bb"])
@given(
    text=strategies.text("ab\n", max_size=30),
    cuts=strategies.lists(strategies.integers(0, 30), max_size=9),
    stops=strategies.lists(strategies.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_a_text_ends_before_the_stop_that_is_complete_first_however_its_pieces_divide_it(text, cuts, stops):
    ends = {text.index(stop) + len(stop) for stop in stops if stop in text}
    expected = {text}
    if ends:
        expected = {text[: text.index(stop)] for stop in stops if stop in text[: min(ends)]}
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[first:last] for first, last in itertools.pairwise(places)]
    assert "".join(until_stop(pieces, stops)) in expected


@pytest.mark.parametrize("kind", ["byte", "word"])
def test_a_text_ends_before_a_stop_text_and_its_tokens_with_it(here, kind):
    options = ["generate", kind, "--prompt", "the", "--tokens", 60]
    (whole,) = json_of(*options)["samples"]
    stop = whole["text"][20:24]
    place = whole["text"].index(stop)
    (stopped,) = json_of(*options, "--stop", stop, "--stop", "not in it")["samples"]
    assert stopped["text"] == whole["text"][:place]
    assert stopped["tokens"] == whole["tokens"][: len(stopped["tokens"])]
    assert len(stopped["tokens"]) > 1
    assert done(*options, "--stop", stop).stdout == done(*options).stdout.partition(stop)[0] + "\n"
    run = txlcli.load(kind)
    for given_stop in (stop, [stop, "not in it"]):
        assert run.generate("the", tokens=60, stop=given_stop) == run.generate("the", tokens=60).partition(stop)[0]
    assert "empty" in refusal(*options, "--stop", "")
