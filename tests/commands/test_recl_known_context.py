"""txl recl on a text whose useful context is known: takes minutes (pytest -m slow)."""

import numpy as np
import pytest

from tests.commands.novel import done, json_of

LONGEST_GAP = 40
SYMBOLS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", dtype=np.uint8)
NEW = 0.3  # share of symbols that are not copies, so that the text stays varied
STEP = 5
RECIPE = """
[corpus]
store = "copies"

[model]
n_layers = 1
d_model = 64
n_heads = 4
d_head = 16
d_inner = 256
dropout = 0.0
norm = "pre"
{model}

[train]
seg_len = {seg_len}
mem_len = {mem_len}
batch_size = {lanes}
max_steps = {steps}
lr = 5e-3
warmup_steps = 100
valid_every = {steps}
valid_tokens = 50_000

[eval]
seg_len = {seg_len}
mem_len = {mem_len}
"""
RECIPES = {
    "far": RECIPE.format(model="", seg_len=64, mem_len=64, lanes=32, steps=1500),
    "half": RECIPE.format(
        model=f'position = "learned"\nn_positions = {LONGEST_GAP // 2}',
        seg_len=LONGEST_GAP // 2,
        mem_len=0,
        lanes=100,
        steps=1000,
    ),
}


def copies(count):
    """Return symbols, most of them copies from 1 to LONGEST_GAP symbols before, so that every step of context helps."""
    random = np.random.default_rng(7)
    gaps, new = random.integers(1, LONGEST_GAP + 1, count).tolist(), (random.random(count) < NEW).tolist()
    text = random.integers(0, len(SYMBOLS), count).tolist()
    for position in range(LONGEST_GAP, count):
        if not new[position]:
            text[position] = text[position - gaps[position]]
    return SYMBOLS[text].tobytes()


@pytest.mark.slow
def test_the_recl_is_the_longest_gap_of_the_text_or_the_window_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copies.txt").write_bytes(copies(6_000_000))
    done("prepare", "copies.txt", "--tokenizer", "char", "--name", "copies")
    for name, recipe in RECIPES.items():
        (tmp_path / f"{name}.toml").write_text(recipe)
        done("train", f"{name}.toml")
    grid = ["--start", STEP, "--step", STEP, "--longest", 2 * LONGEST_GAP, "--positions", 10_000]
    far, half = json_of("recl", "far", "half", *grid)["models"]
    assert [point["recl_tokens"] for point in far["recl"]] == pytest.approx([LONGEST_GAP] * 3, abs=STEP)
    assert [point["recl_tokens"] for point in half["recl"]] == pytest.approx([LONGEST_GAP // 2] * 3, abs=STEP)
