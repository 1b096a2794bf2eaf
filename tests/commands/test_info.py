"""txl info: what a report of a problem needs."""

import platform

import h5py
import torch

import txlcli
from tests.commands.novel import done, json_of


def test_info_names_versions_stores_and_runs(here):
    facts = json_of("info")
    assert (facts["txl"], facts["python"]) == (txlcli.__version__, platform.python_version())
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["hdf5"] == h5py.version.hdf5_version
    assert facts["threads"] == torch.get_num_threads()
    assert set(facts["stores"]) == {"novel", "char", "word", "sentencepiece"}
    assert set(facts["runs"]) == {"byte", "char", "word", "sentencepiece"}


def test_info_is_short_and_works_in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_RUNS_DIR", "elsewhere")
    lines = done("info").stdout.splitlines()
    assert len(lines) <= 25
    assert "stores:      none (in data)" in lines
    assert "runs:        none (in elsewhere)" in lines
    assert "TXL_RUNS_DIR: elsewhere" in lines
