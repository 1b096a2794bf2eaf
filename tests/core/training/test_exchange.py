"""The buckets of gradients that processes exchange, and the processes that update each weight."""

import torch

from tests.core.builders import V, model_settings
from txlcli.core.architectures.registry import parameter_shapes
from txlcli.core.training.buckets import bucket_names
from txlcli.core.training.parallel import assign_owners


def shapes(**changed):
    return parameter_shapes(model_settings(**changed), V)


def test_buckets_hold_every_parameter_once_in_the_order_of_the_backward_pass():
    of_model = shapes(n_layers=11, tie_embeddings=False)
    buckets = bucket_names(of_model)
    assert 4 <= len(buckets) <= 8
    assert sorted(name for bucket in buckets for name in bucket) == sorted(of_model)
    layers = [{int(name.split(".")[1]) for name in bucket if name.startswith("layers.")} for bucket in buckets[:-2]]
    assert [max(numbers) for numbers in layers] == sorted((max(numbers) for numbers in layers), reverse=True)
    assert "softmax.tables.0" in buckets[0]  # its gradient is complete before those of the layers
    assert buckets[-1] == ["embedding.tables.0"]
    assert all(len(of_model[name]) == 2 for bucket in buckets[:-2] for name in bucket)


def test_no_layers_have_no_buckets():
    assert bucket_names({"first": torch.Size([3, 5]), "embedding.tables.0": torch.Size([7, 5])}) == [
        ["first"],
        ["embedding.tables.0"],
    ]


def test_the_largest_tensors_are_divided_first():
    of_model = {"a": torch.Size([2]), "b": torch.Size([3, 4]), "c": torch.Size([11]), "d": torch.Size([7])}
    assert assign_owners(of_model, 3) == {"b": 0, "c": 1, "d": 2, "a": 2}
