"""txl train --from: which weights a new run begins with, what it says about them, what it refuses."""

import re

import numpy as np
import pytest
import torch

from tests.commands.novel import WORDS, card, done, json_of, refusal, store
from tests.core.builders import model_settings
from tests.core.training.runs import assert_equal
from txlcli.config import recipe
from txlcli.core.architectures.registry import make_model
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.runs import run_directory
from txlcli.workflows.training.initial_weights import InitialWeights

STILL = ["--set", "train.lr=1e-30", "--set", "train.warmup_steps=0", "--max-steps", 1]
"""Options of a training run whose only step changes no weight."""


def weights_of(run, name="last.safetensors"):
    return checkpoint.load(run_directory.find(run, run_directory.Path("runs")).directory / name).group("model")


def test_a_run_begins_with_the_best_weights_and_the_settings_of_another_and_a_fresh_optimizer(here):
    said = done("train", "--from", "byte", "--name", "tuned", *STILL).stderr
    assert "beginning from runs/byte/best.safetensors (step " in said
    assert_equal(weights_of("tuned"), weights_of("byte", "best.safetensors"))
    state = checkpoint.load(here / "runs/tuned/last.safetensors")
    assert float(state.group("optimizer")["embedding.tables.0.step"]) == 1
    origin = card("runs/tuned")["origin"]
    best = checkpoint.load(here / "runs/byte/best.safetensors")
    assert (origin["run"], origin["weights_sha256"], origin["new_symbols"]) == ("runs/byte", best.weights_digest(), 0)
    assert recipe.differences([card(f"runs/{name}")["settings"] for name in ("byte", "tuned")]) == {
        "train.lr": [0.03, 1e-30]
    }
    done("train", "--resume", "tuned", "--max-steps", 2)  # the card keeps its origin
    assert card("runs/tuned")["origin"] == origin
    assert json_of("runs", "show", "tuned")["origin"] == origin
    assert "runs/byte/best.safetensors, step" in done("runs", "show", "tuned").stdout


def test_a_file_of_weights_of_a_run_is_a_beginning_and_can_be_evaluated_but_not_resumed(here):
    done("train", "tiny.toml", "--name", "kept", "--set", "train.keep_every=3")
    assert {path.stem for path in (here / "runs/kept").glob("step-*")} == {"step-3", "step-6"}
    done("train", "--from", "runs/kept/step-3.safetensors", "--name", "tuned", *STILL)
    assert_equal(weights_of("tuned"), weights_of("kept", "step-3.safetensors"))
    assert card("runs/tuned")["origin"]["step"] == 3
    results = [json_of("eval", f"runs/kept/{name}.safetensors") for name in ("step-3", "last")]
    assert [result["step"] for result in results] == [3, 7]
    assert results[0]["rows"][0]["loss_nats"] != results[1]["rows"][0]["loss_nats"]
    files = [f"runs/kept/step-{step}.safetensors" for step in (3, 6)]
    assert json_of("speed", files[0], "--attn-len", 11, "--repeat", 1)["model"] == f"run {files[0]}"
    group = json_of("recl", *files, "--start", 3, "--step", 4, "--longest", 15, "--positions", 40)
    assert [model["run"] for model in group["models"]] == files
    difference = json_of("runs", "difference", *files, "--split", "train")
    assert [difference[side]["run"] for side in ("first", "second")] == files
    done("runs", "compare", *files, "--plot", "curves.svg")
    assert "twice" in refusal("runs", "compare", files[0], "kept/step-3.safetensors")
    assert "--from runs/kept/step-3.safetensors" in refusal("train", "--resume", "kept/step-3.safetensors")


def prepare_more_words(here):
    """Prepare the store "more", with three new words; "fox" is not in it."""
    for split in ("train", "valid", "test"):
        text = (here / "novel" / f"{split}.txt").read_text().replace("fox", "wolf")
        path = here / "more" / f"{split}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "bear bear wolf hare\n" * 9)
    done("prepare", "more", "--tokenizer", "word", "--name", "more")


