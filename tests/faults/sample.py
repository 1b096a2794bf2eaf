"""The files that faults are injected into: texts, stores, runs, losses, an export and weights of other systems."""

import json
import pickle
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.commands.novel import RECIPE, done, prepare_and_train
from tests.core.builders import V
from tests.core.foreign import draw_weights, pytorch_state_dict, tf_variables
from txlcli.system.checkpoint_header import STATE

FOREIGN = (
    RECIPE.replace("d_model = 8", 'd_model = 14\ncutoffs = [5, 11]\ndiv_val = 2\nmemory_start = "zeros"')
    .replace("d_head = 5", "d_head = 11")
    .replace("d_inner = 11", "d_inner = 17")
)


@dataclass(frozen=True)
class Sample:
    directory: Path

    def copy(self, names, directory):
        """Copy files and directories, given by their names in the sample."""
        for name in names:
            source, target = self.directory / name, directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)
        return directory


def build(directory):
    prepare_and_train(directory)
    where = ["--data-dir", directory / "data", "--runs-dir", directory / "runs"]
    done("train", directory / "tiny.toml", *where, "--name", "half", "--max-steps", 4)
    for run in ("byte", "half", "word"):
        done("eval", run, *where, "--positions", 40)
        done("eval", run, *where, "--split", "valid")
    done("eval", "byte", *where, "--split", "valid", "--losses", directory / "losses.h5", "--quiet")
    done("compress", "byte", directory / "novel/valid.txt", directory / "packed", *where)
    done("export", "word", directory / "hf", "--format", "hf", "--runs-dir", directory / "runs")
    shutil.copytree(directory / "hf", directory / "out")
    (directory / "other.txt").write_text(
        "".join(f"{number:x} is followed by {number + 1:x}\n" for number in range(9000))
    )
    _write_foreign(directory)
    _write_archives(directory)
    shutil.rmtree(directory / "runs/.locks")
    for lock in (directory / "runs").glob(".*.lock"):
        lock.unlink()
    return Sample(directory)


def _write_foreign(directory):
    """Write the same weights as a state dict and as a dump of variables; a vocabulary and a recipe."""
    weights = draw_weights(div_val=2)
    torch.save(pytorch_state_dict(weights, div_val=2), directory / "state.pt")
    np.savez(
        directory / "tf.npz", **{name: tensor.numpy() for name, tensor in tf_variables(weights, div_val=2).items()}
    )
    words = [*(f"w{number}" for number in range(V - 1)), "<eos>"]
    (directory / "words.txt").write_text("".join(f"{word}\n" for word in words))
    (directory / "words.pkl").write_bytes(pickle.dumps({"idx2sym": words}))
    (directory / "foreign.toml").write_text(FOREIGN)


def _write_archives(directory):
    """Write the novel as an archive of Penn Treebank, and as a prefix of text8."""
    with tarfile.open(directory / "ptb.tgz", "w:gz") as archive:
        for split in ("train", "valid", "test"):
            archive.add(directory / f"novel/{split}.txt", f"simple-examples/data/ptb.{split}.txt")
    with zipfile.ZipFile(directory / "text8.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", "the fox and the cat jump over lazy dogs " * 300)


def header_of(content):
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def state_of(content):
    """Return the training state in the header of a checkpoint."""
    return json.loads(header_of(content)["__metadata__"][STATE])
