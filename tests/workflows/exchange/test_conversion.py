"""Weights of other systems: every tensor is converted, and a converted model predicts the same as the oracle."""

import numpy as np
import pytest
import torch

from tests import reference
from tests.core.builders import V, draw_tokens, model_settings, read_segments, small_model
from tests.core.foreign import (
    CUTOFFS,
    SIZES,
    D,
    H,
    d,
    draw_weights,
    hugging_face_state_dict,
    pytorch_state_dict,
    tf_variables,
)
from tests.errors import rejection
from txlcli.config.model_settings import TransformerSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import RunError, VocabularyError
from txlcli.workflows.exchange.conversion import Layout, missing_setting, to_hugging_face
from txlcli.workflows.exchange.layouts import SYSTEMS
from txlcli.workflows.exchange.weights import padding_of

L, M, T = 5, 7, 13
NARROW, DIV_4 = {"cutoffs": CUTOFFS, "d_embed": 6}, {"cutoffs": CUTOFFS, "div_val": 4, "d_embed": 32}
KINDS = {
    "plain": {},
    "plain_narrow": {"d_embed": 6, "tie_projections": (True,)},
    "untied_tables": {"tie_embeddings": False},
    "biases_per_layer": {"tie_biases": False},
    "pre_released": {"norm": "pre_released"},
    "cut": {"cutoffs": CUTOFFS},
    "cut_narrow": NARROW,
    "cut_narrow_nothing_tied": {**NARROW, "tie_embeddings": False, "tie_projections": (False,) * 3},
    "div_2": {"cutoffs": CUTOFFS, "div_val": 2},
    "div_2_wide": {"cutoffs": CUTOFFS, "div_val": 2, "d_embed": 28},
    "div_2_untied_tables": {"cutoffs": CUTOFFS, "div_val": 2, "tie_embeddings": False, "tie_biases": False},
    "div_4": DIV_4,
    "div_4_every_projection_tied": {**DIV_4, "tie_projections": (True,) * 3},
    "div_4_no_projection_tied": {**DIV_4, "tie_biases": False, "tie_projections": (False,) * 3},
    "div_2_same_width_not_projected": {"cutoffs": CUTOFFS, "div_val": 2, "project_same_width": False},
}
IN_TF = [
    kind
    for kind, changed in KINDS.items()
    if changed.get("tie_embeddings", True) and changed.get("norm", "post") == "post"
]


ALL = [(system, kind) for system in ("pytorch", "hugging_face", "tf") for kind in (IN_TF if system == "tf" else KINDS)]


@pytest.mark.parametrize(("system", "kind"), ALL)
def test_written_weights_are_read_as_the_same_numbers(system, kind):
    model = small_model(dtype=torch.float32, **KINDS[kind])
    layout, ours = Layout(system, model.settings, V), dict(model.named_parameters())
    theirs = layout.write(ours)
    assert all(tensor.is_contiguous() for tensor in theirs.values())
    back = layout.read(theirs, "here")
    assert back.keys() == ours.keys()
    assert sum(map(len, layout.our_names.values())) == len(ours)  # each is linked once
    assert all(back[name].equal(parameter) for name, parameter in ours.items())


# --- weights of other systems, compared with the oracle --------------------------------------------------------------

WEIGHTS = {
    "plain": {"cutoffs": ()},
    "plain_narrow": {"cutoffs": (), "d_embed": 6, "tied": (True,)},
    "cut": {},
    "cut_narrow": {"d_embed": 6, "tied": (True, True, True)},
    "div_2": {"div_val": 2},
    "div_4_biases_per_layer": {"div_val": 4, "d_embed": 32, "tie_biases": False},
    "div_2_no_projection_tied": {"div_val": 2, "tied": (False, False, False)},
    "div_2_same_width_not_projected": {"div_val": 2, "project_same_width": False},
    "div_2_untied_tables": {"div_val": 2, "tie_tables": False},
}


def settings_of(**kind):
    """Return the settings of the model whose weights `draw_weights(**kind)` draws."""
    kind = {"cutoffs": CUTOFFS, **kind}
    tied, tables = kind.pop("tied", None), kind.pop("tie_tables", True)
    return TransformerSettings(**SIZES, **kind, tie_projections=tied, tie_embeddings=tables)


def imported(system, theirs, settings):
    """Return the model with the imported weights, in float64 (converting them loses nothing)."""
    tensors = Layout(system, settings, V).read(theirs, "here")
    model = TransformerXL(settings, V)
    model.load_state_dict(tensors)
    return model.double().eval()


def predictions_of_both(model, weights):
    tokens = draw_tokens(1, T)
    got, _ = read_segments(model, tokens, [L, L, T - 2 * L], mem_len=M)
    segments = [part.tolist() for part in tokens[0].split(L)]
    expected, _ = reference.forward_segments(segments, weights, mem_len=M)
    return got[0].detach().numpy(), np.concatenate(expected)


