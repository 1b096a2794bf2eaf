"""Models and settings far beyond any machine: refused in one line before anything is built or allocated."""

import time
from pathlib import Path

import pytest

from tests.commands.novel import refusal


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("model.n_layers=1000000000", 2, "[model] n_layers must be at most 1000, not 1000000000"),
        ("train.lr=" + "[" * 30_000, 2, "--set train.lr: nested more than 8 levels deep; give a plain value"),
        ("model.d_inner=1000000000", 1, "use shorter lengths or a smaller model"),
        ("model.d_model=1000000000", 1, "use shorter lengths or a smaller model"),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else str(value),
)
def test_a_huge_setting_is_rejected_at_once(here, change, code, message):
    refusal("train", "tiny.toml", "--set", "train.lr=x", "--name", "new")  # imports what the command needs
    started = time.monotonic()
    assert refusal("train", "tiny.toml", "--set", change, "--name", "new", code=code).endswith(message)
    assert time.monotonic() - started < 20  # seconds; far less on an idle machine
    assert not Path("runs/new").exists()
