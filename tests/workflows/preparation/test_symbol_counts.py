"""What the chunks of a split have in common is put together on disk."""

import numpy as np
import pytest

from txlcli.workflows.preparation.symbol_counts import SpooledStarts

STREAM = np.array([5, 0, 0, 7, 5, 0, 3, 0, 2, 2], dtype=np.uint8)
STARTS = [0, 2, 3, 6, 8]


@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 3], [5, 6, 8], [10]])
def test_sentences_start_after_each_boundary_however_the_stream_is_cut(tmp_path, cuts):
    starts = SpooledStarts(tmp_path / "train.starts", STREAM.size)
    blocks = np.split(STREAM, cuts)
    collected = list(starts.collect(blocks, boundary=0))
    assert [block.tolist() for block in collected] == [block.tolist() for block in blocks]
    assert starts.count == len(STARTS)
    assert starts.dtype == np.uint8
    assert np.concatenate(list(starts.blocks())).tolist() == STARTS
    assert list(tmp_path.iterdir()) == []


def test_no_sentence_starts_after_the_last_boundary(tmp_path):
    starts = SpooledStarts(tmp_path / "train.starts", 8)
    assert len(list(starts.collect([STREAM[:8]], boundary=0))) == 1
    assert np.concatenate(list(starts.blocks())).tolist() == STARTS[:-1]
