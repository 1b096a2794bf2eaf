"""txl import and txl export: weights of other systems become runs, and runs become Hugging Face folders."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.commands.novel import RECIPE, Saved, card, contents, done, json_of, names_in, refusal
from tests.core.builders import V
from tests.core.foreign import draw_weights, hugging_face_state_dict, pytorch_state_dict, tf_variables
from tests.faults.sample import FOREIGN
from tests.workflows.exchange.hostile import HOSTILE, MARKER

ADAPTIVE = ["model.cutoffs=[5,11]", "model.div_val=2", "model.d_embed=16", "model.tie_biases=false"]
EVALUATION = ["--batch-size", 3]  # the only evaluation setting that is not in Hugging Face's configuration
TO_HF = ["--format", "hf"]


def exported(run, directory="hf"):
    """Export a run as a folder of Hugging Face; return the facts that are told."""
    return json_of("export", run, directory, *TO_HF)


@pytest.fixture(scope="module")
def trained_novel(trained_novel, tmp_path_factory):
    """Train a further run, with an adaptive softmax and a memory that starts with zeros."""
    directory = tmp_path_factory.mktemp("adaptive") / "here"
    shutil.copytree(trained_novel, directory)
    changes = (*ADAPTIVE, "model.memory_start=zeros", "corpus.store=word", "train.valid_every=3")
    where = ["--data-dir", directory / "data", "--runs-dir", directory / "runs", "--name", "adaptive"]
    done("train", directory / "tiny.toml", "--max-steps", 3, *(f"--set={change}" for change in changes), *where)
    return directory


def refused(*arguments, code=1):
    """Return the error of an import that must leave the runs unchanged."""
    before = contents(Path("runs"))
    error = refusal("import", *arguments, code=code)
    assert contents(Path("runs")) == before
    assert not Path(MARKER).exists()
    return error


# --- export and import again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["adaptive", "word"])
def test_an_exported_run_is_imported_with_the_same_weights(here, run):
    told = exported(run)
    assert told["files"] == ["config.json", "model.safetensors", "vocab.json", "vocab.txt"] == names_in(here / "hf")
    json_of("import", "hf")
    assert Saved("runs/hf/best.safetensors") == Saved(f"runs/{run}/best.safetensors")
    ours, theirs = card("runs/hf"), card(f"runs/{run}")
    assert ours["settings"]["model"] == {
        **theirs["settings"]["model"],
        "d_embed": theirs["settings"]["model"].get("d_embed", 8),
        "tie_projections": [False, True, True][: 1 + 2 * (run == "adaptive")],
    }
    same = ("vocab_fingerprint", "vocab_size", "parameters", "metric")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


def test_an_imported_run_is_evaluated_with_the_same_settings_and_loss_and_generates_the_same_text(here):
    exported("adaptive")
    done("import", "hf", "--name", "back", "--store", "word")
    (ours,), (theirs,) = (json_of("eval", run, *EVALUATION)["rows"] for run in ("back", "adaptive"))
    same = ("tokens", "lanes", "mem_len", "attn_len_min", "attn_len_max")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert ours["loss_nats"] == pytest.approx(theirs["loss_nats"], rel=1e-6)
    options = ["--prompt", "the lazy", "--tokens", 11, "--greedy"]
    assert done("generate", "back", *options).stdout == done("generate", "adaptive", *options).stdout
    assert json_of("generate", "back", "--at", 7, "--context", 5, "--tokens", 3)["samples"]
    assert json_of("speed", "back", "--attn-len", 11, "--repeat", 1)["model"] == "run runs/back"
    assert "holds weights only" in refusal("train", "--resume", "back", code=1)


def test_an_export_notes_that_the_memory_started_empty(here):
    assert len(exported("word")["notes"]) == 1
    assert exported("adaptive", "other")["notes"] == []
    done("import", "hf", "--store", "word")  # a key of txl in config.json records how it started
    config = json.loads((here / "hf/config.json").read_text())
    assert config.pop("memory_start") == "empty"
    (here / "hf/config.json").write_text(json.dumps(config))
    done("import", "hf", "--name", "theirs", "--store", "word")
    ours, back, theirs = (json_of("eval", run, *EVALUATION)["rows"][0]["loss_nats"] for run in ("word", "hf", "theirs"))
    assert back == pytest.approx(ours, rel=1e-6)
    assert theirs != pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("tokenizer", ["byte", "sentencepiece"])
def test_a_run_without_words_is_exported_with_its_vocabulary_as_json(here, tokenizer):
    assert exported(tokenizer)["files"] == ["config.json", "model.safetensors", "vocab.json"]
    done("import", "hf")
    assert card("runs/hf")["metric"] == card(f"runs/{tokenizer}")["metric"]
    assert Saved("runs/hf/best.safetensors") == Saved(f"runs/{tokenizer}/best.safetensors")


# --- where the vocabulary and the store come from --------------------------------------------------------------------


def test_the_store_is_the_one_of_the_folder_or_the_recipe_if_it_has_the_vocabulary(here):
    exported("adaptive", "word")
    told = json_of("import", "word", "--name", "hf")
    facts = {"system": "Hugging Face TransfoXL", "store": "data/word.h5", "boundary": "<eos>", "unknown": "<unk>"}
    facts |= {"prepare": None, "cutoffs": [5, 11], "settings_from": "its configuration", "next": "txl eval runs/hf"}
    assert told.items() >= facts.items()
    assert card("runs/hf")["settings"]["corpus"]["store"] == "word"
    assert json_of("eval", "hf")["rows"][0]["tokens"] > 0
    (here / "word").rename(here / "novel2")
    assert json_of("import", "novel2")["store"] is None
    (here / "word.toml").write_text(RECIPE.replace('store = "novel"', 'store = "word"'))
    assert json_of("import", "novel2", "--recipe", "word.toml", "--name", "by-recipe")["store"] == "data/word.h5"


def test_without_a_store_the_text_can_still_be_prepared(here):
    exported("adaptive")
    shutil.copyfile(here / "data/novel.h5", here / "data/taken.h5")  # of another vocabulary
    (here / "data/word.h5").unlink()
    (here / "data/broken.h5").write_text("not a store")
    told = json_of("import", "hf", "--data-dir", "data", "--runs-dir", "runs")
    assert told["store"] is None
    assert told["prepare"] == told["next"] == "txl prepare CORPUS --vocab runs/hf/vocab.json --name hf"
    assert told["prepare"] in refusal("eval", "hf", code=1)
    assert card("runs/hf")["settings"]["corpus"]["store"] == "hf"
    done(*told["prepare"].replace("CORPUS", "novel").split()[1:])
    told = json_of("eval", "hf")
    assert (told["text"], told["may_be_learned"]) == ("hf test", None)
    (here / "data/hf.h5").unlink()
    assert json_of("import", "hf", "--name", "taken")["prepare"].endswith(" --name taken-2")
    assert card("runs/taken")["settings"]["corpus"]["store"] == "taken-2"
    done("import", "hf", "--force")
    assert json_of("eval", "hf", "--text", "novel/test.txt")["rows"][0]["tokens"] > 0


@pytest.mark.parametrize(
    ("kept", "mark", "options"),
    [("vocab.txt", b"\xef\xbb\xbf", []), ("words", b"", ["--vocab", "words"]), (None, b"", [])],
    ids=["a list with a byte order mark", "a given file", "a store"],
)
def test_the_vocabulary_comes_from_the_folder_a_file_or_a_store(here, kept, mark, options):
    exported("adaptive")
    words = (here / "hf/vocab.txt").read_bytes()
    for name in ("vocab.txt", "vocab.json"):
        (here / "hf" / name).unlink()
    if kept:
        (here / ("hf" if "." in kept else ".") / kept).write_bytes(mark + words)
    assert json_of("import", "hf", "--store", "word", *options)["store"] == "data/word.h5"
    assert card("runs/hf")["vocab_fingerprint"] == card("runs/word")["vocab_fingerprint"]


def test_a_recipe_provides_the_settings_that_a_directory_lacks(here):
    exported("adaptive")
    (here / "mine.toml").write_text(RECIPE.replace("lr = 3e-2", "lr = 7e-2").replace("d_model = 8", "d_model = 6"))
    done("import", "hf", "--recipe", "mine.toml", "--set", "eval.batch_size=3")
    told = card("runs/hf")
    assert (told["recipe"], told["settings"]["train"]["lr"]) == ("mine", 0.07)
    assert told["settings"]["model"]["d_model"] == 8
    assert told["settings"]["eval"]["batch_size"] == 3


# --- weights of the released code ------------------------------------------------------------------------------------

FOREIGN_CONFIG = {
    **{"model_type": "transfo-xl", "vocab_size": V, "cutoffs": [5, 11], "div_val": 2, "n_layer": 2, "d_model": 14},
    **{"d_embed": 14, "n_head": 3, "d_head": 11, "d_inner": 17, "untie_r": False, "clamp_len": -1},
}


@pytest.fixture
def foreign(here):
    """Write the same weights as a state dict, as two dumps and as a folder; a vocabulary and a recipe."""
    weights = draw_weights(div_val=2)
    torch.save({f"module.{name}": t for name, t in pytorch_state_dict(weights, div_val=2).items()}, here / "state.pt")
    variables = tf_variables(weights, div_val=2)
    np.savez(here / "tf.npz", global_step=np.int64(7), **{f"{name}:0": t.numpy() for name, t in variables.items()})
    save_file(variables | {"global_step": torch.tensor(7)}, here / "tf.safetensors")
    (here / "folder").mkdir()
    torch.save(hugging_face_state_dict(weights, div_val=2), here / "folder/pytorch_model.bin")
    (here / "folder/config.json").write_text(json.dumps(FOREIGN_CONFIG))
    words = "".join(f"w{number}\n" for number in range(V - 1)) + "<eos>\n"
    (here / "folder/vocab.txt").write_text(words)
    (here / "words.txt").write_text(words)
    (here / "foreign.toml").write_text(FOREIGN)
    return here


BARE = ["--recipe", "foreign.toml", "--vocab", "words.txt"]


def test_the_same_weights_become_the_same_run_from_every_system(foreign):
    for source, system in (
        ("state.pt", "the released PyTorch code"),
        ("tf.npz", "the released TF code"),
        ("tf.safetensors", "the released TF code"),
    ):
        name = source.replace(".", "-")
        told = json_of("import", source, *BARE, "--name", name)
        assert (told["system"], told["run"], told["vocab_size"]) == (system, f"runs/{name}", V)
    done("import", "folder")
    expected = Saved("runs/folder/best.safetensors")
    for name in ("state-pt", "tf-npz", "tf-safetensors"):
        assert Saved(f"runs/{name}/best.safetensors") == expected
    assert card("runs/tf-npz")["settings"]["train"] == card("runs/word")["settings"]["train"]
    assert card("runs/tf-npz")["settings"]["model"]["cutoffs"] == [5, 11]


WEIGHTS = "folder/pytorch_model.bin"


def test_rows_that_pad_the_vocabulary_are_noted(foreign):
    tensors = torch.load(foreign / WEIGHTS)
    for name in ("transformer.word_emb.emb_layers.2.weight", "crit.out_layers.2.weight", "crit.out_layers.2.bias"):
        rows = torch.zeros(24 - V, *tensors[name].shape[1:])
        tensors[name] = torch.cat([tensors[name], rows])
    torch.save(tensors, foreign / WEIGHTS)
    (note,) = json_of("import", "folder")["notes"]
    assert str(24 - V) in note


# --- imports that are rejected ---------------------------------------------------------------------------------------


def configured(**changed):
    """Return a function that changes the configuration of the folder."""
    config = json.dumps(FOREIGN_CONFIG | changed)
    return lambda here: (here / "folder/config.json").write_text(config)


def without(*names):
    return lambda here: [(here / name).unlink() for name in names]


REJECTED = [
    (None, "nowhere", "no file or folder at nowhere"),
    (None, "state.pt --vocab words.txt", "name its recipe"),
    (None, "folder --store word", "another vocabulary than folder/vocab.txt"),
    (without("folder/vocab.txt"), "folder", "come without a vocabulary"),
    (without("data/novel.h5"), "state.pt --recipe foreign.toml", "come without a vocabulary"),
    (configured(d_inner=16), "folder", "CoreNet.0.weight: (17, 14), the settings need (16, 14)"),
    (configured(n_head=11, d_head=3), "folder", "(3, 11), the settings need (11, 3)"),  # of the same product
]


@pytest.mark.parametrize(("change", "arguments", "telling"), REJECTED)
def test_an_import_that_cannot_work_is_rejected(foreign, change, arguments, telling):
    if change is not None:
        change(foreign)
    assert telling in refused(*arguments.split(), code=2 if telling == "name its recipe" else 1)


def test_force_replaces_a_run_after_a_successful_import_only(foreign):
    (foreign / "folder/pytorch_model.bin").rename(foreign / "good.bin")
    (foreign / "folder/pytorch_model.bin").write_text("not weights")
    assert "not a file of weights" in refused("folder", "--name", "word", "--force")
    (foreign / "good.bin").rename(foreign / "folder/pytorch_model.bin")
    done("import", "folder", "--name", "word", "--force")
    assert card("runs/word")["vocab_size"] == V
    assert names_in(foreign / "runs/word") == ["best.safetensors", "run.json", "vocab.json"]
    assert not list((foreign / "runs").glob("*.replaced"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "vocab.bin", "vocab.pkl"])
def test_no_code_of_a_hostile_directory_is_run(foreign, name):
    thing, name_of_code = HOSTILE["os.system"]
    torch.save({"idx2sym": ["a"], "more": thing}, foreign / "folder" / name)
    if name == "vocab.pkl":
        (foreign / "folder" / name).write_bytes(pickle.dumps(thing))
    error = refused("folder")
    assert error.startswith(f"folder/{name}: ")
    assert name_of_code in error


# --- exports that are refused ----------------------------------------------------------------------------------------


def test_only_an_earlier_export_is_replaced_and_only_with_force(here):
    (here / "hf").mkdir()
    exported("adaptive")
    (here / "mine").mkdir()
    (here / "mine/config.json").write_text("{}")
    (here / "other").mkdir()
    for name, content in (("config.json", "{}"), ("vocab.json", '{"the": 0}')):
        (here / "other" / name).write_text(content)
    before = {name: contents(here / name) for name in ("hf", "novel", "mine", "other")}
    for directory, force, telling in (
        ("hf", [], "--force"),
        ("novel", [], ""),
        ("novel", ["--force"], "novel holds test.txt"),
        ("tiny.toml", ["--force"], "tiny.toml exists"),
        ("mine", ["--force"], "which no export of this format wrote"),
        ("other", ["--force"], "which no export of this format wrote"),
    ):
        assert telling in refusal("export", "byte", directory, *force, *TO_HF, code=1)
    assert {name: contents(here / name) for name in before} == before
    (here / "hf/__pycache__").mkdir()  # as when the code of a folder was imported
    done("export", "byte", "hf", "--force", *TO_HF)
    done("import", "hf")
    assert card("runs/hf")["vocab_size"] == 256
