"""txl eval: its table, JSON and files, and their numbers."""

import hashlib
import json
import math

import h5py
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.cards import read_card
from tests.commands.novel import (
    cells,
    change_weights,
    done,
    json_of,
    on_a_full_disk,
    refusal,
    text_of,
    train,
    txl,
)
from txlcli.core.kernels.linear import OneDnnUse, use_onednn
from txlcli.data.token_store import TokenStore

LN2 = 0.6931471805599453


def only_row(*arguments, stdin=None):
    (row,) = json_of("eval", *arguments, stdin=stdin)["rows"]
    return row


def losses_of(output):
    return [row["loss_nats"] for row in output["rows"]]


def headings(result):
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("┃"))
    return [cell.strip() for cell in line.strip("┃").split("┃")]


def test_the_table_shows_what_the_json_says(here):
    table = done("eval", "byte", "--mem-len", "0,5,13")
    output = json_of("eval", "byte", "--mem-len", "0,5,13")
    assert headings(table) == ["M", "attention", "bpc", "ppl", "ms/token", "one lane", "vanilla", "slowdown"]
    assert [row[:4] for row in cells(table)] == [
        [f"{row['mem_len']}{' *' if row['best'] else ''}", attention, f"{row['bpc']:.3f}", f"{row['ppl']:.3f}"]
        for attention, row in zip(["1-5", "5", "13"], output["rows"], strict=True)
    ]
    assert "L = 5, same_length = m, max_distance = 10, fp32; 3 lanes" in table.stdout
    assert headings(done("eval", "byte", "--mem-len", 0)) == ["M", "attention", "bpc", "ppl", "ms/token"]


def test_json_contains_the_settings_of_the_evaluation_and_ratios_of_times(here):
    output = json_of("eval", "byte", "--mem-len", "0,5")
    assert output["split_sha256"] == hashlib.sha256((here / "novel/test.txt").read_bytes()).hexdigest()
    facts = {"text": "novel test", "seg_len": 5, "batch_size": 3, "max_distance": 10, "same_length": "m"}
    assert output.items() >= facts.items()
    without, with_memory = output["rows"]
    assert without["slowdown"] is without["vanilla_ms_per_token"] is None
    ratio = with_memory["vanilla_ms_per_token"] / with_memory["one_lane_ms_per_token"]
    assert with_memory["slowdown"] == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("source", [["--split", "test"], ["--text", "novel/test.txt"]])
def test_pieces_are_reported_per_original_word_and_per_byte(here, source):
    # Counted by hand from the text: 13 words and 11 lines of 7, a line end each; the bytes are the file's.
    words, size = 13 + 11 * 7 + 12, (here / "novel/test.txt").stat().st_size
    row = only_row("sentencepiece", *source)
    total_nats = row["loss_nats"] * row["tokens"]
    assert row["tokens"] > words
    assert row["ppl_per_word"] == pytest.approx(math.exp(total_nats / words), rel=1e-9)
    assert row["bits_per_byte"] == pytest.approx(total_nats / LN2 / size, rel=1e-9)
    table = done("eval", "sentencepiece", *source)
    assert headings(table)[:6] == ["M", "attention", "ppl", "ppl/word", "bits/byte", "ms/token"]


def test_line_ends_are_words_of_own_text_whatever_the_name_of_its_store(here):
    done("prepare", "novel", "--tokenizer", "sentencepiece", "--vocab-size", 290, "--name", "enwik8-sp290")
    train("corpus.store=enwik8-sp290", name="named")
    split, text = only_row("named", "--split", "test"), only_row("named", "--text", "novel/test.txt")
    assert split["ppl_per_word"] == pytest.approx(text["ppl_per_word"], rel=1e-6)


def test_a_sweep_keeps_the_order_drops_repetitions_and_marks_the_best_row(here):
    rows = json_of("eval", "byte", "--mem-len", "0,13,1,0,5")["rows"]
    assert [row["mem_len"] for row in rows] == [0, 13, 1, 5]
    lowest = min(row["loss_nats"] for row in rows)
    assert [row["best"] for row in rows] == [row["loss_nats"] == lowest for row in rows]
    assert "*" not in done("eval", "byte", "--attn-len", 4, "--positions", 60).stdout


def test_the_beginning_of_a_split_has_no_word_count(here):
    row = only_row("sentencepiece", "--positions", 17)
    assert row["tokens"] == 17
    assert not {"ppl_per_word", "bits_per_byte"} & set(row)
    done("eval", "byte", "--batch-size", 1, "--losses", "all.h5")
    done("eval", "byte", "--batch-size", 1, "--losses", "head.h5", "--positions", 23)
    with h5py.File("all.h5") as everything, h5py.File("head.h5") as head:
        np.testing.assert_array_equal(head["tokens"][()], everything["tokens"][:23])
        np.testing.assert_allclose(head["mem_len_5"][()], everything["mem_len_5"][:23], rtol=1e-5)


