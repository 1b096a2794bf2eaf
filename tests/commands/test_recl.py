"""txl recl: groups of runs, Table 8, Figures 3 and 4."""

import json
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.cards import read_card
from tests.commands.novel import cells, change_weights, done, json_of, recipe_of, refusal, train
from tests.report.test_plots import marks_in
from txlcli.core.measures.recl import sample_positions
from txlcli.data.token_store import TokenStore
from txlcli.workflows.recl_options import DEFAULT_RECL_POSITIONS

GRID = ["--start", 3, "--step", 4, "--longest", 15]
SMALL = [*GRID, "--positions", 40]


@pytest.fixture
def group(here):
    """Train a model with memory, one with a window of learned positions, and an LSTM."""
    train("model.position=learned", "model.n_positions=5", "train.mem_len=0", "eval.mem_len=0", name="window")
    (here / "lstm.toml").write_text(recipe_of("lstm"))
    done("train", "lstm.toml", "--name", "state")
    return ["byte", "window", "state"]


def test_every_model_has_a_recl_for_every_r(group):
    result = done("recl", *group, *SMALL, "--json")
    # memory and state read 40 x (3 + 7 + 11 + 15) tokens, the window 40 x (3 + 5): 2 x 1440 + 320
    assert "3,200 tokens to read" in result.stderr.splitlines()[0]
    output = json.loads(result.stdout)
    assert output["context_tokens"] == [3, 7, 11, 15]
    assert [model["context"] for model in output["models"]] == ["memory", "window", "state"]
    for model in output["models"]:
        assert [point["top_r"] for point in model["recl"]] == [0.1, 0.5, 1.0]
        assert model["ppl"] == pytest.approx([math.exp(nats) for nats in model["loss_nats"]])
        for point in model["recl"]:
            assert [(gain["from_tokens"], gain["to_tokens"]) for gain in point["gains"]] == [(3, 7), (7, 11), (11, 15)]
            assert point["recl_tokens"] in output["context_tokens"]
    _, window, _ = output["models"]
    # Context beyond the learned positions changes nothing.
    assert window["longest_window_tokens"] == 5
    assert window["loss_nats"][1] == window["loss_nats"][2] == window["loss_nats"][3] != window["loss_nats"][0]


def test_losses_of_windows_equal_those_of_eval(here):
    train("train.mem_len=0", "eval.mem_len=0", name="vanilla")
    done("eval", "vanilla", "--attn-len", 7, "--losses", "eval.h5")
    with h5py.File("eval.h5") as file:
        by_eval = file["attn_len_7"][()]
    (model,) = json_of("recl", "vanilla", "--start", 3, "--step", 4, "--longest", 7, "--positions", 100)["models"]
    assert model["loss_nats"][1] == pytest.approx(by_eval[positions_of(100, longest=7)].mean(), rel=1e-5)


def positions_of(count, longest=15):
    tokens = len(TokenStore.open("data/novel.h5").ids("test")) - 1  # the first byte has no context
    return sample_positions(tokens, longest=longest, sample_size=count, seed=1111).tolist()


@pytest.mark.parametrize(("threshold", "marked"), [(0.9999, "<= 3"), (1e-9, ">= 7")])
def test_a_recl_that_is_only_a_bound_is_marked(here, threshold, marked):
    grid = ["--start", 3, "--step", 4, "--longest", 7, "--positions", 40]
    result = done("recl", "byte", *grid, "--threshold", threshold)
    (row,) = (row for row in cells(result) if row[0] == "byte")
    assert row[2:] == [marked] * 3
    assert f"{marked[:2]}: " in result.stdout


def test_a_batch_of_one_gives_the_same_losses_and_the_figures_have_a_curve_per_model(group):
    plain = json_of("recl", *group, *SMALL)
    single = json_of("recl", *group, *SMALL, "--batch-size", 1)
    for model, other in zip(plain["models"], single["models"], strict=True):
        assert model["loss_nats"] == pytest.approx(other["loss_nats"], rel=1e-5)
    result = done("recl", *group, *SMALL, "--plot", "gains.svg", "--plot-ppl", "ppl.png")
    assert "state: recurrent state, the model's first one before the context" in result.stdout
    assert result.stderr.endswith("figure written to gains.svg\nfigure written to ppl.png\n")
    assert marks_in("gains.svg")[1].count(3) >= 3  # from 3, 7 and 11 tokens
    with open("ppl.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_all_positions_are_scored_if_there_are_few(here):
    eligible = len(positions_of(10_000))
    assert eligible < DEFAULT_RECL_POSITIONS
    assert json_of("recl", "byte", *GRID)["positions"] == eligible
    assert json_of("recl", "byte", *GRID, "--positions", eligible)["positions"] == eligible
    message = refusal("recl", "byte", *GRID, "--positions", eligible + 1)
    assert f"novel test has {eligible} tokens after 15 tokens of context" in message


def test_a_context_longer_than_the_split_is_rejected(here):
    tokens = len(positions_of(10_000)) + 14
    assert "has 0 tokens after" in refusal("recl", "byte", "--start", tokens - 3, "--step", 4)
    fits = ["--start", tokens - 4, "--step", 4, "--longest", tokens]
    assert json_of("recl", "byte", *fits)["positions"] == 1


def test_losses_that_are_not_finite_are_rejected(here):
    change_weights("byte", lambda name, tensor: tensor * math.nan)
    assert "not finite at a context of 3 tokens" in refusal("recl", "byte", *SMALL, code=1)
    assert "--precision fp32" in refusal("recl", "byte", *SMALL, "--precision", "bf16", code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["byte", "runs/byte"], 2, "named twice"),
        (["byte", "word"], 2, "different stores (novel, word) or vocabularies"),
        (["byte", "other"], 2, "different stores (novel, novel) or vocabularies"),
        (["byte", "--plot", "a.svg", "--plot-ppl", "a.svg"], 2, "are both a.svg"),
        (["byte", "young"], 1, "no such checkpoint"),
    ],
)
def test_runs_and_options_that_do_not_suit_each_other_are_rejected(here, arguments, code, message):
    if "other" in arguments:
        shutil.copytree("runs/byte", "runs/other")
        path = Path("runs/other/run.json")
        path.write_text(json.dumps({**read_card(path.parent), "vocab_fingerprint": "0" * 64}))
    if "young" in arguments:
        shutil.copytree("runs/byte", "runs/young", ignore=shutil.ignore_patterns("*.safetensors"))
    assert message in refusal("recl", *arguments[:1], *SMALL, *arguments[1:], code=code)


# --- a text whose useful context is known ----------------------------------------------------------------------------

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
