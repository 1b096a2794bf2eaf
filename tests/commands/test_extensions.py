"""The commands with an encoding and an architecture that are registered from outside the package."""

import math
import re
from pathlib import Path

import pytest
import torch

from tests.commands.novel import RECIPE, Saved, card, done, json_of, refusal, reports
from tests.extensions import registered_gru, registered_optimizer, registered_slopes
from txlcli.core.training.optimizer import OptimizerEntry, parameter_group

ATTENTION_KEYS = ("n_heads = 3\n", "d_head = 5\n", "d_inner = 11\n")


@pytest.fixture
def slopes_recipe(untouched):
    done("prepare", "novel", "--name", "novel")
    Path("slopes.toml").write_text(RECIPE.replace("n_heads = 3", 'n_heads = 3\nposition = "slopes"'))
    with registered_slopes():
        yield "slopes.toml"


@pytest.fixture
def gru_recipe(untouched):
    done("prepare", "novel", "--name", "novel")
    text = RECIPE.replace("n_layers = 2", 'arch = "gru"\nn_layers = 2\nskip = true').replace(
        "mem_len = 5", "mem_len = 0"
    )
    for line in ATTENTION_KEYS:
        text = text.replace(line, "")
    Path("gru.toml").write_text(text)
    with registered_gru():
        yield "gru.toml"


def check_resuming(recipe):
    """Assert that a stopped and resumed run equals one without a stop."""
    done("train", recipe, "--name", "whole")
    done("train", recipe, "--name", "parts", "--max-steps", 3)
    done("train", "--resume", "parts")
    assert Saved(Path("runs/parts/last.safetensors")) == Saved(Path("runs/whole/last.safetensors"))
    assert [line["loss_nats"] for line in reports("runs/parts") if line["kind"] == "valid"] == [
        line["loss_nats"] for line in reports("runs/whole") if line["kind"] == "valid"
    ]


def test_a_registered_encoding_is_trained_resumed_evaluated_and_decoded(slopes_recipe):
    plan = json_of("train", slopes_recipe, "--dry-run")
    assert plan["parameters_by_part"]["positions"] == 3  # one per head
    check_resuming(slopes_recipe)
    assert card("runs/whole")["settings"]["model"]["position"] == "slopes"
    rows = json_of("eval", "whole", "--mem-len", "0,5,11")["rows"]
    assert [row["mem_len"] for row in rows] == [0, 5, 11]
    assert all(math.isfinite(row["bpc"]) for row in rows)
    assert len({row["bpc"] for row in rows}) == 3
    assert json_of("attention", "whole", "--positions", 20)["figure7"]
    assert done("generate", "whole", "--prompt", "the fox", "--tokens", 7).stdout


def test_the_name_of_an_encoding_is_unknown_unless_it_is_registered(untouched):
    Path("slopes.toml").write_text(RECIPE.replace("n_heads = 3", 'n_heads = 3\nposition = "slopes"'))
    assert "position must be one of relative, shaw, sinusoid, learned, rotary, not 'slopes'" in refusal(
        "train", "slopes.toml"
    )


def test_a_registered_architecture_is_counted_trained_resumed_evaluated_and_decoded(gru_recipe):
    plan = json_of("train", gru_recipe, "--dry-run")
    assert plan["parameters_by_part"]["other layers"] == 2 * (6 * 8 * 8 + 6 * 8)
    # Forward and backward: two operations in each of three passes.
    assert plan["training_flops_per_token"] == 2 * 3 * (2 * 6 * 8 * 8 + 8 * plan["vocab_size"])
    check_resuming(gru_recipe)
    assert card("runs/whole")["settings"]["model"]["arch"] == "gru"
    (row,) = json_of("eval", "whole")["rows"]
    assert math.isfinite(row["bpc"])
    assert "has a recurrent state" in refusal("eval", "whole", "--mem-len", 5)
    assert done("generate", "whole", "--prompt", "the fox", "--tokens", 7).stdout
    assert json_of("speed", "whole")["throughput"]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_muon_refuses_an_architecture_without_matrices_in_its_layers(gru_recipe, dry):
    message = refusal("train", gru_recipe, "--set", 'train.optimizer="muon"', *dry)
    assert message == 'train.optimizer = "muon" is for matrices, and the model has none in its layers; use "adamw"'
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words", [["train", "plain.toml"], ["train", "plain.toml", "--dry-run"], ["speed", "plain.toml"]], ids=" ".join
)
def test_a_registered_optimizer_that_refuses_a_parameter_ends_a_command_before_its_work(untouched, words):
    done("prepare", "novel", "--name", "novel")
    Path("plain.toml").write_text(RECIPE)

    def make(model, settings):
        return torch.optim.Muon([parameter_group("all", model.parameters())], lr=settings.lr)

    with registered_optimizer("vectorless", OptimizerEntry(make, lambda *_: 1)):
        message = refusal(*words, "--set", "train.optimizer=vectorless")
    assert re.fullmatch(
        r'train.optimizer = "vectorless" cannot train this model: Muon only supports 2D parameters .*; '
        'use another, such as "adamw"',
        message,
    )
    assert not Path("runs").exists()


def test_the_name_of_an_architecture_is_unknown_unless_it_is_registered(untouched):
    Path("gru.toml").write_text(RECIPE.replace("n_layers = 2", 'arch = "gru"\nn_layers = 2'))
    assert "arch must be one of transformer, lstm, qrnn, not 'gru'" in refusal("train", "gru.toml")
