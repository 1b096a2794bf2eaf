"""Replays of captured functions, on a stand-in for CUDA graphs; captures that fail are tested on the fake device."""

import torch

from tests.core import tape
from txlcli.core.kernels.cuda_graph import Replay

CPU = torch.device("cpu")


def test_a_replay_reads_its_inputs_from_the_same_memory_and_returns_the_same_tensor():
    fixed, calls = [torch.zeros(3), torch.zeros(3)], []

    def difference():
        calls.append(None)
        return fixed[0] - fixed[1]

    replay = Replay(difference, fixed, CPU, tape.capture, warm_up=1)
    first = replay(torch.full((3,), 7.0), torch.full((3,), 2.0))
    assert first.tolist() == [5, 5, 5]
    assert replay(fixed[0], torch.ones(3)) is first
    assert first.tolist() == [6, 6, 6]
    assert len(calls) == 2  # one call to warm up, one that is captured
