"""A training step of txl beside a living peer: x-transformers with its memory, both as they are or compiled.

python -m tests.benchmarks.living [--compiled] [--turns 5] [--layers 2] [--width 128] [--seg-len 64] [--batch-size 8]

Needs x-transformers (pip install x-transformers), which is no dependency of txl. The models have equal widths, memories
of one segment and bytes, but not the same positions: the peers rotate queries and keys. The contestants take turns, so
that whatever else the machine does meets all of them; a ratio is the median of the ratios within one turn.
"""

import platform
import statistics
import time

import torch
import typer
from torch.nn import functional as F

from txlcli.config.model_settings import TransformerSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import make_model
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

VOCAB = 256
LR = 2.5e-4


def tokens_of(shape, seed=3):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def txl_step(position, compiles="off", *, layers, width, seg_len, batch_size):
    """Return a function that takes one training step of txl with a memory of M = L."""
    model_settings = TransformerSettings(
        n_layers=layers,
        d_model=width,
        n_heads=width // 32,
        d_head=32,
        d_inner=4 * width,
        position=position,
        dropout=0.0,
    )
    model = make_model(model_settings, VOCAB)
    settings = TrainSettings(
        seg_len=seg_len, mem_len=seg_len, batch_size=batch_size, max_steps=1_000_000, lr=LR, compile=compiles
    )
    ids = tokens_of((256 * batch_size * seg_len,)).numpy()
    return Training(model, settings, TrainingSegments(ids, settings)).update


def peer_step(compiles, *, layers, width, seg_len, batch_size):
    """Return a function that takes one step of x-transformers with its memory of the same length."""
    from x_transformers import Decoder, TransformerWrapper

    decoder = Decoder(dim=width, depth=layers, heads=width // 32, attn_dim_head=32, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=VOCAB, max_seq_len=seg_len, max_mem_len=seg_len, attn_layers=decoder)
    forward = torch.compile(model) if compiles else model
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    inputs, targets = tokens_of((batch_size, seg_len)), tokens_of((batch_size, seg_len), seed=5)
    memory = None

    def step():
        nonlocal memory
        logits, memory = forward(inputs, mems=memory, return_mems=True)
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(
    compiled: bool = False, turns: int = 5, layers: int = 2, width: int = 128, seg_len: int = 64, batch_size: int = 8
) -> None:
    """Print milliseconds of a step, and how many times as long the others take as txl's paper model."""
    sizes = {"layers": layers, "width": width, "seg_len": seg_len, "batch_size": batch_size}
    steps = {
        "txl, relative": txl_step("relative", **sizes),
        "txl, rotary": txl_step("rotary", **sizes),
        "x-transformers, memory, rotary": peer_step(False, **sizes),
    }
    if compiled:
        steps["the same, torch.compile"] = peer_step(True, **sizes)
        steps["txl, relative, train.compile"] = txl_step("relative", "on", **sizes)
        steps["txl, rotary, train.compile"] = txl_step("rotary", "on", **sizes)
    for step in steps.values():
        for _ in range(3):  # the memory grows, and code is compiled
            step()
    seconds = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{platform.processor() or platform.machine()}, {capability}, PyTorch {torch.__version__}, {sizes}")
    own = seconds["txl, relative"]
    for name, times in seconds.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(times, own, strict=True))
        print(f"{name:32} {1e3 * statistics.median(times):8.1f} ms  {ratio:.2f}")


if __name__ == "__main__":
    typer.run(main)
