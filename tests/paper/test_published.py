"""The paper's numbers agree with the paper's text, with each other and with the recipes."""

import dataclasses
import re

import pytest

from txlcli.config import recipe
from txlcli.corpora import CORPORA
from txlcli.paper import published
from txlcli.paper.metrics import metric_of

# Table, citation and name of the row of each recipe that has one.
ROW_OF = {
    "wt103": (1, None, "Transformer-XL Standard"),
    "wt103-large": (1, None, "Transformer-XL Large"),
    "wt103-large-tf": (1, None, "Transformer-XL Large"),
    "adaptive-input-wt103": (1, "Baevski and Auli (2018)", "Adaptive Input"),
    "qrnn-wt103": (1, "Merity et al. (2018)", "QRNN"),
    "enwik8": (2, None, "12L Transformer-XL"),
    "enwik8-18l": (2, None, "18L Transformer-XL"),
    "enwik8-24l": (2, None, "24L Transformer-XL"),
    "vanilla-enwik8": (2, "Al-Rfou et al. (2018)", "12L Transformer"),
    "vanilla-enwik8-64l": (2, "Al-Rfou et al. (2018)", "64L Transformer"),
    "text8-24l": (3, None, "24L Transformer-XL"),
    "lm1b": (4, None, "Transformer-XL Base"),
    "lm1b-large": (4, None, "Transformer-XL Large"),
    "lm1b-large-tf": (4, None, "Transformer-XL Large"),
    "ptb": (5, None, "Transformer-XL"),
    "ptb-memory": (5, None, "Transformer-XL"),
}
LARGE = {"wt103-large", "wt103-large-tf", "lm1b-large", "lm1b-large-tf"}
ABLATIONS = {"wt103-ablation", "lm1b-ablation"}
# Corpus, citation and name of the row of each recipe for a model of a later paper.
ROW_OF_OTHERS = {
    "compressive-enwik8": ("enwik8", "Rae et al. (2019)", "Compressive Transformer, 24 layers"),
    "compressive-wt103": ("wt103", "Rae et al. (2019)", "Compressive Transformer"),
    "rmt-wt103": ("wt103", "Bulatov et al. (2022)", "RMT, 10 memory tokens"),
}


@pytest.mark.parametrize("corpus", published.OTHERS)
def test_results_of_other_papers_are_those_of_a_benchmark_each_once(corpus):
    assert corpus in CORPORA
    rows = published.OTHERS[corpus]
    assert len({(row.label, row.parameters) for row in rows}) == len(rows)
    for row in rows:
        assert re.fullmatch(r"\d{4}\.\d{5}|PMLR \d+|[\w-]+/[\w-]+", row.source)
        # arXiv numbers begin with the year and the month of the first version.
        if row.source[4] == "." and row.citation[-1] == ")":
            assert row.citation[-5:-1] == f"20{row.source[:2]}"


def row_of(name):
    number, citation, system = ROW_OF[name]
    (row,) = (row for row in published.TABLES[number].rows if (row.citation, row.name) == (citation, system))
    return published.TABLES[number], row


@pytest.mark.parametrize("name", ROW_OF)
def test_the_results_of_a_recipe_match_its_row(name):
    settings = recipe.load(name)
    table, row = row_of(name)
    assert (settings.published.valid, settings.published.test) == (row.valid, row.test)
    assert settings.corpus.store == table.corpus


@pytest.mark.parametrize("name", ROW_OF_OTHERS)
def test_the_results_of_a_recipe_for_a_later_model_match_the_row_of_its_paper(name):
    settings = recipe.load(name)
    corpus, citation, system = ROW_OF_OTHERS[name]
    (row,) = (row for row in published.OTHERS[corpus] if (row.citation, row.name) == (citation, system))
    assert (settings.published.valid, settings.published.test) == (row.valid, row.test)
    assert settings.corpus.store == corpus


@pytest.mark.parametrize("name", sorted(set(ROW_OF) - LARGE))
def test_the_parameter_count_of_a_recipe_begins_with_the_printed_digits(name):
    # The released scripts of the four others count more than the paper prints for the large models.
    printed = row_of(name)[1].parameters
    unit = {"M": 10**6, "B": 10**9}[printed[-1]]
    digits = len(printed.partition(".")[2]) - 1 if "." in printed else 0
    step = unit // 10**digits
    assert recipe.load(name).published.parameters // step == round(float(printed[:-1]) * unit) // step


