"""Memory of a GPU that shares a batch, DistributedDataParallel's buckets, and the exchange of gradients."""

import dataclasses

import pytest
import torch
from torch import distributed
from txlcli.core.measures.device_memory import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    DeviceMemory,
    exchanged_bytes,
    gradient_buckets,
    model_buckets,
)
from txlcli.core.measures.footprint import logit_bytes, parameters_by_part, step_bytes

from tests.core.builders import V, model_settings, rnn_settings
from tests.samples import sampled
from txlcli.config.settings import TrainSettings
from txlcli.core.training.data_parallel import of_one_process
from txlcli.errors import RecipeError

L, M, MIB = 5, 7, 2**20
GPU = torch.device("cuda")


def train_settings(**changed):
    return TrainSettings(**{"seg_len": L, "mem_len": M, "batch_size": 28, "max_steps": 1, **changed})


def test_a_bucket_is_full_once_it_reaches_its_limit():
    sizes = [MIB // 2, MIB // 2, 24 * MIB, MIB - 4, 4, 30 * MIB, 7]
    assert gradient_buckets(sizes) == [MIB, 25 * MIB, 30 * MIB, 7]
    assert gradient_buckets([3]) == [3]


def test_buckets_are_those_that_pytorch_assigns():
    counts = [70_001, 130_003, 270_029, 2_000_003, 5_000_011, 17, 6_600_007, 8_000_009, 1]
    with torch.device("meta"):
        tensors = [torch.empty(count) for count in counts]
    assigned, _ = distributed._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    assert gradient_buckets(4 * count for count in counts) == [
        4 * sum(counts[index] for index in bucket) for bucket in assigned
    ]


def test_the_buckets_of_a_model_hold_all_its_gradients():
    settings = model_settings(d_inner=100_003)
    buckets = model_buckets(settings, V)
    assert len(buckets) > 1
    assert sum(buckets) == 4 * sum(parameters_by_part(settings, V).values())


def test_a_ring_sends_every_gradient_almost_twice():
    assert [exchanged_bytes(100, devices) for devices in (1, 2, 4, 5)] == [0, 100, 150, 160]


@pytest.mark.parametrize(
    ("part", "recompute"),
    sampled(2, [({}, 1), ({}, 4), ({"accumulate": 2}, 3), ({"average": "exponential"}, 28)], [False, True]),
)
def test_a_gpu_needs_what_a_step_of_its_part_of_the_batch_needs(part, recompute):
    changed, devices = part
    train = train_settings(recompute=recompute, **changed)
    needed = DeviceMemory(model_settings(), V)(train, devices)
    expected = step_bytes(model_settings(), V, of_one_process(train, devices), device=GPU, processes=devices)
    assert sum(needed.values()) == sum(expected.values())
    assert needed["memory"] == expected["memory"]
    assert needed["activations"] + needed["logits"] == expected["activations"]


def test_a_batch_that_is_too_small_for_the_gpus_is_refused():
    with pytest.raises(RecipeError, match=r"train\.batch_size = 28 is too small for 29 processes"):
        DeviceMemory(model_settings(), V)(train_settings(), 29)


def test_logits_take_four_bytes_per_target_and_id_and_none_if_they_are_computed_again():
    train = train_settings(accumulate=3, batch_size=6)
    assert logit_bytes(model_settings(), V, train) == 4 * 2 * L * V
    assert logit_bytes(model_settings(), V, dataclasses.replace(train, recompute=True)) == 0


def test_logits_in_16_bits_take_two_bytes():
    train = train_settings(precision="bf16", batch_size=3)
    assert logit_bytes(model_settings(), V, train) == 2 * 3 * L * V


def test_auxiliary_classifiers_have_logits_of_their_own():
    settings = model_settings(n_layers=5, position="learned", n_positions=L, auxiliary_losses=True)
    train = train_settings(mem_len=0)
    assert logit_bytes(settings, V, train) > 5 * logit_bytes(model_settings(n_layers=5), V, train)


def test_a_recurrent_model_has_logits():
    assert logit_bytes(rnn_settings("lstm"), V, train_settings(mem_len=0)) == 4 * 28 * L * V


@pytest.mark.parametrize(("device", "processes", "copies"), [("cpu", 1, 0), ("cpu", 2, 1), ("cuda", 2, 0)])
def test_buckets_are_a_second_copy_of_the_gradients_on_a_cpu_only(device, processes, copies):
    needed = step_bytes(model_settings(), V, train_settings(), device=torch.device(device), processes=processes)
    assert needed["buckets"] == copies * needed["gradients"]
