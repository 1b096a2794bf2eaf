"""txl export for Hugging Face Transformers: the files of the folder; tests/peer/test_transformers.py opens them."""

import ast
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.commands.novel import card, done, json_of, refusal, train
from tests.core.builders import POSITIONS, model_settings
from txlcli.config.settings import EvalSettings
from txlcli.core.model.encodings import ENCODINGS
from txlcli.runs import history, run_directory
from txlcli.workflows.exchange import transformers_folder

FILES = ["README.md", "config.json", "model.safetensors", "modeling_txl.py", "tokenization_txl.py"]
FILES += ["tokenizer_config.json", "vocab.json"]


def test_the_folder_holds_model_tokenizer_and_card(here):
    done("eval", "word", "--mem-len", "0,5")
    told = json_of("export", "word", "out")
    assert told["files"] == FILES == sorted(path.name for path in Path("out").iterdir())
    config = json.loads(Path("out/config.json").read_text())
    assert (config["segment_len"], config["mem_len"], config["key_limit"]) == (5, 5, 5)
    weights = load_file("out/model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == card("runs/word")["parameters"]
    text = Path("out/README.md").read_text()
    assert "| word test |" in text
    assert "`model.d_model` | `8`" in text


def test_ids_without_text_have_no_tokenizer(here):
    Path("pieces").mkdir()
    for number in range(20):
        Path(f"pieces/{number}.json").write_text(json.dumps([1, 2, 3] * 20))
    done("prepare", "pieces", "--ids", "--vocab-size", 7, "--name", "numbers")
    train("corpus.store=numbers", name="numbers")
    assert json_of("export", "numbers", "out")["files"] == [name for name in FILES if "token" not in name]


def test_the_card_has_the_protocol_of_each_result_of_its_weights(here):
    done("eval", "byte", "--mem-len", 5, "--batch-size", 1)
    run = run_directory.read_run(Path("runs/byte"))
    (result,) = history.read(run).evals
    history.record(run, [result | {"step": 1, "text": "earlier weights"}])
    done("eval", "byte", "--attn-len", 6, "--stride", 2)
    done("eval", "byte", "--mem-len", 5, "--dynamic", "--positions", 50, "--batch-size", 1)
    done("export", "byte", "out")
    rows = [line.split(" | ")[2] for line in Path("out/README.md").read_text().splitlines() if "| novel test" in line]
    recurrence = "M = 5, L = 5, same_length = m"
    reading = "max_distance = 10, fp32"
    part = "the first tokens only"
    assert rows == [
        f"{recurrence}, {reading}",
        f"N = 6, S = 2, {reading}",
        f"{recurrence}, {reading}, {part}",
        f"{recurrence}, {reading}, dynamic, {part}",
    ]
    assert "earlier weights" not in Path("out/README.md").read_text()


@pytest.mark.parametrize("name", ["modeling_txl.py", "tokenization_txl.py"])
def test_the_code_needs_torch_and_transformers_alone(name):
    tree = ast.parse((transformers_folder.CODE / name).read_text())
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    assert {module.partition(".")[0] for module in modules} <= {
        *("torch", "transformers"),
        *("base64", "collections", "json", "math", "pathlib", "re", "shutil"),
    }


@pytest.mark.parametrize(
    ("position", "mem_len", "longest"), [("shaw", 0, None), ("shaw", 5, None), ("learned", 5, None), ("learned", 0, 5)]
)
def test_the_configuration_has_the_length_of_the_longest_text(position, mem_len, longest):
    """As lm-evaluation-harness reads it: vectors of distances, or of places in a segment, limit no text."""
    model = model_settings(position=position, n_positions=5)
    config = transformers_folder.config_of(model, EvalSettings(seg_len=5, mem_len=mem_len), 7)
    assert (config["n_positions"], config["n_learned_vectors"]) == (longest, 5)


def test_every_encoding_of_txl_is_in_the_code():
    assert set(transformers_folder.EXPORTED_POSITIONS) == set(ENCODINGS) == set(POSITIONS)


@pytest.mark.parametrize("command", [("import", "out"), ("eval", "hf:out", "--text", "novel/test.txt")])
def test_a_folder_that_txl_exported_is_not_read_back(here, command):
    done("export", "word", "out")
    assert "txl reads the run itself, and imports exports with --format hf only" in refusal(*command, code=1)


def test_imported_weights_are_not_called_trained(here):
    done("export", "word", "hf", "--format", "hf")
    done("import", "hf", "--store", "word", "--name", "again")
    done("export", "again", "out")
    assert "imported and exported by" in Path("out/README.md").read_text()
