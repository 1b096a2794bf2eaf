"""Results of a run that are comparable with the paper's, and results that are not."""

from pathlib import Path

import pytest

from tests.runs.test_run_directory import FACTS
from txlcli.config import recipe
from txlcli.corpora import CORPORA
from txlcli.errors import UsageError
from txlcli.paper import published
from txlcli.runs.history import History
from txlcli.runs.run_directory import Run
from txlcli.workflows.ranking import corpus_of, rank

SCORED = {  # tokens of valid and test that are predicted, and V
    "wt103": (217_646, 245_569, 267_735),
    "enwik8": (4_999_999, 4_999_999, 205),
    "text8": (4_999_999, 4_999_999, 27),
    "ptb": (73_760, 82_430, 10_000),
    "lm1b": (None, 159_658, 793_470),
    "wt2": (217_646, 245_569, 33_278),
}


def scored_row(tokens, **changed):
    common = {"split": "test", "whole": True, "tokens": tokens, "loss_nats": 3.0, "attn_len_max": 640, "step": 1500}
    return {**common, "weights": "last.safetensors", **changed}


def valid_report(tokens, loss_nats=3.5):
    return {"kind": "valid", "step": 1000, "loss_nats": loss_nats, "tokens": tokens}


def history(name, *, vocab_size=None, reports=(), evals=(), store=None, parameters=41_055_436):
    settings = recipe.load(name if name != "novel" else "stdlib", [f"corpus.store={store or name}"])
    size = SCORED[name][2] if vocab_size is None else vocab_size
    facts = {**FACTS, "settings": settings, "vocab_size": size, "parameters": parameters}
    run = Run(Path("runs/mine"), **facts)
    return History(run, tuple(reports), tuple(evals), {"step": 1500}, evaluated_step=1500)


def both(name, **changed):
    valid, test, _ = SCORED[name]
    return history(name, reports=[valid_report(valid)], evals=[scored_row(test)], **changed)


def own_row(section, table=0):
    """Return the valid and test results of the run in one of the tables; None if it has no row."""
    return next((row[2:4] for row in section.grids[table].rows if row[0] == "> runs/mine"), None)


@pytest.mark.parametrize("name", ["wt103", "enwik8", "text8", "ptb"])
def test_whole_splits_in_the_benchmarks_vocabulary_are_compared(name):
    ranked, table = rank(both(name)), published.BENCHMARKS[name]
    assert own_row(ranked) == {"bpc": ["5.05", "4.33"], "ppl": ["33.12", "20.09"]}[table.metric]
    assert len(ranked.grids[0].rows) == len(table.rows) + 1
    assert ["step 1,500" in ranked.notes[1], "step 1,000" in ranked.notes[2]] == [True, True]
    assert not [note for note in ranked.notes if note.startswith("not comparable:")]
    others = ranked.grids[1]  # of other papers
    assert len(others.rows) == len(published.OTHERS[name]) + 1
    assert own_row(ranked, 1) == own_row(ranked)
    results = [float(row[3]) for row in others.rows]
    assert results == sorted(results)
    assert {len(row) for row in others.rows} == {len(others.columns)}


@pytest.mark.parametrize(
    ("parameters", "short"),
    [(1_239_999_999, "1.23B"), (24_999_999, "24M"), (999_999, "0.999M"), (460_999, "0.46M"), (7_999, "0.007M")],
)
def test_the_number_of_parameters_is_truncated(parameters, short):
    rows = rank(both("ptb", parameters=parameters)).grids[0].rows
    assert [row[1] for row in rows if row[0] == "> runs/mine"] == [short]


def test_one_billion_word_has_no_published_validation_split():
    ranked = rank(history("lm1b", reports=[valid_report(1000)], evals=[scored_row(159_658)]))
    assert own_row(ranked) == ["-", "20.09"]
    assert ranked.notes[2].endswith("1,000 tokens scored, the size of the benchmark is unknown")


def test_an_evaluation_of_valid_takes_precedence_over_a_validation_in_training():
    evals = [scored_row(73_760, split="valid", loss_nats=3.25)]
    ranked = rank(history("ptb", reports=[valid_report(73_760)], evals=evals))
    assert own_row(ranked) == ["25.79", "-"]
    assert ranked.notes[1].startswith("> valid: txl eval")
    assert ranked.notes[2] == "> test: none yet; txl eval runs/mine --split test"
    assert ranked.notes[3] == "The run is placed by its valid result among the test results of others."
    assert not [note for note in rank(both("ptb")).notes if "is placed by" in note]


def test_the_source_of_a_result_has_its_setting():
    evals = [
        scored_row(73_760, split="valid", mem_len=70, temperature=1.125, in_sample=True),
        scored_row(82_430, attn_len=90, stride=9, attn_len_max=90),
    ]
    valid, test = rank(history("ptb", evals=evals)).notes[1:3]
    assert valid == "> valid: txl eval, M = 70, temperature 1.125, in-sample, attention length 640, step 1,500"
    assert test == "> test: txl eval, N = 90, S = 9, attention length 90, step 1,500"


@pytest.mark.parametrize("tokens", [73_759, 1000, 73_761])
def test_part_of_a_split_is_not_compared(tokens):
    ranked = rank(history("ptb", reports=[valid_report(tokens)]))
    assert own_row(ranked) is None
    expected = f"valid (validation during training, step 1,000): {tokens:,} tokens scored, the benchmark has 73,760"
    assert ranked.notes[1] == f"not comparable: {expected}"


@pytest.mark.parametrize("size", [9_999, 10_001, 8000])
def test_another_vocabulary_is_not_compared(size):
    ranked = rank(both("ptb", vocab_size=size))
    assert own_row(ranked) is None
    reason = f"its vocabulary has {size:,} symbols, the benchmark's 10,000 symbols"
    assert ranked.notes[1] == f"not comparable: {reason}"


def test_a_corpus_that_is_not_the_papers_has_no_rank():
    for store in ("stdlib", "novel"):
        with pytest.raises(UsageError, match=f"runs/mine was trained on {store}, not a corpus of the paper"):
            rank(history("novel", vocab_size=256, store=store))


@pytest.mark.parametrize(
    ("vocab_size", "tokens", "released"), [(205, 4_999_999, False), (204, 4_900_000, True)], ids=["whole", "released"]
)
def test_enwik8_is_the_text_of_the_papers_own_rows_only_as_released(vocab_size, tokens, released):
    ranked = rank(history("enwik8", vocab_size=vocab_size, evals=[scored_row(tokens)]))
    assert own_row(ranked) == ["-", "4.33"]
    rows = [label for label, *_ in ranked.grids[0].rows if not label.startswith(">")]
    assert {("Dai et al. (2019)" in label, label.endswith("~")) for label in rows} == {
        (True, not released),
        (False, released),
    }


@pytest.mark.parametrize("tokens", [4_999_999, 250_000])
def test_a_whole_split_without_newlines_is_shorter_but_not_much(tokens):
    assert own_row(rank(history("enwik8", vocab_size=204, evals=[scored_row(tokens)]))) is None


def test_the_corpus_is_the_one_that_an_evaluation_recorded():
    assert corpus_of(history("ptb", store="hf-ptb")) is None
    assert corpus_of(history("ptb", store="hf-ptb", evals=[scored_row(82_430, corpus="ptb")])) is CORPORA["ptb"]
    assert corpus_of(history("ptb", store="ptb-sp8000")) is CORPORA["ptb"]
    assert corpus_of(history("ptb", evals=[scored_row(82_430, corpus=None)])) is CORPORA["ptb"]
