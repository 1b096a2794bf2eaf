"""The recipes of the Compressive Transformer follow Rae et al. (2020)."""

import dataclasses
import re

import pytest

from txlcli.config import recipe
from txlcli.core.model.registry import count_parameters

COMPRESSIVE = {
    # layers, d, heads, head width, F; L, M, C, c of training; M, C of the evaluation; warm-up, decay; B; V; valid, test
    "compressive-enwik8": (
        (24, 1024, 8, 128, 3072),
        (768, 768, 1152, 3),
        (768, 3072),
        (4_000, 100_000),
        64,
        204,
        (None, 0.97),
    ),
    "compressive-wt103": (
        (18, 1024, 16, 64, 4096),
        (512, 512, 512, 4),
        (500, 1500),
        (16_000, 500_000),
        128,
        267_735,
        (16.0, 17.1),
    ),
}
LIKE = {"compressive-enwik8": "enwik8-24l", "compressive-wt103": "wt103-large"}
"""The Transformer-XL of as many layers, whose widths, dropout and embeddings they have."""
OF_COMPRESSION = {"arch", "compressed_len", "compression_rate", "compression", "memory_start"}


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_sizes_lengths_and_results_are_those_of_the_paper(name):
    sizes, lengths, evaluated, (warmup, decay), batch_size, vocab_size, results = COMPRESSIVE[name]
    settings = recipe.load(name)
    model, train, evaluation, published = settings.model, settings.train, settings.eval, settings.published
    assert (model.n_layers, model.d_model, model.n_heads, model.d_head, model.d_inner) == sizes
    assert (train.seg_len, train.mem_len, model.compressed_len, model.compression_rate) == lengths
    assert (model.arch, model.compression, model.memory_start) == ("compressive", "convolution", "zeros")
    assert (evaluation.mem_len, evaluation.compressed_len, evaluation.same_length) == (*evaluated, "off")
    assert (train.batch_size, train.warmup_steps, train.max_steps) == (batch_size, warmup, warmup + decay)
    assert (train.optimizer, train.lr, train.cosine_from, train.clip) == ("adam", 3e-4, "warmup", 0.1)
    assert train.lr * train.min_lr_ratio == pytest.approx(1e-6, rel=0.02)
    assert (published.vocab_size, published.valid, published.test) == (vocab_size, *results)


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_all_else_is_that_of_the_transformer_xl_of_as_many_layers(name):
    model, other = (dataclasses.asdict(recipe.load(one).model) for one in (name, LIKE[name]))
    assert {key for key, value in model.items() if value != other.get(key)} == OF_COMPRESSION


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_the_parameters_are_those_of_that_model_and_of_the_convolutions(name):
    (n_layers, d, *_), (*_, rate), *_, vocab_size, _ = COMPRESSIVE[name]
    counts = [count_parameters(recipe.load(one).model, vocab_size) for one in (name, LIKE[name])]
    assert counts[0] - counts[1] == n_layers * (rate * d * d + d)
    assert recipe.load(name).published.parameters == counts[0]


@pytest.mark.parametrize("name", COMPRESSIVE)
def test_the_header_states_results_command_and_what_is_inferred(name):
    _, text = recipe.read_text(name)
    header = " ".join(line.removeprefix("#").strip() for line in re.match(r"(#.*\n)+", text)[0].splitlines())
    corpus = name.removeprefix("compressive-")
    assert "Rae et al. 2020, Table" in header
    assert f"txl prepare {corpus} && txl train {name} " in header
    for result in COMPRESSIVE[name][-1]:
        assert result is None or str(result) in header
    assert "Inferred: all widths" in header
    assert LIKE[name] in header
    assert "has not been trained at full scale" in header
    assert "Hardware" in header