def test_same_length_sets_the_number_of_keys_per_query(here):
    same, free = (json_of("eval", "byte", option) for option in ("--same-length", "--no-same-length"))
    assert (same["same_length"], free["same_length"]) == ("m", "off")
    spans = [[one["rows"][0][key] for key in ("attn_len_min", "attn_len_max")] for one in (same, free)]
    assert spans == [[5, 5], [6, 10]]


@pytest.mark.parametrize("options", [["--mem-len", "5,0,3"], ["--attn-len", "7,3"]])
def test_a_plot_covers_the_requested_lengths(here, monkeypatch, options):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    output = json_of("eval", "byte", *options, "--plot", "curve.svg")
    ((axes, *timed),) = (figure.axes for figure in figures)
    assert len(timed) == ("--mem-len" in options)
    by_length = sorted((row.get("attn_len", row["mem_len"]), row["bpc"]) for row in output["rows"])
    curves = {line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines}
    assert curves == {"byte": by_length}
    assert axes.get_xlabel().startswith("memory length M" if "--mem-len" in options else "attention length")


@pytest.mark.parametrize("kind", ["byte", "char", "word", "sentencepiece"])
def test_a_text_scores_as_the_same_split(here, kind):
    one_lane = ("--batch-size", 1, "--seg-len", 40)
    split, text = only_row(kind, *one_lane), only_row(kind, "--text", "novel/test.txt", *one_lane)
    output = json_of("eval", kind, "--text", "-", *one_lane, stdin="\ufeff" + text_of("test"))
    assert output["text"] == "stdin"
    for key in ("tokens", "loss_nats"):
        assert text[key] == output["rows"][0][key] == pytest.approx(split[key], rel=1e-6)


@pytest.mark.parametrize(("tokens", "mem_len", "lanes"), [(99, 5, 1), (101, 5, 2), (1000, 5, 3), (1000, 51, 1)])
def test_a_text_is_cut_into_as_many_lanes_as_are_long_enough(here, tokens, mem_len, lanes):
    (here / "text.txt").write_bytes(b"abcde fghij" * 100)
    row = only_row("byte", "--text", "text.txt", "--positions", tokens, "--mem-len", mem_len)
    assert row["lanes"] == lanes  # three in the recipe, each at least ten memory lengths long


@pytest.mark.parametrize("source", ["-", "im\udcffage.bin"])
def test_a_byte_vocabulary_scores_any_data_of_any_name(here, source):
    data = b"the fox \xff\x00\xfe jumps\r\n" * 3
    (here / "im\udcffage.bin").write_bytes(data)  # as Python hands over a byte of a command line that is not UTF-8
    output = json_of("eval", "byte", "--text", source, "--losses", "losses.h5", stdin=data)
    assert output["text"] == {"-": "stdin"}.get(source, "im\ufffdage.bin")
    assert json.loads((here / "runs/byte/evals.jsonl").read_text(encoding="utf-8"))["text"] == output["text"]
    assert output["rows"][0]["bits_per_byte"] == pytest.approx(output["rows"][0]["bpc"], rel=1e-12)
    with h5py.File("losses.h5") as file:
        assert bytes(file["tokens"][()].astype(np.uint8)) == data[1:]  # the first has no context


def test_unknown_words_of_a_text_are_counted(here):
    (here / "strange.txt").write_text("the quagga fox\n")
    (here / "data/word.h5").unlink()  # a text needs no store
    message = "1 of {} tokens are not in the vocabulary and are read as <unk>\n"
    assert message.format(4) in done("eval", "word", "--text", "strange.txt").stderr
    assert message.format(2) in done("eval", "word", "--text", "strange.txt", "--positions", 2).stderr
    assert "vocabulary" not in done("eval", "word", "--text", "strange.txt", "--positions", 1).stderr


def test_the_loss_of_every_token_is_written_in_order(here):
    row0, row5 = json_of("eval", "byte", "--mem-len", "0,5", "--losses", "losses.h5")["rows"]
    store = TokenStore.open(here / "data/novel.h5")
    with h5py.File("losses.h5") as file:
        assert set(file) == {"tokens", "mem_len_0", "mem_len_5"}
        assert bytes(file["tokens"][()].astype(np.uint8)) == text_of("test").encode()[1:]
        for row, name in ((row0, "mem_len_0"), (row5, "mem_len_5")):
            losses = file[name][()]
            assert losses.shape == (row["tokens"],)
            assert losses.mean(dtype=np.float64) == pytest.approx(row["loss_nats"], rel=1e-6)
        facts = {"mem_len": 5, "seg_len": 5, "lanes": 3, "same_length": b"m", "temperature": 1.0}
        assert dict(file["mem_len_5"].attrs) == facts
        assert file.attrs["vocab_fingerprint"] == store.fingerprint.encode()