def stored_weights(system, weights, *, div_val=1, tied=None, **_):
    """Return the weights as a system stores them, with constants that it stores as well."""
    if system == "tf":
        return tf_variables(weights, div_val=div_val, tied=tied)
    write, prefix = (pytorch_state_dict, "") if system == "pytorch" else (hugging_face_state_dict, "transformer.")
    return write(weights, div_val=div_val) | {f"{prefix}pos_emb.inv_freq": torch.ones(7)}


def has(system, kind):
    """Return True if a system has such models."""
    if system == "tf":
        return kind != "div_2_untied_tables"
    projected = "not_projected" not in kind  # PyTorch projects every band if the bands have different widths
    return projected and (system == "hugging_face" or "biases_per_layer" not in kind)


SYSTEMS_AND_KINDS = [(system, kind) for system in SYSTEMS for kind in WEIGHTS if has(system, kind)]


@pytest.mark.parametrize(("system", "kind"), SYSTEMS_AND_KINDS)
def test_imported_weights_predict_the_same_as_the_oracle(system, kind):
    weights = draw_weights(**WEIGHTS[kind])
    model = imported(system, stored_weights(system, weights, **WEIGHTS[kind]), settings_of(**WEIGHTS[kind]))
    np.testing.assert_allclose(*predictions_of_both(model, weights), rtol=1e-9)


def test_only_the_released_pytorch_code_reverses_the_cluster_rows():
    weights = draw_weights(div_val=2)
    theirs = hugging_face_state_dict(weights, div_val=2)
    bare = {
        name.removeprefix("transformer."): tensor
        for name, tensor in theirs.items()
        if not name.endswith(("attn.r_w_bias", "attn.r_r_bias"))
    }
    got, expected = predictions_of_both(imported("pytorch", bare, settings_of(div_val=2)), weights)
    first, second = CUTOFFS
    got, expected = np.exp(got), np.exp(expected)
    np.testing.assert_allclose(got[:, first:second].sum(1), expected[:, second:].sum(1), rtol=1e-9)
    np.testing.assert_allclose(got[:, second:].sum(1), expected[:, first:second].sum(1), rtol=1e-9)
    np.testing.assert_allclose(got[:, :first], expected[:, :first], rtol=1e-9)


def test_a_band_without_projection_is_exported_with_the_identity():
    model = small_model(dtype=torch.float32, cutoffs=CUTOFFS, div_val=2, project_same_width=False)
    theirs = to_hugging_face(model)
    assert theirs["transformer.word_emb.emb_projs.0"].equal(torch.eye(d))
    assert theirs["crit.out_projs.0"].equal(torch.eye(d))
    again = imported("hugging_face", theirs, settings_of(div_val=2))
    tokens = draw_tokens(2, T)
    expected, _ = read_segments(model.double(), tokens, [T], mem_len=M)
    torch.testing.assert_close(read_segments(again, tokens, [T], mem_len=M)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_become_float32(dtype):
    settings = settings_of()
    theirs = {name: tensor.to(dtype) for name, tensor in pytorch_state_dict(draw_weights()).items()}
    ours = Layout("pytorch", settings, V).read(theirs, "here")
    assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
    assert ours["encoding.content_bias"][0].equal(theirs["r_w_bias"].float())


@pytest.mark.parametrize(("system", "kind"), [("pytorch", "plain"), ("hugging_face", "div_2"), ("tf", "cut")])
def test_rows_that_pad_the_vocabulary_are_dropped(system, kind):
    weights, settings = draw_weights(**WEIGHTS[kind]), settings_of(**WEIGHTS[kind])
    theirs, layout = stored_weights(system, weights, **WEIGHTS[kind]), Layout(system, settings, V)
    expected = layout.read(theirs, "here")
    of_vocabulary = ("emb_layers", "out_layers", "lookup_table", "softmax/bias", "cutoff_2/b")
    padded = {
        name: torch.cat([tensor, torch.full((5, *tensor.shape[1:]), 9.0)])
        if len(tensor) in (V, V - CUTOFFS[-1]) and any(part in name for part in of_vocabulary)
        else tensor
        for name, tensor in theirs.items()
    }
    read = layout.read(padded, "here", padding_of(padded, V, "here"))
    assert all(read[name].equal(tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(("size", "is_padding"), [(24, True), (25, False), (24 + 128, False)])
def test_only_rows_up_to_a_multiple_are_taken_for_padding(size, is_padding):
    tables = {"word_emb.emb_layers.0.weight": torch.zeros(size, d)}
    if is_padding:
        assert padding_of(tables, V, "here") == size - V
        return
    with pytest.raises(VocabularyError, match=f"{size} ids and the vocabulary {V}"):
        padding_of(tables, V, "here")


# --- weights that are rejected ----------------------------------------------------------------------------------------


def refusal(theirs, system="hugging_face", **kind):
    return rejection(RunError, Layout(system, settings_of(**kind), V).read, theirs, "here")


def test_missing_tensors_are_named_and_counted():
    theirs = hugging_face_state_dict(draw_weights())
    kept = {name: theirs[name] for name in theirs if "layers.1." not in name and name != "crit.cluster_bias"}
    assert "crit.cluster_bias: missing, the settings need (2,) (and 11 more)" in refusal(kept)


def test_unknown_tensors_are_named_and_counted():
    unknown = {f"transformer.extra.{number}": torch.ones(1) for number in range(5)}
    message = refusal(hugging_face_state_dict(draw_weights()) | unknown)
    assert "transformer.extra.0: (1,), the settings need no such tensor (and 4 more)" in message


O_NET = "transformer.layers.1.dec_attn.o_net.weight"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (O_NET, torch.ones(d, H * D - 1), f"{O_NET}: (14, 32), the settings need (14, 33)"),
        ("x" * 999, torch.ones(1), f"{'x' * 80}...: (1,), the settings need no such tensor"),
        (O_NET, torch.full((d, H * D), 1e300, dtype=torch.float64), "not finite"),  # too large for float32
        (O_NET, torch.ones(d, H * D, dtype=torch.int8), f"{O_NET} is torch.int8"),
    ],
    ids=["shape", "name", "infinite", "integers"],
)
def test_a_tensor_that_does_not_fit_is_reported(name, tensor, message):
    assert message in refusal(hugging_face_state_dict(draw_weights()) | {name: tensor})


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("crit.out_layers.0.weight", "transformer.word_emb.emb_layers.0.weight"),
        ("crit.out_projs.1", "transformer.word_emb.emb_projs.1"),
        ("transformer.layers.1.dec_attn.r_r_bias", "transformer.r_r_bias"),
    ],
)
def test_tied_weights_must_be_equal(name, first):
    theirs = hugging_face_state_dict(draw_weights(div_val=2), div_val=2)
    theirs[name] = theirs[name] + 1
    assert f"{name} differs from {first}" in refusal(theirs, div_val=2)


