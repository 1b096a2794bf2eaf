"""The recipe of the Recurrent Memory Transformer follows Bulatov et al. (2022) and the recipe wt103."""

import dataclasses
import re

from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters

RMT = {"rmt-wt103": "wt103"}
"""The recipe whose model has no memory tokens, for each recipe with them."""
L, TOKENS, DEPTH, TEST = 150, 10, 3, 25.04


def test_segments_memory_tokens_depth_and_result_are_those_of_the_paper():
    settings = recipe.load("rmt-wt103")
    assert (settings.model.segment_len, settings.model.n_memory_tokens) == (L, TOKENS)
    assert settings.train.seg_len == DEPTH * L
    assert settings.eval.seg_len == L
    assert (settings.published.valid, settings.published.test) == (None, TEST)


def test_all_else_is_that_of_transformer_xl_with_as_many_tokens_per_step():
    ours, base = (recipe.load(name) for name in ("rmt-wt103", "wt103"))
    model, other = dataclasses.asdict(ours.model), dataclasses.asdict(base.model)
    assert {key for key, value in model.items() if value != other.get(key)} == {
        "arch",
        "segment_len",
        "n_memory_tokens",
    }
    lengths = {"seg_len": L, "mem_len": L, "batch_size": base.train.batch_size}
    assert dataclasses.replace(ours.train, **lengths) == base.train
    assert ours.train.seg_len * ours.train.batch_size == base.train.seg_len * base.train.batch_size


def test_the_parameters_are_those_of_that_model_and_of_the_first_state():
    counts = [count_parameters(recipe.load(name).model, 267_735) for name in ("rmt-wt103", "wt103")]
    assert counts[0] - counts[1] == TOKENS * 410
    assert recipe.load("rmt-wt103").published.parameters == counts[0]


def test_the_header_states_result_command_and_what_differs():
    _, text = recipe.read_text("rmt-wt103")
    header = " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())
    for part in ("Bulatov et al. 2022, Table 5", str(TEST), "24.12", "Inferred", "What differs", "Hardware"):
        assert part in header
    assert "txl prepare wt103 && txl train rmt-wt103 " in header
    assert "has not been trained at full scale" in header
