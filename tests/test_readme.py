"""The Python examples of the README do what they say."""

import re
from pathlib import Path

import pytest
import torch

from txlcli.config import recipe
from txlcli.core.model.registry import make_model
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.data.vocabulary import Vocab
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run

README = Path(__file__).parents[1] / "README.md"
BYTES = Vocab.of_bytes(range(256))

pytestmark = pytest.mark.skipif(not README.exists(), reason="no README here")


@pytest.fixture
def fresh_run(tmp_path, monkeypatch):
    """Create a run "stdlib" with fresh weights in the current folder."""
    monkeypatch.chdir(tmp_path)
    settings = recipe.load("stdlib")
    model = make_model(settings.model, BYTES.size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run = Run(Path("runs/stdlib"), "stdlib", settings, BYTES.fingerprint, BYTES.size, parameters, "bpc")
    run_folder.create(run, BYTES.to_json(), force=False)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    checkpoint.save(run.folder / run_folder.LAST, Checkpoint(grouped("model", weights), {"step": 1}))
    return model


def python_of(text):
    """Return the blocks of Python in Markdown that need no other framework."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "tensorflow" not in block]


def test_the_python_of_the_readme_evaluates_a_run_and_trains_a_model(fresh_run, capsys):
    (block,) = python_of(README.read_text())
    names = {}
    exec(block, names)
    text = list(b"def main(")
    hidden, _ = fresh_run(torch.tensor([text]), fresh_run.first_memory(1, 64), mem_len=64)
    expected = fresh_run.log_probs(hidden)[:, -1:]
    torch.testing.assert_close(names["log_probs"], expected, rtol=0, atol=1e-5)
    assert names["reading"].max_distance == 64 + 64  # as in txl eval: L + M of the training
    likeliest = chr(int(expected.argmax()))
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"{expected.max().exp():.1%} {likeliest!r}"
    assert len(others) == 4
    assert [tuple(part.shape) for part in names["memory"]] == [(1, 8, 128)] * 4
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