def test_every_recipe_with_results_has_a_row():
    with_numbers = {
        name for name in recipe.packaged_names() if any(dataclasses.astuple(recipe.load(name).published)[2:])
    }
    assert with_numbers == set(ROW_OF) | set(ROW_OF_OTHERS) | ABLATIONS


def test_the_recipes_of_the_ablations_are_the_first_rows_of_tables_6_and_7():
    first = published.TABLES[6].rows[0]
    ablation = recipe.load("wt103-ablation")
    assert (ablation.published.valid, ablation.published.test) == (first.ppl_best, None)
    assert (ablation.eval.mem_len, ablation.train.seg_len) == (first.attn_len, first.backprop_len)
    ablation = recipe.load("lm1b-ablation")
    assert (ablation.published.valid, ablation.published.test) == (None, published.TABLES[7].rows[0].test)


@pytest.mark.parametrize("table", published.BENCHMARKS.values(), ids=lambda table: table.corpus)
def test_the_best_row_without_finetuning_is_a_transformer_xl(table):
    plain = [row for row in table.rows if row.mark != published.FINETUNED]
    assert min(plain, key=lambda row: row.test).ours
    assert all(row.citation for row in table.rows if not row.ours)
    assert table.metric == metric_of(CORPORA[table.corpus].unit)


def test_the_best_results_and_the_former_ones_match_the_abstract_of_the_first_version():
    # "from 1.06 to 0.99 on enwiki8, from 1.13 to 1.08 on text8, from 20.5 to 18.3 on WikiText-103, from 23.7 to 21.8 on
    # One Billion Word, and from 55.3 to 54.5 on Penn Treebank"
    best = {}
    for table in published.BENCHMARKS.values():
        plain = [row for row in table.rows if row.mark != published.FINETUNED]
        best[table.corpus] = tuple(min(row.test for row in plain if row.ours == ours) for ours in (False, True))
    assert best == {
        "enwik8": (1.06, 0.99),
        "text8": (1.13, 1.08),
        "wt103": (20.5, 18.3),
        "lm1b": (23.7, 21.8),
        "ptb": (55.3, 54.52),
    }


def test_twelve_layers_have_17_percent_of_the_parameters_of_64():
    ours, theirs = (row_of(name)[1] for name in ("enwik8", "vanilla-enwik8-64l"))
    assert ours.test == theirs.test
    assert int(ours.parameters[:-1]) / int(theirs.parameters[:-1]) == pytest.approx(0.17, abs=0.005)


@pytest.mark.parametrize("number", [6, 10])
def test_only_our_encoding_improves_beyond_the_training_length(number):
    rows = published.TABLES[number].rows
    assert published.TABLES[number].split == "valid"
    assert all(row.ppl_init is None or row.ppl_init >= row.ppl_best for row in rows)
    # "Increasing the attention length during evaluation improves performance only when our ... encoding is used."
    improved = [row for row in rows if row.ppl_init is not None and row.ppl_init > row.ppl_best]
    assert {row.encoding for row in improved} == {"Ours"}


def test_the_first_rows_of_tables_6_and_10_are_the_same():
    six, ten = published.TABLES[6].rows, published.TABLES[10].rows
    assert [dataclasses.replace(row, remark=None) for row in (six[0], six[2])] == list(ten[:2])


def test_the_151m_rows_of_table_6_agree_with_table_1_and_improve_with_length():
    rows = published.TABLES[6].rows[-3:]
    assert round(rows[0].ppl_best, 1) == row_of("wt103")[1].valid
    assert sorted(rows, key=lambda row: row.ppl_best) == sorted(rows, key=lambda row: -row.attn_len)


def test_effective_context_is_80_percent_longer_than_that_of_recurrent_networks():
    recl = {row.model: row.recl for row in published.TABLES[8].rows}
    assert recl["Transformer-XL 151M"][0] / recl["QRNN"][0] == pytest.approx(1.8)
    assert recl["Transformer-XL 128M"][0] / recl["Transformer"][0] == pytest.approx(5.5, abs=0.05)  # "450% longer"
    assert [row.group for row in published.TABLES[8].rows] == [1] * 3 + [2] * 4
    assert all(list(row.recl) == sorted(row.recl, reverse=True) for row in published.TABLES[8].rows)
    assert {len(recl) for recl in recl.values()} == {3}
