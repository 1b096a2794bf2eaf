"""A packaged recipe, made small, learns a text whose entropy is known and that only a memory can predict."""

import numpy as np

import txlcli

LAG = 7
"""Each letter depends on the one this many tokens before; most of these are in the segment before."""
SMALL = (
    "corpus.store=chain",
    "model.n_layers=2",
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_head=16",
    "model.d_inner=64",
    "train.seg_len=8",
    "train.mem_len=8",
    "train.batch_size=32",
    "train.max_steps=300",
    "train.warmup_steps=20",
    "train.lr=5e-3",
    "train.valid_every=300",
    "eval.seg_len=8",
    "eval.mem_len=8",
)


def write_chain(path, count):
    """Write a Markov chain of 8 letters with a lag; return its entropy in bits per byte."""
    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.full(8, 0.3), size=8)
    letters = [0] * LAG
    for _ in range(count):
        letters.append(int(generator.choice(8, p=probabilities[letters[-LAG]])))
    path.write_bytes(bytes(b"abcdefgh"[letter] for letter in letters[LAG:]))
    share = np.linalg.matrix_power(probabilities, 10_000)[0]
    return float(-(share[:, None] * probabilities * np.log2(probabilities)).sum())


def test_bits_per_byte_with_memory_approach_the_entropy_of_the_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entropy = write_chain(tmp_path / "chain.txt", 60_000)
    txlcli.prepare("chain.txt")
    txlcli.train("stdlib", txlcli.TrainOptions(name="chain", overrides=SMALL), device="cpu")
    without, with_memory = txlcli.load("chain").evaluate(mem_len=[0, 8])
    assert entropy - 0.05 < with_memory.bpc < entropy + 0.4
    assert without.bpc > entropy + 0.8
