"""txl info: what a report of a problem needs."""

import platform

import h5py
import torch

import txlcli
from tests.commands.novel import done, json_of, refusal
from txlcli.core.kernels.modes import threads
from txlcli.system import processors


def test_info_names_versions_stores_and_runs(here):
    facts = json_of("info")
    assert (facts["txl"], facts["python"]) == (txlcli.__version__, platform.python_version())
    assert torch.__version__.startswith(facts["packages"]["torch"])  # a build for CUDA may add its release
    assert facts["hdf5"] == h5py.version.hdf5_version
    assert facts["threads"] == torch.get_num_threads()
    assert set(facts["stores"]) == {"novel", "char", "word", "sentencepiece"}
    assert set(facts["runs"]) == {"byte", "char", "word", "sentencepiece"}


def test_commands_compute_with_the_given_number_of_threads(here):
    most = processors.available()
    with threads(most + 1):  # restores the number of this process
        done("eval", "byte", "--positions", 20, "--threads", most)
        assert torch.get_num_threads() == most
        assert f"use at most {most}" in refusal("train", "tiny.toml", "--threads", most + 1, "--name", "new")


def test_info_is_short_and_works_in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_RUNS_DIR", "elsewhere")
    lines = done("info").stdout.splitlines()
    assert len(lines) <= 25
    assert "stores: none" in lines
    assert "runs dir: elsewhere" in lines
    assert any("TXL_RUNS_DIR elsewhere" in line for line in lines)
