"""txl recl on a text whose reach is known: takes minutes (pytest -m slow)."""

import numpy as np
import pytest

from tests.commands.novel import done, json_of

REACH = 40
SYMBOLS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", dtype=np.uint8)
FRESH = 0.3  # of the symbols, so that the text stays varied
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
        model=f'position = "learned"\nn_positions = {REACH // 2}', seg_len=REACH // 2, mem_len=0, lanes=100, steps=1000
    ),
}


def copies(count):
    """Symbols of which each is a copy from a gap drawn uniformly from 1 to REACH: every step of context gains."""
    random = np.random.default_rng(7)
    gaps, fresh = random.integers(1, REACH + 1, count).tolist(), (random.random(count) < FRESH).tolist()
    text = random.integers(0, len(SYMBOLS), count).tolist()
    for place in range(REACH, count):
        if not fresh[place]:
            text[place] = text[place - gaps[place]]
    return SYMBOLS[text].tobytes()


@pytest.mark.slow
def test_the_recl_is_the_reach_of_the_text_or_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copies.txt").write_bytes(copies(6_000_000))
    done("prepare", "copies.txt", "--tokenizer", "char", "--name", "copies")
    for name, recipe in RECIPES.items():
        (tmp_path / f"{name}.toml").write_text(recipe)
        done("train", f"{name}.toml")
    grid = ["--start", STEP, "--step", STEP, "--longest", 2 * REACH, "--positions", 10_000]
    far, half = json_of("recl", "far", "half", *grid)["models"]
    assert [point["recl_tokens"] for point in far["recl"]] == pytest.approx([REACH] * 3, abs=STEP)
    assert [point["recl_tokens"] for point in half["recl"]] == pytest.approx([REACH // 2] * 3, abs=STEP)
