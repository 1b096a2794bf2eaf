"""Reads the parts of HDF5 files that others may have written: no links, nothing larger than the file."""

import os
from typing import Any

import h5py
from numpy.typing import NDArray


def member(group: h5py.Group, name: str) -> Any:
    """Return a part of a group.

    Raises:
        KeyError: there is none of that name.
        ValueError: the group is no group, or the part is a soft or external link, which may lead anywhere.
    """
    if not isinstance(group, h5py.Group):
        raise ValueError(f"an array in place of a group with {name}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link")
    return group[name]


def array(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return an array of a group, which is stored unpacked, as txl writes it, so that reading it takes no more memory.

    Raises:
        KeyError: there is none of that name.
        ValueError: it is a group or a link, or larger than the file.
    """
    dataset = member(group, name)
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.hasobject:
        raise ValueError(f"{name} is no array of numbers")
    if dataset.nbytes > os.path.getsize(dataset.file.filename):
        raise ValueError(f"{name} states {dataset.nbytes:,} bytes, more than the file has")
    return dataset


def read_array(group: h5py.Group, name: str) -> NDArray[Any]:
    """Read an array of a group; see `array`."""
    values: NDArray[Any] = array(group, name)[()]
    return values
