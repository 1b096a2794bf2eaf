"""Portable arithmetic: as exact as the library's, and equal whatever the vector width and the order of sums."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.core.measures.test_compression import LANES, SETTINGS, model_with
from txlcli.core.measures import portable
from txlcli.core.measures.compression import Predictor
from txlcli.core.measures.portable import PortableArithmetic
from txlcli.errors import UsageError

MODELS = {
    "paper": ("relative", {}),
    "modern": ("rotary", {"block": "modern"}),
    "alibi": ("alibi", {}),
    "compressive": ("relative", {"arch": "compressive", "compressed_len": 5, "compression_rate": 2}),
}


def predictions(model, steps=17):
    predictor = Predictor(model, SETTINGS, LANES)
    return np.stack([predictor.read(np.full(3, step % 37)) for step in range(steps)])


def portable_predictions(model):
    with PortableArithmetic():
        return predictions(model.double().on(attention="reference"))


def seeded(name):
    """Return a model whose weights do not depend on the vector width, as those of PyTorch's generator do."""
    position, changed = MODELS[name]
    model = model_with(position, **changed)
    generator = np.random.default_rng(5)
    for parameter in model.parameters():
        values = generator.integers(-(1 << 20), 1 << 20, tuple(parameter.shape)) / float(1 << 21)
        parameter.data.copy_(torch.from_numpy(values))
    return model


def digest(name):
    return hashlib.sha256(portable_predictions(seeded(name)).tobytes()).hexdigest()


@pytest.mark.parametrize("name", MODELS)
def test_predictions_equal_those_in_float64(name):
    expected = predictions(seeded(name).double().on(attention="reference"))
    found = portable_predictions(seeded(name))
    assert np.abs(np.log(found) - np.log(expected)).max() < 1e-5


def test_predictions_are_the_same_bits_on_processors_of_other_vector_widths():
    program = f"import tests.core.measures.test_portable as t; print([t.digest(name) for name in {list(MODELS)}])"
    narrow = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | narrow, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str([digest(name) for name in MODELS])


def test_products_do_not_depend_on_the_order_of_their_sums():
    generator = torch.Generator().manual_seed(7)
    left = torch.randn(5, 997, dtype=torch.float64, generator=generator) * 1e3
    right = torch.randn(997, 3, dtype=torch.float64, generator=generator)
    expected = portable.matmul(left, right)
    torch.testing.assert_close(expected, left @ right, rtol=1e-5, atol=1e-2)
    for _ in range(7):
        order = torch.randperm(997, generator=generator)
        assert torch.equal(portable.matmul(left[:, order], right[order]), expected)


@pytest.mark.parametrize("name", ["exp", "log", "sin"])
def test_functions_equal_the_library(name):
    numbers = torch.linspace(-700, 700, 10_007, dtype=torch.float64)
    if name == "log":
        numbers = numbers.exp()
    expected = getattr(torch, name)(numbers)
    torch.testing.assert_close(getattr(portable, name)(numbers), expected, rtol=2e-15, atol=2e-13)


def test_a_masked_score_has_no_weight():
    scores = torch.tensor([[0.0, -torch.inf, 1.0]], dtype=torch.float64)
    assert portable.softmax(scores, -1)[0, 1] == 0.0


def test_an_operation_that_is_not_known_to_be_portable_is_rejected():
    with pytest.raises(UsageError, match="tanh"), PortableArithmetic():
        torch.zeros(3, dtype=torch.float64).tanh()
