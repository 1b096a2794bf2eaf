"""Opening stores by name, and runs with their weights."""

import dataclasses

import pytest
import torch

from tests.core.builders import model_settings
from txlcli.config import recipe
from txlcli.core.architectures.registry import count_parameters
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RunError, UsageError, VocabularyError
from txlcli.runs import lifecycle, loading, run_directory
from txlcli.runs.run_directory import Run

VOCAB = Vocab("char", list("abc \n"))
SETTINGS = dataclasses.replace(recipe.load("enwik8"), model=model_settings())


def state_of(model=SETTINGS.model, step=3):
    return {"step": step, "model": recipe.function_keys(model)}


def saved_run(runs_dir, name="mine", *, best=False):
    """Create a run with the weights of a new model; `best` adds best weights, all zero."""
    run = Run(
        directory=runs_dir / name,
        recipe_name="enwik8",
        settings=SETTINGS,
        vocab_fingerprint=VOCAB.fingerprint,
        vocab_size=VOCAB.size,
        parameters=count_parameters(SETTINGS.model, VOCAB.size),
        metric="bpc",
    )
    lifecycle.create(run, VOCAB.to_json())
    model = TransformerXL(SETTINGS.model, VOCAB.size)
    weights = {key: parameter.detach() for key, parameter in model.named_parameters()}
    checkpoint.save(run.directory / run_directory.LAST, Checkpoint(grouped("model", weights), state_of()))
    if best:
        zeros = {key: torch.zeros_like(value) for key, value in weights.items()}
        checkpoint.save(run.directory / run_directory.BEST, Checkpoint(grouped("model", zeros), state_of(step=2)))
    return run, weights


def open_run(runs_dir, name="mine", **changed):
    return loading.open_run(run_directory.find(name, runs_dir), **{"device": "cpu", "precision": None, **changed})


def test_a_run_is_opened_with_its_weights_and_its_vocabulary(tmp_path):
    run, weights = saved_run(tmp_path)
    opened = open_run(tmp_path)
    assert opened.run == run
    assert opened.vocab.symbols == VOCAB.symbols
    assert opened.precision == "fp32"
    assert not opened.model.training
    assert all(parameter.equal(weights[name]) for name, parameter in opened.model.named_parameters())


def test_averaged_weights_of_the_last_checkpoint_are_loaded(tmp_path):
    run, weights = saved_run(tmp_path)
    mean = {key: torch.full_like(value, 0.5) for key, value in weights.items()}
    tensors = {**grouped("model", weights), **grouped("average", mean)}
    checkpoint.save(run.directory / run_directory.LAST, Checkpoint(tensors, state_of()))
    opened = open_run(tmp_path)
    assert all((parameter == 0.5).all() for parameter in opened.model.parameters())
    assert opened.checkpoint.tensors.keys() == grouped("average", mean).keys()


def test_the_state_of_the_training_is_not_loaded(tmp_path):
    run, weights = saved_run(tmp_path)
    more = {"optimizer.w.exp_avg": torch.ones(3), "memory.0": torch.ones(3), "rng.cpu": torch.ones(3)}
    checkpoint.save(run.directory / run_directory.LAST, Checkpoint({**grouped("model", weights), **more}, state_of()))
    saved = open_run(tmp_path).checkpoint
    assert saved.tensors.keys() == grouped("model", weights).keys()
    assert saved.weights_digest() == checkpoint.load(run.directory / run_directory.LAST).weights_digest()


def test_the_best_weights_are_preferred(tmp_path):
    saved_run(tmp_path, best=True)
    opened = open_run(tmp_path)
    assert opened.checkpoint.state["step"] == 2
    assert not any(parameter.any() for parameter in opened.model.parameters())


def test_a_given_precision_replaces_that_of_training(tmp_path):
    saved_run(tmp_path)
    assert open_run(tmp_path, precision="bf16").precision == "bf16"
    with pytest.raises(UsageError, match="fp16 needs a CUDA device"):
        open_run(tmp_path, precision="fp16")


def test_weights_of_a_model_with_other_settings_are_rejected(tmp_path):
    """Their shapes may be equal, and they would then compute another function."""
    run, weights = saved_run(tmp_path)
    other = dataclasses.replace(SETTINGS.model, memory_start="zeros", window=7)
    path = run.directory / run_directory.LAST
    checkpoint.save(path, Checkpoint(grouped("model", weights), state_of(other)))
    with pytest.raises(RunError, match=r"other settings .*\(model.memory_start, model.window\)"):
        open_run(tmp_path)


def test_settings_that_matter_in_training_only_may_differ(tmp_path):
    run, weights = saved_run(tmp_path)
    other = dataclasses.replace(SETTINGS.model, dropout=0.3, attention_dropout=0.2, init_std=0.5)
    checkpoint.save(run.directory / run_directory.LAST, Checkpoint(grouped("model", weights), state_of(other)))
    assert open_run(tmp_path).run == run


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (Vocab("char", list("cba \n")).to_json(), "not the vocabulary of the weights"),
        (VOCAB.to_json()[:-9], r"this is not a vocabulary of txl \(.* line 1 column .*\)"),
    ],
)
def test_another_or_a_damaged_vocabulary_is_rejected(tmp_path, text, what):
    run, _ = saved_run(tmp_path)
    (run.directory / run_directory.VOCAB).write_text(text)
    with pytest.raises(VocabularyError, match=f"vocab.json: {what}; restore it from a copy$"):
        open_run(tmp_path)
