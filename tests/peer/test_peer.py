"""txl is Hugging Face's TransfoXL: predictions, gradients, fifty steps of training, and its files both ways.

Needs the extra "peer"; skipped where it is not installed.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("transformers", reason='the peer is not installed: pip install -e ".[peer]"')

from tests.peer import peer
from tests.peer.peer import V, draw_tokens, imported, peer_model
from txlcli.cli import app
from txlcli.config.train_settings import TrainSettings
from txlcli.core.reading.registry import make_reader
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.runs import loading, run_directory

B, L = 3, 5
KINDS = {
    "one band": {"cutoffs": []},
    "one band, projected": {"cutoffs": [], "d_embed": 10},
    "div_val 1": {},
    "div_val 1, projected": {"d_embed": 10},
    "div_val 4": {"div_val": 4, "d_embed": 32},
    "div_val 2, own projections": {"div_val": 2, "proj_share_all_but_first": False},
    "untied embeddings": {"div_val": 2, "tie_word_embeddings": False},
    "untied embeddings, div_val 1": {"tie_word_embeddings": False},
    "shared biases": {"untie_r": False},
    "pre-norm": {"div_val": 2, "pre_lnorm": True},
    "same length": {"same_length": True},
    "max distance": {"clamp_len": 4},
    "same length, max distance, shared biases, div_val 4": {
        **{"same_length": True, "clamp_len": 4, "untie_r": False, "div_val": 4, "d_embed": 16}
    },
    "a memory of hundreds": {"mem_len": 211, "same_length": True},
    "a memory of hundreds, max distance": {"mem_len": 211, "clamp_len": 101},
    "without memory": {"mem_len": 0},
}
LONG = {"a memory of hundreds": 61, "a memory of hundreds, max distance": 61}
FEW_KINDS = [
    "one band",
    "div_val 1",
    "div_val 1, projected",
    "div_val 2, own projections",
    "untied embeddings",
    "shared biases",
    "pre-norm",
    "max distance",
]


def run_txl(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="txl")
    assert result.exit_code == 0, result.stderr


def predictions(run, tokens, seg_len):
    """Log-probabilities (B, T, V) as an evaluation of the run computes them."""
    opened = loading.open_run(run_directory.read_run(Path("runs", run)), device="cpu", precision="fp32")
    settings = opened.run.settings.evaluation_settings(seg_len=seg_len, batch_size=len(tokens))
    decoder = make_reader(opened.model, settings)
    return torch.cat([decoder.log_probs(decoder.read(part)) for part in tokens.split(seg_len, dim=1)], dim=1)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_an_import_predicts_as_the_peer_does_and_an_export_is_the_peer_again(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = peer_model(**KINDS[kind])
    peer.save(model, tmp_path / "theirs")
    run_txl("import", "theirs", "--name", "mine")
    seg_len = LONG.get(kind, L)
    tokens = draw_tokens(B, 5 * seg_len + 3)
    ours = predictions("mine", tokens, seg_len)
    torch.testing.assert_close(ours, peer.log_probs(model, tokens, seg_len), rtol=0, atol=1e-5)

    run_txl("export", "mine", "back", "--format", "hf")
    again = peer.load(tmp_path / "back")
    torch.testing.assert_close(
        peer.log_probs(again, tokens, seg_len), peer.log_probs(model, tokens, seg_len), rtol=0, atol=1e-6
    )
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }


def limits(model):
    """What our forward pass is told of the peer's configuration."""
    clamp = model.config.clamp_len
    return {"max_distance": clamp if clamp > 0 else None, "mem_len": model.config.mem_len}


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_gradients_are_the_peers(kind):
    theirs = peer_model(**KINDS[kind], std=0.1)
    ours, layout = imported(theirs)
    tokens, targets = draw_tokens(B, 3 * L), draw_tokens(B, 3 * L, seed=5)
    memory = ours.first_memory(B, theirs.config.mem_len)
    peer_memory = None
    for read, wanted in zip(tokens.split(L, dim=1), targets.split(L, dim=1), strict=True):
        hidden, memory = ours(read, memory, **limits(theirs))
        ours.losses(hidden, wanted).mean().backward()
        out = theirs(read, mems=peer_memory)
        peer_memory = out.mems
        (-out.prediction_scores.gather(-1, wanted[..., None])).mean().backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    found = layout.write({name: parameter.grad for name, parameter in ours.named_parameters()})
    assert set(expected) <= set(found)
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4 * scale, msg=name)


@pytest.mark.parametrize("kind", ["one band", "div_val 4", "shared biases"])
def test_fifty_steps_of_adam_give_the_peers_losses(kind):
    steps, lr, clip = 50, 2e-3, 0.25
    theirs = peer_model(**KINDS[kind], std=0.1).train()
    ours, _ = imported(theirs)
    settings = TrainSettings(
        seg_len=L, mem_len=7, batch_size=B, max_steps=steps, lr=lr, schedule="cosine", clip=clip, valid_every=1000
    )
    ids = np.random.default_rng(3).zipf(1.5, size=B * L * steps + 1).clip(max=V) - 1
    segments = TrainingSegments(ids, settings)
    training = Training(ours, settings, segments)

    optimizer = torch.optim.Adam(theirs.parameters(), lr=lr)
    memory = None
    for step in range(steps):
        tokens = torch.from_numpy(segments.at(training.position))  # (B, L + 1)
        read, wanted = tokens[:, :-1], tokens[:, 1:]
        out = theirs(read, mems=memory)
        memory = out.mems
        loss = (-out.prediction_scores.gather(-1, wanted[..., None])).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 + np.cos(np.pi * step / steps)) / 2
        optimizer.step()
        assert training.update().loss.item() == pytest.approx(loss.item(), rel=1e-4), step
    assert loss.item() < 0.9 * np.log(V)  # something was learned on the way
