"""The commands with an encoding and an architecture that are registered from outside the package."""

import math
import os
import re
import sys
from pathlib import Path

import pytest

from tests.commands.novel import RECIPE, Saved, done, json_of, recipe_of, refusal, reports, start
from tests.commands.processes import ended
from tests.extensions import registered_architecture, registered_pairs
from txlcli.config.model_settings import TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL

MANUAL = Path(__file__).parents[2] / "docs" / "extending.md"
SLOPES = RECIPE.replace("n_heads = 3", 'n_heads = 3\nposition = "slopes"')


def check_resuming(recipe):
    """Assert that a stopped and resumed run equals one without a stop."""
    done("train", recipe, "--name", "whole")
    done("train", recipe, "--name", "parts", "--max-steps", 3)
    done("train", "--resume", "parts")
    assert Saved(Path("runs/parts/last.safetensors")) == Saved(Path("runs/whole/last.safetensors"))
    assert [line["loss_nats"] for line in reports("runs/parts") if line["kind"] == "valid"] == [
        line["loss_nats"] for line in reports("runs/whole") if line["kind"] == "valid"
    ]


@pytest.fixture
def pairs_recipe(untouched):
    done("prepare", "novel", "--name", "novel")
    Path("pairs.toml").write_text(recipe_of("pairs", mem_len=5))
    with registered_pairs():
        yield "pairs.toml"


def test_an_architecture_with_neither_attention_nor_a_recurrent_state_works_with_every_command(pairs_recipe):
    check_resuming(pairs_recipe)
    result = json_of("eval", "whole", "--mem-len", "0,1,5", "--batch-size", 1)
    assert (result["attention"], result["same_length"], result["max_distance"]) == (None, None, None)
    none, one, five = (row["loss_nats"] for row in result["rows"])
    assert one == pytest.approx(five, rel=1e-6)  # the model reads one embedding before each
    assert none != pytest.approx(five, rel=1e-6)
    single, pair = (row["loss_nats"] for row in json_of("eval", "whole", "--attn-len", "1,2")["rows"])
    assert pair == pytest.approx(five, rel=1e-6)
    assert single != pytest.approx(five, rel=1e-6)
    assert "same_length" not in done("eval", "whole").stdout
    assert math.isfinite(json_of("eval", "whole", "--cache", 7, "--dynamic")["rows"][-1]["bpc"])
    for options in ([], ["--set", "eval.mem_len=0"]):
        timed = json_of("speed", pairs_recipe, "--attn-len", 4, "--repeat", 1, *options)
        assert (timed["attention"], len(timed["throughput"])) == (None, 4)
    done("train", pairs_recipe, "--name", "none", "--set", "train.mem_len=0", "--set", "eval.mem_len=0")
    for run in ("whole", "none"):
        assert json_of("generate", run, "--prompt", "the fox", "--tokens", 7)["samples"][0]["tokens"]
    group = json_of("recl", "whole", "none", "--start", 2, "--step", 2, "--positions", 11)
    assert [model["context"] for model in group["models"]] == ["memory", "window"]


def test_what_an_architecture_without_attention_would_ignore_is_rejected(pairs_recipe):
    for key, value in (("train.attention", "reference"), ("train.compile", "on"), ("eval.same_length", "off")):
        message = refusal("train", pairs_recipe, "--set", f"{key}={value}")
        assert f"{key.split('.')[1]} must be" in message
        assert 'with arch = "pairs", which has no layers with attention' in message
    done("train", pairs_recipe, "--name", "pairs")
    for words in (["--attention", "reference"], ["--same-length"], ["--max-distance", 3]):
        assert f"leave out {words[0]}" in refusal("eval", "pairs", *words)
    assert "no attention to single tokens" in refusal("attention", "pairs")


def test_what_needs_the_reader_of_keys_is_rejected_for_others(untouched):
    done("prepare", "novel", "--name", "novel")
    Path("own.toml").write_text(RECIPE.replace("n_heads = 3", 'n_heads = 3\narch = "own"'))
    with registered_architecture("own", settings=TransformerSettings, model=TransformerXL):
        done("train", "own.toml", "--max-steps", 1)
        message = refusal("attention", "own")
    assert 'not read by the reader "keys"' in message
    assert "if it keeps the memory of TransformerXL" in message


def test_the_script_of_the_manual_runs_commands_with_what_a_package_registers(untouched):
    blocks = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(), flags=re.MULTILINE | re.DOTALL)
    (script,) = (block for block in blocks if "import my_package" in block)
    Path("my_txl.py").write_text(script)
    Path("my_package.py").write_text(
        "from tests.extensions import SlopesEncoding\n"
        "from txlcli.config.traits import EncodingTraits\n"
        "from txlcli.core.model.encodings import register_encoding\n"
        'register_encoding("slopes", SlopesEncoding, EncodingTraits(limits_distance=True, score_terms=("a", "d")))\n'
    )
    done("prepare", "novel", "--name", "novel")
    Path("slopes.toml").write_text(SLOPES)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended(start("train", "slopes.toml", "--max-steps", 1, module="my_txl", environment=environment), 0)
    assert Path("runs/slopes/last.safetensors").exists()
