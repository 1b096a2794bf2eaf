"""Nats are converted to the measures that papers report, checked by hand."""

import math

import pytest

from txlcli.paper.metrics import bits, finite, in_metric, measures, metric_of, perplexity, wanted_measures


def test_nats_to_bits_and_to_perplexity():
    assert [bits(nats) for nats in (0.0, math.log(2))] == pytest.approx([0.0, 1.0], rel=1e-15)
    assert [perplexity(nats) for nats in (math.log(24.0), 1e6)] == pytest.approx([24.0, math.inf])


def test_infinities_and_nan_become_null_in_json():
    assert [finite(value) for value in (2.5, -0.0, math.inf, -math.inf, math.nan)] == [2.5, -0.0, None, None, None]


@pytest.mark.parametrize(("metric", "expected"), [("bpc", 2.0), ("ppl", 4.0)])
def test_a_mean_loss_is_converted_to_the_metric_of_the_corpus(metric, expected):
    assert in_metric(2 * math.log(2), metric) == pytest.approx(expected)


def test_every_measure_divides_the_sum_of_losses_by_its_own_count():
    # 12 tokens at 3 bits each are 36 bits: over 4 words 9 bits each, over 18 bytes 2 bits each.
    result = measures(36 * math.log(2), tokens=12, words=4, size=18)
    assert result == pytest.approx({"bpc": 3.0, "ppl": 8.0, "ppl_per_word": 512.0, "bits_per_byte": 2.0})


def test_measures_without_a_count_are_omitted():
    assert set(measures(1.0, tokens=3)) == {"bpc", "ppl"}
    assert set(measures(1.0, tokens=3, words=2)) == {"bpc", "ppl", "ppl_per_word"}
    assert set(measures(1.0, tokens=3, size=2)) == {"bpc", "ppl", "bits_per_byte"}


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("byte", ["bpc", "ppl"]),
        ("char", ["bpc", "ppl"]),
        ("word", ["ppl"]),
        ("piece", ["ppl", "ppl_per_word", "bits_per_byte"]),
        ("sentencepiece", ["ppl", "ppl_per_word", "bits_per_byte"]),
    ],
)
def test_each_unit_has_its_measures_and_its_metric_comes_first(unit, expected):
    everything = measures(5.0, tokens=7, words=3, size=11)
    assert wanted_measures(unit, everything) == expected
    assert wanted_measures(unit, {"ppl": 2.0}) == ["ppl"]
    assert metric_of(unit) == expected[0]
