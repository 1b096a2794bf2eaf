"""Commands with a run of the Compressive Transformer."""

import pytest

from tests.commands.novel import compressed_and_restored, json_of, refusal, train

COMPRESSIVE = ["model.arch=compressive", "model.compressed_len=4", "model.compression_rate=5", "eval.same_length=off"]
SHORT = ["--positions", 60, "--batch-size", 2]


@pytest.fixture
def run(here):
    train(*COMPRESSIVE, "eval.compressed_len=3", name="run")
    return here


def test_an_evaluation_counts_the_slots_among_the_keys(run):
    rows = json_of("eval", "run", "--mem-len", "0,5,20", "--seg-len", 5, *SHORT)["rows"]
    assert [(row["mem_len"], row["attn_len_min"], row["attn_len_max"]) for row in rows] == [
        (0, 1, 5),
        (5, 3 + 5 + 1, 3 + 5 + 5),
        (20, 3 + 20 + 1, 3 + 20 + 5),
    ]
    assert len({row["loss_nats"] for row in rows}) == 3
    assert json_of("eval", "run", "--attn-len", 7, *SHORT)["rows"][0]["attn_len_max"] == 7


def check_other_uses(*methods):
    """Generate text, compress a text, and evaluate with each of the methods of adaptation."""
    assert len(json_of("generate", "run", "--prompt", "the fox", "--tokens", 12)["samples"][0]["tokens"]) == 12
    for options in ([], ["--dynamic"]):
        assert compressed_and_restored("run", b"the fox saw the fox and the fox saw the hen", *options)
    for method in methods:
        assert json_of("eval", "run", *method, *SHORT)["rows"][0]["tokens"] == 60


@pytest.mark.slow
def test_it_generates_compresses_and_adapts(run):
    check_other_uses(["--cache", 10])


def test_a_forecast_states_the_parameters_of_the_compression(run):
    parts = json_of("train", "tiny.toml", "--dry-run", *(part for one in COMPRESSIVE for part in ("--set", one)))
    assert parts["parameters_by_part"]["compression"] > 0


def test_what_a_compressed_memory_cannot_do_is_rejected_in_one_line(run):
    for command, telling, code in (
        ("eval run --same-length", "leave out --same-length", 2),
        ("eval run --compile on", "leave out --compile", 2),
        ("generate run --compile on", "leave out --compile", 2),
        ("attention run", "no attention to single tokens", 2),
        ("export run exported", 'only arch = "transformer"', 1),
    ):
        assert telling in refusal(*command.split(), code=code)