def test_words_of_a_larger_vocabulary_keep_their_rows_and_the_new_ones_are_counted(here):
    prepare_more_words(here)
    result = done("train", "more", "--from", "word", *STILL)
    old, new = store("word").vocab, store("more").vocab
    known = [word for word in new.symbols if word in old.ids_of]
    assert set(new.symbols) - set(known) == {"wolf", "bear", "hare"}
    assert set(WORDS) - {"fox"} <= set(known)
    expected = f"{len(known)} of {new.size} words keep their rows, 3 are new"
    assert re.search(rf"beginning from runs/word/best\.safetensors \(step \d\): {expected}", result.stderr)
    assert card("runs/more")["origin"]["new_symbols"] == 3
    assert card("runs/more")["settings"]["corpus"]["store"] == "more"
    given, before = weights_of("more"), weights_of("word", "best.safetensors")
    for name in ("embedding.tables.0", "softmax.biases.0"):
        ours, theirs = given.pop(name), before.pop(name)
        assert torch.equal(ours[[new.ids_of[word] for word in known]], theirs[[old.ids_of[word] for word in known]])
    assert_equal(given, before)
    assert "would train" in done("train", "more", "--from", "word", "--dry-run").stdout


@pytest.mark.parametrize("div_val", [1, 2])
def test_rows_of_words_in_bands_are_copied_between_bands_of_the_same_width(div_val):
    # Ids of the new vocabulary of 13 in the old one of 11, both with the bands 0-3, 4-6 and the rest.
    old_ids = np.array([10, 0, -1, 5, 4, 3, -1, 9, 8, -1, 1, 2, 6])
    settings = model_settings(cutoffs=(4, 7), div_val=div_val, d_embed=8)
    old, new = (make_model(settings, size) for size in (11, 13))
    saved = Checkpoint(
        grouped("model", {name: tensor.detach() for name, tensor in old.named_parameters()}), {"step": 7}
    )
    run = run_directory.Run(None, "tiny", None, vocab_fingerprint="", vocab_size=11, parameters=0, metric="ppl")
    weights = InitialWeights(run=run, checkpoint=saved, settings=settings, old_ids=old_ids)
    before = {name: tensor.detach().clone() for name, tensor in new.named_parameters()}
    weights.copy_into(new)
    theirs, ours = (dict(model.named_parameters()) for model in (old, new))
    for name in ("embedding.tables", "softmax.biases"):
        for new_id, old_id in enumerate(old_ids):
            band, place = place_of(new_id)
            old_band, old_place = place_of(max(0, old_id))
            keeps = old_id >= 0 and (div_val == 1 or band == old_band)
            row = theirs[f"{name}.{old_band}"][old_place] if keeps else before[f"{name}.{band}"][place]
            assert torch.equal(ours[f"{name}.{band}"][place], row), new_id
    for name, tensor in theirs.items():
        if not name.startswith(("embedding.tables", "softmax.biases")):
            assert torch.equal(ours[name], tensor), name


def place_of(number):
    """Return the band of an id of the vocabularies above, and its place there."""
    return next((band, number - first) for band, first in ((2, 7), (1, 4), (0, 0)) if number >= first)


def test_what_does_not_fit_is_refused_with_the_setting(here):
    message = refusal("train", "tiny.toml", "--from", "byte", "--set", "model.n_layers=3", "--set", "model.norm=pre")
    assert "model.n_layers is 3, there it is 2; model.norm is pre, there it is post" in message
    assert "--vocab runs/byte/vocab.json" in refusal("train", "word", "--from", "byte", code=1)
    assert "leave out --from" in refusal("train", "--resume", "byte", "--from", "byte")
    assert 'did you mean "byte"' in refusal("train", "--from", "bite")
    said = done("train", "--from", "byte", "--set", "model.window=4", *STILL).stderr
    assert "model.window is 4" in said


def test_an_import_does_not_tell_how_to_train_and_begins_with_the_settings_that_are_given(here):
    done("export", "byte", "hf", "--format", "hf")
    done("import", "hf", "--name", "imported", "--store", "novel")
    assert "does not tell how to train" in refusal("train", "--from", "imported")
    done("train", "--from", "imported", "--name", "tuned", *STILL, "--set", "train.max_steps=9")
    assert_equal(weights_of("tuned"), weights_of("byte", "best.safetensors"))