@pytest.mark.parametrize("options", [["--mem-len", "0,5,11"], ["--attn-len", "4,7", "--stride", 2]])
def test_the_definition_of_attention_gives_the_same_loss_but_for_rounding(here, options):
    fast = json_of("eval", "byte", *options)
    defined = json_of("eval", "byte", *options, "--attention", "reference")
    assert (fast["attention"], defined["attention"]) == ("auto", "reference")
    assert losses_of(defined) == pytest.approx(losses_of(fast), rel=1e-5)
    assert losses_of(defined) != losses_of(fast)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_compiled_layers_give_the_same_loss_but_for_rounding(here, backend):
    options = ["eval", "byte", "--attention", backend, "--mem-len", "5,11"]
    with use_onednn(OneDnnUse(fp32=True, bf16=True, min_columns=1)):  # packs weights, which compiled code cannot read
        eager = json_of(*options, "--compile", "off")
        compiled = json_of(*options, "--compile", "on")
    assert losses_of(compiled) == pytest.approx(losses_of(eager), rel=1e-5)
    assert losses_of(compiled) != losses_of(eager)


def test_max_distance_is_the_trained_length_by_default(here):
    outputs = [
        json_of("eval", "byte", "--mem-len", 40, *given)
        for given in ([], *(["--max-distance", n] for n in ("none", 3)))
    ]
    assert [one["max_distance"] for one in outputs] == [10, None, 3]
    assert len({one["rows"][0]["loss_nats"] for one in outputs}) == 3


def test_a_memory_longer_than_the_text_is_truncated(here):
    options = ["byte", "--positions", 60, "--batch-size", 2]
    short, long = json_of("eval", *options, "--mem-len", "30,9999999")["rows"]
    assert long["loss_nats"] == short["loss_nats"]
    assert [long[key] for key in ("mem_len", "attn_len_min", "attn_len_max", "slowdown")] == [9999999, 30, 30, None]
    assert short["slowdown"] is not None
    table = done("eval", *options, "--mem-len", "30,9999999", "--seg-len", 9999999)
    assert [row[1] for row in cells(table)] == ["30", "30"]


def test_a_split_that_may_contain_training_data_is_reported_and_not_counted(here):
    assert "may contain training data" not in done("eval", "byte").stderr
    assert json_of("eval", "byte", "--split", "train")["may_be_learned"] is True
    before = json_of("runs")["runs"]
    (here / "novel/train.txt").write_text("the fox\n" * 60)
    (here / "novel/test.txt").write_text("the dog\n" * 9)
    done("prepare", "novel", "--force")
    message = "may contain training data of that run"
    assert message in done("eval", "byte").stderr
    assert message in done("generate", "byte", "--tokens", 2).stderr
    assert json_of("eval", "byte", "--text", "novel/test.txt")["may_be_learned"] is None
    tests = {entry["name"]: entry["test"] for entry in before}
    assert {entry["name"]: entry["test"] for entry in json_of("runs")["runs"]} == tests
    assert tests["byte"] is not None
    assert "may contain training data" not in done("eval", "char").stderr
    assert "may contain training data" not in done("generate", "byte", "--prompt", "the", "--tokens", 2).stderr


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--mem-len", "0,5", "--json"], ["--attn-len", "4"], ["--mem-len", "auto"]])
def test_a_loss_that_is_not_finite_is_an_error(here, options):
    change_weights("byte", lambda name, tensor: tensor * math.nan)
    command = ["eval", "byte", *options, "--positions", 60]
    assert "not finite" in refusal(*command, code=1)
    assert "--precision fp32" in refusal(*command, "--precision", "bf16", code=1)
    assert not (here / "runs/byte/evals.jsonl").exists()


def test_a_perplexity_that_overflows_is_shown_as_infinite(here):
    # The loss is thousands of nats, unless all 60 bytes have the last id; exp(709.8) is the largest number.
    steep = torch.arange(256) * 1e3
    change_weights("byte", lambda name, tensor: steep if "softmax.biases" in name else tensor)
    output = json_of("eval", "byte", "--positions", 60)
    assert output["rows"][0]["ppl"] is None
    assert output["rows"][0]["bpc"] == pytest.approx(output["rows"][0]["loss_nats"] / LN2)
    assert json.loads((here / "runs/byte/evals.jsonl").read_text())["ppl"] is None
    assert cells(done("eval", "byte", "--positions", 60))[0][3] == "inf"
    assert "valid perplexity inf, " in done("eval", "byte", "--positions", 60, "--mem-len", "auto").stderr


