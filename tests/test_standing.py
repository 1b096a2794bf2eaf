"""What of a run may stand beside the paper's numbers, and what may not."""

from pathlib import Path

import pytest

from tests.test_runs import FACTS
from txlcli import published, recipe
from txlcli.history import History
from txlcli.runs import Run
from txlcli.standing import corpus_of, standing

SCORED = {  # tokens of valid and test that are predicted, and V
    "wt103": (217_646, 245_569, 267_735),
    "enwik8": (4_999_999, 4_999_999, 205),
    "text8": (4_999_999, 4_999_999, 27),
    "ptb": (73_760, 82_430, 10_000),
    "lm1b": (None, 159_658, 793_470),
}


def scored_row(tokens, **changed):
    common = {"split": "test", "whole": True, "tokens": tokens, "loss_nats": 3.0, "attn_len_max": 640, "step": 1500}
    return {**common, **changed}


def valid_report(tokens, loss_nats=3.5):
    return {"kind": "valid", "step": 1000, "loss_nats": loss_nats, "tokens": tokens}


def history(name, *, vocab_size=None, reports=(), evals=(), store=None):
    settings = recipe.load(name if name != "novel" else "stdlib", [f"corpus.store={store or name}"])
    size = SCORED[name][2] if vocab_size is None else vocab_size
    run = Run(Path("runs/mine"), **{**FACTS, "settings": settings, "vocab_size": size})
    return History(run, tuple(reports), tuple(evals), {"step": 1500})


def both(name, **changed):
    valid, test, _ = SCORED[name]
    return history(name, reports=[valid_report(valid)], evals=[scored_row(test)], **changed)


@pytest.mark.parametrize("name", ["wt103", "enwik8", "text8", "ptb"])
def test_whole_splits_in_the_benchmarks_vocabulary_are_compared(name):
    place = standing(both(name))
    bits = {"bpc": (3.5 / 0.6931471805599453, 3.0 / 0.6931471805599453), "ppl": (33.11545195869231, 20.085536923187668)}
    assert (place.valid.value, place.test.value) == pytest.approx(bits[place.table.metric])
    assert place.valid.source == "validation during training, step 1,000"
    assert place.test.source == "txl eval, attention length 640, step 1,500"
    assert place.table is published.benchmark(name)
    assert place.reasons == ()
    assert place.place == place.test.value


def test_a_run_without_a_test_result_is_placed_by_its_validation():
    place = standing(history("ptb", reports=[valid_report(73_760)]))
    assert place.test is None
    assert place.place == place.valid.value


def test_one_billion_word_has_no_published_validation_split():
    place = standing(history("lm1b", reports=[valid_report(1000)], evals=[scored_row(159_658)]))
    assert place.valid is None
    assert place.test is not None
    assert place.reasons[0].endswith("1,000 tokens scored, what the benchmark has is not known")


def test_a_recorded_validation_comes_before_that_of_the_training():
    evals = [scored_row(73_760, split="valid", loss_nats=3.25)]
    place = standing(history("ptb", reports=[valid_report(73_760)], evals=evals))
    assert place.valid.value == pytest.approx(25.790339917193062)
    assert place.valid.source.startswith("txl eval")


def test_a_model_that_carries_a_state_has_no_attention_length():
    place = standing(history("ptb", evals=[scored_row(82_430, attn_len_max=None)]))
    assert place.test.source == "txl eval, its state carried along, step 1,500"


@pytest.mark.parametrize("tokens", [73_759, 1000, 73_761])
def test_a_part_of_a_split_is_not_compared(tokens):
    place = standing(history("ptb", reports=[valid_report(tokens)]))
    assert place.valid is place.place is None
    expected = f"valid (validation during training, step 1,000): {tokens:,} tokens scored, the benchmark has 73,760"
    assert place.reasons == (expected,)


@pytest.mark.parametrize("size", [9_999, 10_001, 8000])
def test_another_vocabulary_is_not_compared(size):
    place = standing(both("ptb", vocab_size=size))
    assert place.valid is place.test is None
    assert place.reasons == (f"its vocabulary has {size:,} symbols, the benchmark's 10,000 symbols",)


def test_a_corpus_that_is_not_the_papers_has_no_standing():
    assert standing(history("novel", vocab_size=256, store="stdlib")) is None
    assert standing(history("novel", vocab_size=256)) is None


def test_enwik8_with_newlines_is_no_text_of_the_papers_own_rows():
    place = standing(both("enwik8"))
    assert not place.released
    assert [place.same_text(row) for row in place.table.rows] == [not row.ours for row in place.table.rows]


def test_enwik8_as_released_is_the_text_of_the_papers_own_rows_only():
    found = history("enwik8", vocab_size=204, evals=[scored_row(4_900_000)], store="enwik8-released")
    place = standing(found)
    assert place.released
    assert place.test is not None
    assert [place.same_text(row) for row in place.table.rows] == [row.ours for row in place.table.rows]


@pytest.mark.parametrize("tokens", [4_999_999, 250_000])
def test_a_whole_split_without_newlines_is_shorter_but_not_much(tokens):
    place = standing(history("enwik8", vocab_size=204, evals=[scored_row(tokens)]))
    assert place.test is None


def test_elsewhere_all_rows_read_the_same_text():
    place = standing(both("ptb"))
    assert all(place.same_text(row) for row in place.table.rows)


def test_the_corpus_is_the_one_that_an_evaluation_found_in_the_store():
    assert corpus_of(history("ptb", store="hf-ptb")) == "hf"
    assert corpus_of(history("ptb", store="hf-ptb", evals=[scored_row(82_430, corpus="ptb")])) == "ptb"
    assert corpus_of(history("ptb", store="ptb-sp8000")) == "ptb"
    assert corpus_of(history("ptb", evals=[scored_row(82_430, corpus=None)])) == "ptb"
