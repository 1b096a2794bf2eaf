"""Reading named tensors from files of every format, and nothing but tensors."""

import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.errors import rejection
from tests.workflows.exchange.hostile import HOSTILE, MARKER
from txlcli.errors import RunError
from txlcli.workflows.exchange import huggingface, weights

TENSORS = {
    "word_emb.emb_layers.0.weight": torch.arange(35.0).view(5, 7),
    "r_w_bias": torch.randn(3, 11, generator=torch.Generator().manual_seed(1)),
}
WRITERS = {
    "model.safetensors": lambda path: save_file(TENSORS, path),
    "variables.npz": lambda path: np.savez(path, **{name: tensor.numpy() for name, tensor in TENSORS.items()}),
    "compressed.npz": lambda path: np.savez_compressed(path, **{name: t.numpy() for name, t in TENSORS.items()}),
    "pytorch_model.bin": lambda path: torch.save(OrderedDict(TENSORS), path),
    "legacy.pt": lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False),
    "parameters.pth": lambda path: torch.save({n: torch.nn.Parameter(t) for n, t in TENSORS.items()}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_tensors(tmp_path, name):
    WRITERS[name](tmp_path / name)
    read = weights.read(tmp_path / name)
    assert read.keys() == TENSORS.keys()
    assert all(read[key].equal(tensor) for key, tensor in TENSORS.items())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "variables.npz"])
def test_a_changed_number_in_a_zip_is_rejected(tmp_path, name):
    WRITERS[name](tmp_path / name)
    content = bytearray((tmp_path / name).read_bytes())
    content[content.index(TENSORS["r_w_bias"].numpy().tobytes()) + 6] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match="has a wrong checksum"):
        weights.read(tmp_path / name)


def test_an_npz_is_read_in_any_precision_without_arrays_that_are_not_weights(tmp_path):
    dtypes = {"half": np.float16, "double": np.float64, "big_endian": np.dtype(">f4"), "long": np.longdouble}
    arrays = {name: np.array([0.5, -7.0], dtype=dtype) for name, dtype in dtypes.items()}
    np.savez(tmp_path / "a.npz", **arrays, global_step=np.int64(7), names=np.array(["a"]))
    read = weights.read(tmp_path / "a.npz")
    assert {name: tensor.tolist() for name, tensor in read.items()} == {name: [0.5, -7.0] for name in dtypes}


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_become_infinite(tmp_path):
    np.savez(tmp_path / "a.npz", kernel=np.array([1e300, -7.0]))
    assert weights.read(tmp_path / "a.npz")["kernel"].tolist() == [math.inf, -7.0]


def refusal(path):
    return rejection(RunError, weights.read, path).removeprefix(f"{path}: ")


def test_a_missing_file_is_rejected(tmp_path):
    assert "no file at" in refusal(tmp_path / "a.bin")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_file_is_rejected(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert refusal(path).startswith("damaged, or not a file of weights (")


def test_arrays_of_objects_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "a.npz", kernel=np.array([HOSTILE["os.system"][0]], dtype=object))
    assert "Object arrays cannot be loaded" in refusal(tmp_path / "a.npz")
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize(
    "thing", [{"state_dict": TENSORS}, {"a": 7}, list(TENSORS.values()), "text", TENSORS | {5: torch.ones(3)}]
)
def test_more_or_less_than_a_state_dict_is_rejected(tmp_path, thing):
    torch.save(thing, tmp_path / "a.bin")
    assert "not a state dict" in refusal(tmp_path / "a.bin")


POSITION, CRIT = "layers.0.dec_attn.r_net.weight", "crit.out_layers.0.bias"
BARE = ["word_emb.emb_projs.0", POSITION, CRIT]
HUGGING_FACE = ["transformer.word_emb.emb_projs.0", f"transformer.{POSITION}", CRIT]
TF = ["transformer/adaptive_embed/lookup_table", "transformer/layer_0/rel_attn/r/kernel"]


@pytest.mark.parametrize(
    ("names", "bare", "system"),
    [
        (BARE, BARE, "pytorch"),
        ([f"module._orig_mod.{name}" for name in BARE], BARE, "pytorch"),
        ([f"transformer.{name}" for name in BARE], BARE, "pytorch"),  # its softmax is inside, too
        ([name.replace("layers.0.", "layers.0._orig_mod.") for name in BARE], BARE, "pytorch"),
        (HUGGING_FACE, HUGGING_FACE, "hugging_face"),
        ([f"_orig_mod.model.{name}" for name in HUGGING_FACE], HUGGING_FACE, "hugging_face"),
        ([f"_fsdp_wrapped_module.{name}" for name in HUGGING_FACE], HUGGING_FACE, "hugging_face"),
        ([f"{name}:0" for name in TF], TF, "tf"),
        ([f"tower_0/{name}" for name in TF], TF, "tf"),
    ],
)
def test_names_of_wrappers_and_of_surrounding_models_are_removed(tmp_path, names, bare, system):
    torch.save({"pos_emb.inv_freq": torch.ones(2)} | {name: torch.ones(1) for name in names}, tmp_path / "state.pt")
    read = weights.read(tmp_path / "state.pt")
    assert list(read) == ["pos_emb.inv_freq", *bare]
    assert weights.system_of(read, tmp_path) == system


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_are_read_by_their_index(tmp_path, ending):
    write = save_file if ending == "safetensors" else torch.save
    stem = "model" if ending == "safetensors" else "pytorch_model"
    files = {name: f"{stem}-0000{number}-of-00002.{ending}" for number, name in enumerate(TENSORS, start=1)}
    for name, file in files.items():
        write({name: TENSORS[name]}, tmp_path / file)
    index = tmp_path / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 7}, "weight_map": files}))
    assert huggingface.file_of_weights(tmp_path) == index
    read = weights.read(index)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {n: t.tolist() for n, t in TENSORS.items()}
    (tmp_path / files["r_w_bias"]).unlink()
    with pytest.raises(RunError, match=f"no file at {tmp_path / files['r_w_bias']}"):
        weights.read(index)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": 7}'])
def test_a_damaged_index_is_rejected(tmp_path, content):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    assert refusal(path).startswith("damaged, or not a file of weights (")


@pytest.mark.parametrize(
    "names",
    [
        ("transformer.wte.weight", "lm_head.weight"),
        ("word_emb.emb_layers.0.weight", "layers.0.dec_attn.qkv_net.weight", "r_emb", "r_w_bias"),  # attn_type 1
    ],
)
def test_names_of_another_model_are_rejected(tmp_path, names):
    with pytest.raises(RunError, match=f"none of its {len(names)} tensors"):
        weights.system_of(dict.fromkeys(names, torch.ones(1)), tmp_path / "m")


def test_safetensors_are_preferred_to_a_pickle(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    assert huggingface.file_of_weights(tmp_path) == tmp_path / "pytorch_model.bin"
    (tmp_path / "model.safetensors").touch()
    assert huggingface.file_of_weights(tmp_path) == tmp_path / "model.safetensors"
