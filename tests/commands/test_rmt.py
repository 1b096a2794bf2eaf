"""Commands with a run of the Recurrent Memory Transformer."""

import pytest

from tests.commands.novel import done, json_of, refusal, train
from tests.commands.test_compressive import SHORT, check_other_uses

RMT = [
    *("model.arch=rmt", "model.segment_len=5", "model.n_memory_tokens=2", "train.seg_len=10"),
    *("train.mem_len=0", "eval.mem_len=0", "eval.same_length=off"),
]


@pytest.fixture
def run(here):
    train(*RMT, name="run")
    return here


def test_the_segment_length_of_an_evaluation_changes_its_speed_only(run):
    outputs = [json_of("eval", "run", "--seg-len", length, *SHORT) for length in (1, 5, 7, 20)]
    losses = [output["rows"][0]["loss_nats"] for output in outputs]
    assert losses[1:] == pytest.approx(losses[:1] * 3, rel=1e-5)
    assert "The recurrent state is carried along the text." in done("eval", "run", *SHORT).stdout


@pytest.mark.slow
def test_it_generates_compresses_and_adapts(run):
    check_other_uses(["--cache", 10], ["--dynamic"])


def test_what_memory_tokens_cannot_do_is_rejected_in_one_line(run):
    for option in ("--mem-len", "--max-distance"):
        assert f"leave out {option}" in refusal("eval", "run", option, 5)
