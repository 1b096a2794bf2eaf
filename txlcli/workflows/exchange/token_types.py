"""Recognizes the type of token ids without a header, by the bytes at the beginning of their file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_WORDS = 1 << 16
"""Most groups of eight bytes that are looked at."""
MIN_BYTES = 128
"""Fewest bytes that tell a type by zeros."""
MIN_BYTES_OF_DISTRIBUTION = 1 << 12
"""Fewest bytes that tell a type by the distribution of values."""
MIN_USED = 1 / 64
"""Smallest share of bytes that are not zero; a run of one id would otherwise look like wide ids."""
MAX_DISTANCE = 0.2
"""Largest distance of the distributions of both bytes of uint16 that is taken for uint8, if they are not even."""
MIN_RATIO = 1.25
"""Smallest ratio of the sums of squared shares of the first and the second byte that is taken for big-endian ids."""


@dataclass(frozen=True)
class TypeGuess:
    """Type that ids seem to have."""

    dtype: str
    """Name, such as uint16, or uint16-be with the most significant byte first."""
    is_certain: bool
    """False if ids of another type may look the same."""


def type_named(name: str) -> np.dtype[Any]:
    """Return the type with a name like uint16, or uint16-be with the most significant byte first."""
    if name.endswith("-be"):
        return np.dtype(name.removesuffix("-be")).newbyteorder(">")
    return np.dtype(name).newbyteorder("<")


def other_type(path: Path, dtype: np.dtype[Any]) -> TypeGuess | None:
    """Return the type that the ids of a file have by its first bytes.

    None if it is `dtype`, signed or not, or if the bytes are too few or too alike to tell.
    """
    head = _head_of(path)
    if not len(head) or np.count_nonzero(head) < MIN_USED * len(head):
        return None
    guess = _type_by_zeros(head) or _type_by_distribution(head)
    if guess is None or _is_unsigned_equal(type_named(guess.dtype), dtype):
        return None
    return guess


def advice(path: Path, guess: TypeGuess, vocab_size: int | None) -> str:
    """Return what to do about ids of another type, which is named only if its ids are in the vocabulary."""
    if vocab_size is None:
        return "give the `dtype` that they were written with; with `vocab_size`, txl names the type that fits"
    if are_below(path, type_named(guess.dtype), vocab_size):
        return f"give `dtype` {guess.dtype}"
    return "give the `dtype` that they were written with, and check the vocabulary"


def are_below(path: Path, dtype: np.dtype[Any], vocab_size: int) -> bool:
    """Return True if the ids of a file, read as a type, are in a vocabulary of that size."""
    if path.stat().st_size % dtype.itemsize:
        return False
    ids = np.memmap(path, dtype, mode="r")
    for start in range(0, len(ids), MAX_WORDS):
        block = ids[start : start + MAX_WORDS]
        if block.min() < 0 or block.max() >= vocab_size:
            return False
    return True


def _is_unsigned_equal(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Return True if types differ in the sign at most."""
    return first.str.replace("u", "i") == second.str.replace("u", "i")


def _head_of(path: Path) -> NDArray[np.uint8]:
    """Return the first bytes of a file, a multiple of 8; none if they are too few to tell anything."""
    head = np.fromfile(path, np.uint64, MAX_WORDS).view(np.uint8)
    if len(head) < MIN_BYTES:
        return head[:0]
    return head


def has_fractions(path: Path) -> bool:
    """Return True if a file has floating-point numbers of a usual size; ids would be tiny or huge ones."""
    for dtype in ("<f4", "<f8"):
        size = np.abs(_head_of(path).view(dtype))
        is_usual = (size > 1e-6) & (size < 1e6)
        if is_usual.sum() > 0.9 * np.count_nonzero(size):
            return True
    return False


TYPES_BY_ZEROS = (
    ("int64", [3, 4, 5, 6, 7], True),  # below 2^24: 70,001 is 71 11 01 00 00 00 00 00
    ("uint32", [2, 3, 6, 7], True),  # below 2^16: 5,003 and 61 are 8b 13 00 00 3d 00 00 00
    ("uint16", [1, 3, 5, 7], True),  # below 2^8: 61, 7, 0 and 255 are 3d 00 07 00 00 00 ff 00
    ("uint32", [3, 7], False),  # below 2^24: 70,001 and 5,003 are 71 11 01 00 8b 13 00 00
)
"""Types in the order in which they are tried, the zeros among eight bytes of small ids, and True if no other has them.

Examples are in hexadecimal, the least significant byte first.
"""


def _type_by_zeros(head: NDArray[np.uint8]) -> TypeGuess | None:
    """Return the widest type whose upper bytes are zero."""
    is_used = np.logical_or.reduce(head.reshape(-1, 8), axis=0)
    for dtype, zeros, is_certain in TYPES_BY_ZEROS:
        if not is_used[zeros].any():
            return TypeGuess(dtype, is_certain)
        if not is_used[::-1][zeros].any():
            return TypeGuess(f"{dtype}-be", is_certain)
    return None


def _type_by_distribution(head: NDArray[np.uint8]) -> TypeGuess | None:
    """Return uint8 if both bytes of uint16 have the same distribution, big-endian uint16 if the upper is more even."""
    if len(head) < MIN_BYTES_OF_DISTRIBUTION:
        return None
    lower = _shares(head[0::2])
    upper = _shares(head[1::2])
    lower_unevenness = (lower**2).sum()  # 1 / 256 if all values are as frequent
    upper_unevenness = (upper**2).sum()
    distance = np.abs(lower - upper).sum() / 2
    if distance < MAX_DISTANCE and 256 * lower_unevenness > MIN_RATIO:
        return TypeGuess("uint8", is_certain=False)
    if lower_unevenness > MIN_RATIO * upper_unevenness:
        return TypeGuess("uint16-be", is_certain=False)
    return TypeGuess("uint16", is_certain=False)


def _shares(values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the share of each value of a byte, (256,)."""
    return np.bincount(values, minlength=256) / len(values)
