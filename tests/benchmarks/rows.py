"""The rows of the comparison with the peer: what is measured, what is hoped for."""

from dataclasses import dataclass, field, replace

from tests.benchmarks.contestants import Work


@dataclass(frozen=True)
class Row:
    title: str
    kind: str
    """step, reading or memory (of a step)."""
    work: Work
    targets: dict[str, float]
    """On a CPU, by precision: how many times as fast as the peer in fp32, at least; of its memory, at most."""
    devices: tuple[str, ...] = ("cpu",)
    """Those that measure it if no rows are named."""
    shares: dict[str, float] = field(default_factory=dict)
    """On a CPU, by precision: the share of the matrix-product peak, at least."""

    def target(self, precision, device):
        return self.targets.get(precision) if device.type == "cpu" else None


ENWIK8 = {
    **{"vocab_size": 204, "cutoffs": [], "n_layer": 12, "d_model": 512, "d_embed": 512},
    **{"n_head": 8, "d_head": 64, "d_inner": 2048},
}
WT103 = {
    **{"vocab_size": 267_735, "cutoffs": [20_000, 40_000, 200_000], "n_layer": 16, "d_model": 410, "d_embed": 410},
    **{"n_head": 10, "d_head": 41, "d_inner": 2100},
}
SMALL = {"n_layer": 2, "d_model": 14, "d_embed": 14, "n_head": 3, "d_head": 11, "d_inner": 17}

BOTH, CUDA = ("cpu", "cuda"), ("cuda",)
TRAINING = Work(ENWIK8, batch_size=2, seg_len=512, mem_len=512)
WHOLE_BATCH = replace(TRAINING, batch_size=22)
RECOMPUTED = replace(TRAINING, recompute=True)
EVALUATION = Work(ENWIK8, batch_size=10, seg_len=80, mem_len=2100, max_distance=820)
TOKEN = Work(ENWIK8, batch_size=1, seg_len=1, mem_len=1600, max_distance=820)
ROWS = {
    "training": Row(
        "training step, enwik8 12L, B 2, L 512, M 512", "step", TRAINING, {"fp32": 3, "bf16": 8}, shares={"fp32": 0.5}
    ),
    "memory": Row("peak memory of that step", "memory", TRAINING, {"fp32": 0.7, "bf16": 0.5}),
    "training-recomputed": Row("that step, train.recompute", "step", RECOMPUTED, {"fp32": 3, "bf16": 8}),
    "memory-recomputed": Row("peak memory, train.recompute", "memory", RECOMPUTED, {"fp32": 0.7, "bf16": 0.5}),
    "eval10": Row(
        "evaluation, B 10, L 80, M 2100", "reading", EVALUATION, {"fp32": 8, "bf16": 16}, BOTH, {"fp32": 0.5}
    ),
    "eval1": Row(
        "evaluation, B 1, L 80, M 2100", "reading", replace(EVALUATION, batch_size=1), {"fp32": 5, "bf16": 9}, BOTH
    ),
    "token1600": Row("one token at a time, M 1600", "reading", TOKEN, {"fp32": 12, "bf16": 14}, BOTH),
    "token3800": Row(
        "one token at a time, M 3800", "reading", replace(TOKEN, mem_len=3800), {"fp32": 12, "bf16": 14}, BOTH
    ),
    "wt103-training": Row(
        "training step, wt103 standard, B 2, L 150, M 150", "step", Work(WT103, 2, 150, 150), {"fp32": 2.5}
    ),
    "wt103-eval": Row(
        "evaluation, wt103 standard, B 10, L 64, M 640", "reading", Work(WT103, 10, 64, 640, 400), {"fp32": 4}, BOTH
    ),
    "training-b22": Row("training step, enwik8 12L, B 22, L 512, M 512", "step", WHOLE_BATCH, {}, CUDA),
    "memory-b22": Row("peak memory of that step", "memory", WHOLE_BATCH, {}, CUDA),
    "wt103-training-b60": Row(
        "training step, wt103 standard, B 60, L 150, M 150", "step", Work(WT103, 60, 150, 150), {}, CUDA
    ),
}


def quick(row):
    """The same with a model so small that it only shows whether the comparison runs."""
    big, work = row.work.config, row.work
    small = {**SMALL, "vocab_size": 37, "cutoffs": [11, 24, 31] if big["cutoffs"] else []}
    distance = work.max_distance and 5
    seg_len = min(work.seg_len, 5)
    return replace(row, work=Work(small, min(work.batch_size, 3), seg_len, 7, distance, work.recompute))
