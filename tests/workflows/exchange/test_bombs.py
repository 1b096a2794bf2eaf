"""Files of weights and vocabularies that state or unpack to far more than they have: rejected quickly."""

import io
import resource
import struct
import time

import numpy as np
import pytest
import torch

from tests.bombs import HUGE, packed_zeros, zip_of
from txlcli.errors import RunError, VocabularyError
from txlcli.workflows.exchange import vocabularies
from txlcli.workflows.exchange.weights import read

MAX_KB = 200_000


def refusal(function, path, error):
    """Return the error of reading a file, which must come in time and without much memory."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(error) as refused:
        function(path)
    assert time.process_time() - started < 20  # seconds of this process, whatever else the machine does
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KB
    assert "\n" not in str(refused.value)
    return str(refused.value)


def npy_header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.npz", "a.bin", "a.pt", "vocab.bin"])
def test_a_packed_file_that_is_a_bomb_is_rejected_by_its_stated_size(tmp_path, name):
    head = npy_header((HUGE // 4,)) if name == "a.npz" else b""
    member = "a.npy" if name == "a.npz" else "archive/data.pkl"
    path = zip_of(tmp_path / name, member, packed_zeros(head, HUGE), HUGE + len(head))
    assert path.stat().st_size < 4 << 20
    function, error = (vocabularies.read, VocabularyError) if name == "vocab.bin" else (read, RunError)
    assert "would unpack to 3,072 MiB, far more than its size" in refusal(function, path, error)


def test_a_number_that_states_to_be_a_huge_tensor_is_rejected(tmp_path):
    """A tensor with strides of 0 has few bytes in the file, and each copy of it has all of them."""
    torch.save({"a": torch.zeros(1).expand(HUGE)}, tmp_path / "a.pt")
    assert f"it would unpack to {4 * HUGE >> 20:,} MiB, far more than its size" in refusal(
        read, tmp_path / "a.pt", RunError
    )


PICKLES = {
    "a place in a huge memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "an array of bytes that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_asks_for_memory_is_rejected(tmp_path, name):
    (tmp_path / "vocab.pkl").write_bytes(PICKLES[name])
    assert str(tmp_path) in refusal(vocabularies.read, tmp_path / "vocab.pkl", VocabularyError)


def test_weights_of_zeros_are_accepted(tmp_path):
    """A file of the ratio of a bomb, but small."""
    zeros = np.zeros((1000, 1000), dtype=np.float32)
    np.savez_compressed(tmp_path / "a.npz", zeros=zeros)
    assert (tmp_path / "a.npz").stat().st_size * 500 < zeros.nbytes
    assert read(tmp_path / "a.npz")["zeros"].equal(torch.zeros(1000, 1000))
