"""Types of token ids: each predicate holds for the ids of its example, and for no narrower ones."""

import numpy as np
import pytest

from txlcli.workflows.exchange.token_types import are_int64, are_small_uint16, are_small_uint32, are_uint32


def used_bytes(dtype, ids):
    return (np.array(ids, dtype).view(np.uint8).reshape(-1, 8) != 0).any(axis=0)


@pytest.mark.parametrize(
    ("fits", "dtype", "ids", "narrower"),
    [
        (are_int64, "<i8", [70_001, 0], "<u4"),
        (are_small_uint32, "<u4", [5_003, 61], "<u2"),
        (are_small_uint16, "<u2", [61, 7, 0, 255], "<u1"),
        (are_uint32, "<u4", [70_001, 5_003], "<u2"),
    ],
)
def test_each_type_is_recognized_in_both_byte_orders_and_no_narrower_one(fits, dtype, ids, narrower):
    assert fits(used_bytes(dtype, ids))
    assert fits(used_bytes(dtype.replace("<", ">"), ids)[::-1])
    assert not fits(used_bytes(narrower, [number % 251 + 3 for number in ids] * 4))
