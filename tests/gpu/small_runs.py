"""Training runs of a small model on a device, for the tests and for the rows that compare losses."""

import numpy as np
import torch

from txlcli.config import recipe
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.device import pick_device
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.errors import UsageError

V, B, STEPS = 509, 3, 20
L = 35  # K = 70 keys, no multiple of 8
SIZES = (
    *("model.n_layers=2", "model.d_model=26", "model.n_heads=2", "model.d_head=13", "model.d_inner=51"),
    *(f"train.seg_len={L}", f"train.mem_len={L}", f"train.batch_size={B}", "train.valid_seg_len=5"),
    *("train.lr=1e-2", "train.warmup_steps=0", f"train.max_steps={STEPS}"),
)


def start(device, *changes, dtype=torch.float32, seed=5, **how):
    """Return a training run of a small model on tokens whose frequencies it can learn."""
    settings = recipe.load("stdlib", [*SIZES, *changes])
    ids = zipf_ids(V, B * L * (STEPS + 3) + 1)
    segments = TrainingSegments(ids, settings.train)
    model = new_model(settings.model, V, seed=seed, device=pick_device(device)).to(dtype)
    return Training(model, settings.train, segments, **how)


def zipf_ids(vocab_size, count):
    """Draw token ids by Zipf's law: the share of an id falls with its rank."""
    return (vocab_size ** np.random.default_rng(3).random(count)).astype(np.int64)


def no_graph(run, device, **how):
    """Stand in for a capture where there are no CUDA graphs."""
    raise UsageError("no graphs here")


def losses(device, *changes, dtype=torch.float32, seed=5, steps=STEPS, path=(), **how):
    """Return the losses of the first steps (steps,), which must have taken the path that these words name."""
    training = start(device, *changes, dtype=dtype, seed=seed, **how)
    found = torch.stack([training.update().loss for _ in range(steps)]).double().cpu()
    assert set(path) <= set(training.path.split(", ")), training.path
    return found
