"""The forecast of a step's memory, compared with the tensors of a real step."""

import contextlib
import gc

import pytest
import torch
from txlcli.core.measures.footprint import step_bytes

from tests.core.builders import model_settings, rnn_settings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.attention_tiles import TiledAttention, first_tiles_only
from txlcli.core.kernels.linear import use_onednn
from txlcli.core.kernels.private import observed_results, tensors_without_data
from txlcli.core.kernels.score_buffer import Workspace
from txlcli.core.measures.live_bytes import NO_ONEDNN, LiveBytes
from txlcli.core.model.registry import make_model
from txlcli.core.training.data_parallel import SINGLE_PROCESS
from txlcli.core.training.parallel_ddp import DataParallel
from txlcli.core.training.step import ForwardBackward, OptimizerStep

V = 307
LARGE = {"n_layers": 4, "d_model": 48, "n_heads": 3, "d_head": 16, "d_inner": 101}


def train_settings(**changed):
    return TrainSettings(**{"seg_len": 37, "mem_len": 41, "batch_size": 12, "max_steps": 3, **changed})


def peak_of_real_steps(settings, train):
    """Return the largest number of bytes of the tensors of three steps, the last of which find state and memory."""
    live = LiveBytes()
    with use_onednn(NO_ONEDNN), observed_results(live.observe):
        model = make_model(settings, V).train()
        model.recompute(train.recompute)
        parallel = DataParallel(model, train, SINGLE_PROCESS)
        step = OptimizerStep(model, train, parallel)
        forward_backward = ForwardBackward(model, train, parallel.objective, step, processes=1)
        parts = train.accumulate
        memories = [model.full_memory(train.batch_size // parts, train.mem_len) for _ in range(parts)]
        for _ in range(3):
            gc.collect()
            live.peak = live.now
            for memory in memories:
                tokens = torch.randint(V, (train.batch_size // parts, train.seg_len + 1))
                forward_backward(tokens[:, :-1], tokens[:, 1:], memory, progress=0.0)
            step.clip()
            step.step(1e-3)
    return live.peak


@pytest.mark.parametrize(
    ("model", "changed"),
    [
        (model_settings(**LARGE), {}),
        pytest.param(model_settings(**LARGE), {"batch_size": 64, "seg_len": 16, "mem_len": 16}, marks=pytest.mark.slow),
        pytest.param(
            model_settings(**LARGE, dropout=0.1, attention_dropout=0.1), {"optimizer": "sgd"}, marks=pytest.mark.slow
        ),
        pytest.param(model_settings(**LARGE), {"recompute": True}, marks=pytest.mark.slow),
        pytest.param(model_settings(**LARGE), {"accumulate": 3}, marks=pytest.mark.slow),
        pytest.param(model_settings(**LARGE, norm="pre"), {"precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param(rnn_settings("qrnn", n_layers=4), {"mem_len": 0}, marks=pytest.mark.slow),
    ],
)
def test_the_forecast_is_within_a_tenth_of_a_real_step(model, changed):
    train = train_settings(**changed)
    assert sum(step_bytes(model, V, train).values()) == pytest.approx(peak_of_real_steps(model, train), rel=0.1)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("cache_bytes", [1 << 10, 1 << 14])  # of a block of queries, and of three sequences
def test_the_first_tiles_take_the_memory_of_all(cache_bytes, recompute):
    peaks = []
    for which in (contextlib.nullcontext(), first_tiles_only()):
        live = LiveBytes()
        with tensors_without_data(), observed_results(live.observe), which:
            query, key, value = (torch.empty(12, 2, length, 8, requires_grad=True) for length in (11, 24, 24))
            attend = TiledAttention(Workspace(cache_bytes=cache_bytes, min_queries=3), recompute=recompute)
            position_key = torch.empty(2, 24, 8, requires_grad=True)
            attend(query, key, value, reach=24, scale=1.0, dropout=0.1, position_key=position_key).sum().backward()
        peaks.append(live.peak)
    assert peaks[0] == peaks[1] > 0
