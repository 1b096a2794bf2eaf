"""Plain containers are unpickled; code that a pickle refers to is named and never run."""

import pickle
from collections import Counter, OrderedDict

import pytest
import torch

from tests.samples import sampled
from tests.workflows.exchange.hostile import HOSTILE, MARKER, names
from txlcli.errors import RunError, VocabularyError
from txlcli.workflows.exchange import pickles, weights

FIELDS = {"idx2sym": ["<eos>", "naïve", "語"], "counter": Counter("abb"), "sym2idx": OrderedDict(b=1, a=0), "min": None}


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / MARKER).exists()


def written(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_plain_containers_are_read(tmp_path, protocol):
    assert pickles.load(written(tmp_path / "v.pkl", pickle.dumps(FIELDS, protocol))) == FIELDS


@pytest.mark.parametrize(("case", "protocol"), sampled(4, HOSTILE, range(6)))
def test_code_is_named_and_not_run(tmp_path, case, protocol):
    thing, name = HOSTILE[case]
    with pytest.raises(VocabularyError) as caught:
        pickles.load(written(tmp_path / "v.pkl", pickle.dumps(thing, protocol)))
    assert str(caught.value).split()[4].removesuffix(",") in names(name)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_code_in_torch_files_is_named_and_not_run(tmp_path, case, legacy):
    thing, name = HOSTILE[case]
    torch.save(thing, tmp_path / "v.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(RunError) as caught:
        weights.read(tmp_path / "v.bin")
    assert str(caught.value).split()[2] in names(name)


def test_a_pickle_cannot_change_the_containers(tmp_path):
    # GLOBAL collections.Counter, then BUILD with a state for slots: setattr on the class.
    attack = b"\x80\x02ccollections\nCounter\nN}X\x07\x00\x00\x00updatedX\x03\x00\x00\x00yess\x86b."
    pickle.loads(attack)  # without protection the attack changes the class itself
    assert Counter.updated == "yes"
    del Counter.updated
    with pytest.raises(TypeError):
        pickles.load(written(tmp_path / "v.pkl", attack))
    assert not hasattr(Counter, "updated")
