"""Checkpoints: a round trip changes nothing, and damaged files are refused."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.errors import rejection
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.errors import RunError

WHOLE = torch.arange(12.0).view(3, 4)
TENSORS = {
    "transposed": WHOLE.T,
    "part": WHOLE[1:, 2:],
    "weight": torch.nn.Parameter(torch.ones(2)),
    "model.a": torch.arange(6.0).view(2, 3),
    "model.b.c": torch.tensor([1, 2], dtype=torch.bfloat16),
    "rng.cpu": torch.arange(5, dtype=torch.uint8),
    "memory.0": torch.zeros(2, 0, 14),
    "optimizer.a.step": torch.tensor(3.0),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
}
STATE = {"step": 3, "place": {"epoch": 1, "segment": 2}, "best_nats": None, "name": "wörter"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.safetensors"


def refusal(path):
    return rejection(RunError, checkpoint.load, path).removeprefix(f"{path}: ")


def test_a_saved_checkpoint_loads_unchanged(path):
    checkpoint.save(path, Checkpoint(TENSORS, STATE))
    loaded = checkpoint.load(path)
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded.tensors[name].dtype == tensor.dtype, name
        assert torch.equal(loaded.tensors[name], tensor), name
    assert {key: loaded.state[key] for key in STATE} == STATE


def test_a_checkpoint_is_a_safetensors_file_with_json(path):
    checkpoint.save(path, Checkpoint(TENSORS, STATE))
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert set(header) == {*TENSORS, "__metadata__"}
    state = json.loads(header["__metadata__"]["txl"])
    assert state.pop("checksums")["tensors"].keys() == TENSORS.keys()
    assert state == {"format": 1, **STATE}


def test_a_missing_checkpoint_is_named(path):
    assert refusal(path) == "no such checkpoint; the run has not saved one yet; wait for it, or train anew with `force`"


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_checkpoint_is_rejected(path, keep):
    checkpoint.save(path, Checkpoint(TENSORS, STATE))
    path.write_bytes(path.read_bytes()[:keep])
    assert "damaged checkpoint" in refusal(path)


@pytest.mark.parametrize("metadata", ["not JSON", "[]", "{}", '{"format": "one"}'])
def test_foreign_metadata_is_rejected(path, metadata):
    save_file({"a": torch.ones(2)}, path, {"txl": metadata})
    assert "not a checkpoint of txl" in refusal(path)


def test_a_checkpoint_without_a_step_is_rejected(path):
    checkpoint.save(path, Checkpoint(TENSORS, {}))
    assert refusal(path).startswith("damaged checkpoint (it has no step)")


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_rejected_without_unpickling_it(path, tmp_path):
    torch.save({"model": Trap(tmp_path / "sprung")}, path)
    assert refusal(path).startswith("damaged checkpoint (")
    assert not (tmp_path / "sprung").exists()


def test_every_flipped_bit_is_found_or_changes_nothing(path):
    checkpoint.save(path, Checkpoint(TENSORS, STATE))
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            loaded = checkpoint.load(path)
        except RunError:
            continue
        assert {key: loaded.state[key] for key in STATE} == STATE
        assert loaded.tensors.keys() == TENSORS.keys()
        assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_a_group_read_alone_is_compared_with_its_checksums(path):
    tensors = {"model.a": torch.arange(7.0), "optimizer.a": torch.arange(5.0)}
    checkpoint.save(path, Checkpoint(tensors, STATE))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # in the last tensor, which the optimizer reads
    assert torch.equal(checkpoint.load(path, to_evaluate=True).tensors["model.a"], tensors["model.a"])
    with pytest.raises(RunError, match=r"damaged checkpoint \(optimizer\.a has a wrong checksum\)"):
        checkpoint.load(path)
