"""The summary of a sweep over memory lengths in one sentence."""

import pytest

from txlcli.views.eval_table import in_a_sentence


def row(mem_len, bpc, slowdown=None, best=False):
    return {"mem_len": mem_len, "bpc": bpc, "ppl": 2**bpc, "slowdown": slowdown, "best": best}


@pytest.mark.parametrize(
    ("unit", "rows", "sentence"),
    [
        (
            "byte",
            [row(0, 2.5), row(64, 2.25, 83.7, best=True)],
            "Memory lowered bits per byte from 2.500 without memory to 2.250 with M = 64; reading with memory is 84 "
            "times as fast as recomputing.",
        ),
        (
            "char",
            [row(0, 2.5, best=True), row(64, 2.6, 83.7)],
            "Memory did not lower bits per character from 2.500 without memory.",
        ),
        (
            "word",
            [row(0, 3.0), row(8, 2.0, best=True)],
            "Memory lowered perplexity from 8.000 without memory to 4.000 with M = 8.",
        ),
    ],
)
def test_the_sentence_has_the_gain_and_the_speed_of_the_best_row(unit, rows, sentence):
    assert in_a_sentence({"unit": unit, "rows": rows}) == sentence