def test_tied_weights_may_be_stored_once():
    weights = draw_weights(div_val=2)
    theirs = hugging_face_state_dict(weights, div_val=2)
    tied = ("crit.out_layers.", "crit.out_projs.1", "crit.out_projs.2")
    kept = {name: t for name, t in theirs.items() if not name.startswith(tied) or name.endswith("bias")}
    assert len(kept) == len(theirs) - 5
    model = imported("hugging_face", kept, settings_of(div_val=2))
    np.testing.assert_allclose(*predictions_of_both(model, weights), rtol=1e-9)


def test_optimizer_variables_of_tf_are_ignored():
    theirs = tf_variables(draw_weights())
    beside = {f"{name}/{slot}": tensor + 1 for name, tensor in theirs.items() for slot in ("Adam", "Adam_1")}
    beside |= {"global_step": torch.tensor(7), "beta1_power": torch.tensor(0.5), "beta2_power": torch.tensor(0.5)}
    settings = settings_of()
    layout = Layout("tf", settings, V)
    ours, expected = layout.read(theirs | beside, "here"), layout.read(theirs, "here")
    assert all(ours[name].equal(tensor) for name, tensor in expected.items())
    assert "transformer/extra: (1,)" in refusal(theirs | {"transformer/extra": torch.ones(1)}, "tf")


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_vocabulary_size_is_read_from_the_embedding(system):
    theirs = stored_weights(system, draw_weights(div_val=2), div_val=2)
    untied = {name: tensor for name, tensor in theirs.items() if "emb_layers" not in name}
    for tensors in (theirs, untied):  # stored under either name, or both
        with pytest.raises(VocabularyError, match=f"{V} ids and the vocabulary {V - 1}"):
            padding_of(tensors, V - 1, "here")


ARCHS = {"compressive": "compressed_len", "rmt": "segment_len"}


@pytest.mark.parametrize(
    ("system", "changed", "setting", "needed"),
    [
        *(
            ("hugging_face", {"arch": arch, size: 3}, f'arch = "{arch}"', '"transformer"')
            for arch, size in ARCHS.items()
        ),
        ("hugging_face", {"position": "alibi"}, 'position = "alibi"', '"relative"'),
        ("pytorch", {"auxiliary_losses": True}, "auxiliary_losses = true", "false"),
        ("pytorch", {"norm": "pre"}, 'norm = "pre"', '"post" or "pre_released"'),
        ("hugging_face", {"window": 4}, "window = 4", '"none"'),
        ("pytorch", {"block": "modern"}, 'norm_type = "rms"', '"layer"'),
        ("hugging_face", {"feed_forward": "swiglu"}, 'feed_forward = "swiglu"', '"relu"'),
        ("pytorch", {"gating": "gru", "norm": "pre_released"}, 'gating = "gru"', '"residual"'),
        ("tf", {"qk_norm": "rms"}, 'qk_norm = "rms"', '"none"'),
        ("hugging_face", {"biases": "none"}, 'biases = "none"', '"all"'),
        ("tf", {"norm": "pre_released"}, 'norm = "pre_released"', '"post"'),
        ("tf", {"tie_embeddings": False}, "tie_embeddings = false", "true"),
    ],
)
def test_a_setting_that_a_system_does_not_have_is_named(system, changed, setting, needed):
    message = missing_setting(model_settings(**changed), system)
    assert message.startswith(f"[model] {setting} ")
    assert message.endswith(f"needs {needed}")
