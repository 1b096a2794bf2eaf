"""Losses from exactly c tokens, against a loop over positions that reads them one by one."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.core.builders import draw_tokens, small_model, small_rnn
from txlcli.config.settings import EvalSettings
from txlcli.core.measures.recl import context_losses, read_length, sample_positions
from txlcli.core.reading.scoring import Stream
from txlcli.errors import UsageError

T = 41
LEARNED = 7
MEMORY = EvalSettings(seg_len=5, mem_len=7, max_distance=8, same_length="m")
ALL_KEYS = EvalSettings(seg_len=5, mem_len=7, same_length="off")
NONE = EvalSettings(seg_len=5, mem_len=0)
CASES = {
    "memory": ({}, MEMORY),
    "memory, m plus one": ({"norm": "pre"}, EvalSettings(seg_len=5, mem_len=7, same_length="m_plus_one")),
    "memory, all keys": ({}, EvalSettings(seg_len=5, mem_len=3, max_distance=6, same_length="off")),
    "compressive memory": (
        {"arch": "compressive", "compressed_len": 4},
        dataclasses.replace(ALL_KEYS, compressed_len=3),
    ),
    "memory tokens": ({"arch": "rmt", "segment_len": 3, "n_memory_tokens": 2}, NONE),
    "memory of zeros": ({"memory_start": "zeros"}, MEMORY),
    "memory, absolute positions": ({"position": "sinusoid"}, ALL_KEYS),
    "window": ({}, NONE),
    "window, near distances": ({}, EvalSettings(seg_len=5, mem_len=0, max_distance=6)),
    "window, absolute positions": ({"position": "sinusoid"}, NONE),
    "window, learned positions": ({"position": "learned", "n_positions": LEARNED}, NONE),
    "lstm": ("lstm", NONE),
    "qrnn": ("qrnn", NONE),
}


def make(case):
    changed, settings = CASES[case]
    return small_rnn(changed) if isinstance(changed, str) else small_model(**changed), settings


def texts():
    tokens = draw_tokens(1, T + 1)[0].numpy()
    return tokens[:-1], tokens[1:]


def by_definition(case, model, settings, context):
    """Return log P of the tokens after a context (c,), computed in a loop over segments."""
    tokens = torch.from_numpy(context)[None]
    if case.startswith("window"):
        empty = [past[:, :0] for past in model.first_memory(1, 0)]
        return model.log_probs(model(tokens, empty, mem_len=0, max_distance=settings.max_distance)[0])[0, -1]
    if case in ("lstm", "qrnn", "memory tokens"):
        memory = model.first_memory(1, 0)
        for token in tokens.split(1, dim=1):
            hidden, memory = model(token, memory, mem_len=0)
        return model.log_probs(hidden)[0, -1]
    memory = model.first_memory(1, settings.mem_len)
    limits = {"key_limit": settings.key_limit, "max_distance": settings.max_distance}
    limits |= {"compressed_len": settings.compressed_len} if case == "compressive memory" else {}
    for segment in tokens.split(settings.seg_len, dim=1):
        hidden, memory = model(segment, memory, mem_len=settings.mem_len, **limits)
    return model.log_probs(hidden)[0, -1]


def losses_of(model, settings, positions, context_len, windows=3):
    inputs, targets = texts()
    stream = Stream(model, inputs, targets, dataclasses.replace(settings, batch_size=windows))
    return context_losses(stream, positions, context_len=context_len)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("context_len", "windows"), [(1, 3), (7, 2), (29, 50)])
def test_a_loss_is_that_of_the_model_after_exactly_c_tokens(case, context_len, windows):
    (model, settings), positions = make(case), np.array([28, 31, 32, 36, 40])
    read = read_length(model, settings, context_len)
    losses = losses_of(model, settings, positions, read, windows)
    inputs, targets = texts()
    with torch.no_grad():
        expected = [
            -by_definition(case, model, settings, inputs[position + 1 - read : position + 1])[targets[position]].item()
            for position in positions
        ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_depends_on_the_first_token_of_the_context_and_on_none_before_it(case):
    (model, settings), positions, context_len = make(case), np.array([20]), 6
    inputs, targets = (part.copy() for part in texts())

    def loss():
        return context_losses(Stream(model, inputs, targets, settings), positions, context_len=context_len)[0]

    before = loss()
    inputs[14] = (inputs[14] + 1) % 19  # the seventh token before the target
    assert loss() == before
    inputs[15] = (inputs[15] + 1) % 19
    assert loss() != before


def test_a_window_reads_at_most_as_many_tokens_as_it_has_positions():
    learned = small_model(position="learned", n_positions=LEARNED)
    assert [read_length(learned, NONE, length) for length in (3, 7, 11)] == [3, 7, 7]
    assert read_length(learned, MEMORY, 11) == 11  # in segments, each from position 0
    assert read_length(small_model(position="shaw", n_positions=LEARNED), NONE, 11) == 11  # distances, not positions
    assert read_length(small_rnn("lstm"), NONE, 11) == 11


def test_segments_longer_than_the_trained_positions_are_rejected():
    learned = small_model(position="learned", n_positions=3)
    with pytest.raises(UsageError, match="learned 3 positions"):
        losses_of(learned, MEMORY, np.array([20]), 11)


def test_every_sampled_position_has_the_longest_context_and_a_seed_determines_them():
    positions = sample_positions(T, longest=30, sample_size=12, seed=3)
    assert positions.tolist() == list(range(29, 41))
    assert sample_positions(T, longest=T, sample_size=12, seed=3).tolist() == [T - 1]
    assert not len(sample_positions(T, longest=T + 1, sample_size=12, seed=3))
    small, again, other, large = (
        sample_positions(997, longest=100, sample_size=size, seed=seed).tolist()
        for size, seed in ((50, 1), (50, 1), (50, 2), (60, 1))
    )
    assert small == again == sorted(set(small)) != other
    assert set(small) < set(large)