def test_a_text_that_cannot_be_scored_is_rejected(here):
    for kind, text in (("byte", b""), ("byte", b"a"), ("word", b" ")):
        assert "no token to predict" in refusal("eval", kind, "--text", "-", stdin=text, code=1)
    assert "UTF-8 at byte 4" in refusal("eval", "char", "--text", "-", stdin=b"the \xff", code=1)


def test_a_text_with_unknown_characters_is_rejected(untouched):
    (untouched / "text8").write_text(" ab" * 400)
    done("prepare", "text8", "--source", "text8")
    done("train", "tiny.toml", "--set", "corpus.store=text8", "--max-steps", 1)
    for text, unknown in (("abc", "c"), ("a\nb", "\\n")):
        assert f'lacks "{unknown}"' in refusal("eval", "--text", "-", stdin=text, code=1)
    assert only_row("--text", "-", stdin="ab ab\r\n")["tokens"] == 4  # a line end added by an editor is not scored


def test_dropped_bytes_are_not_scored(untouched):
    data = (b"the fox\n" * 200)[:1500]
    (untouched / "enwik8").write_bytes(data)
    done("prepare", "enwik8", "--source", "enwik8", "--released-convention")
    done("train", "tiny.toml", "--set", "corpus.store=enwik8-released", "--max-steps", 1)
    for source in ([], ["--text", "enwik8"]):
        row = only_row(*source)
        assert "bits_per_byte" not in row  # newlines of the text are not scored
    assert row["tokens"] == len(data) - data.count(b"\n") - 1


def test_the_result_is_shown_even_if_the_losses_cannot_be_written(here):
    ended = on_a_full_disk(1000, "eval", "byte", "--losses", "losses.h5", "--json")
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["rows"][0]["tokens"] > 0
    assert "losses.h5" in ended.stderr.splitlines()[-1]
    assert not list(here.glob("losses*"))


def ending_at(mem_len, ending):
    """Return a function that ends an evaluation where it begins to read with a memory of that length."""

    def on_terms(reach, max_distance):
        if reach >= mem_len:  # same_length = m; no shorter memory has windows or segments that reach as far
            raise ending

    return on_terms


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [(KeyboardInterrupt(), 130, "interrupted"), (MemoryError("Tried to allocate 9 GB"), 1, "out of memory")],
)
def test_an_interrupted_sweep_keeps_its_finished_rows(here, watched, ending, code, message):
    watched.on_terms = ending_at(13, ending)
    outputs = ("--losses", "losses.h5", "--plot", "curve.svg")
    ended = txl("eval", "watched", "--mem-len", "0,5,13,20", *outputs, "--json")
    assert ended.exit_code == code
    assert message in ended.stderr.splitlines()[-1]
    output = json.loads(ended.stdout)
    assert not output["complete"]
    assert [row["mem_len"] for row in output["rows"]] == [0, 5]
    with h5py.File("losses.h5") as file:
        assert set(file) == {"tokens", "mem_len_0", "mem_len_5"}
    assert (here / "curve.svg").exists()
    kept = [json.loads(line) for line in (here / "runs/watched/evals.jsonl").read_text().splitlines()]
    assert [row["mem_len"] for row in kept] == [0, 5]
    table = txl("eval", "watched", "--mem-len", "0,5,13,20")
    assert [row[0] for row in cells(table)] == ["0", "5 *"]


def test_the_papers_result_is_shown_if_model_and_corpus_are_the_papers(here):
    (here / "letters").write_text(" abcdefghijklmnopqrstuvwxyz" * 200)
    done("prepare", "text8", "--source", "letters")
    done("train", "tiny.toml", "--name", "own", "--set", "corpus.store=text8", "--set", "published.test=1.06")
    card = read_card(here / "runs/own")
    own = {"vocab_size": 27, "parameters": card["parameters"]}
    for recipe, published, shown in (
        ("tiny", own, None),
        ("text8", own | {"parameters": 1}, None),
        ("text8", own | {"vocab_size": 28}, None),
        ("enwik8", own, None),
        ("text8", own, 1.06),
    ):
        card["recipe"] = recipe
        card["settings"]["published"] |= published
        (here / "runs/own/run.json").write_text(json.dumps(card))
        assert json_of("eval", "own")["paper"] == shown
    assert "The paper's result for this recipe: 1.06 bpc." in done("eval", "own").stdout
    assert json_of("eval", "own", "--split", "valid")["paper"] is None
