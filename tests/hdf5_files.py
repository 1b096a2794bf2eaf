"""Changes HDF5 files of txl as other programs, earlier versions and failing disks do."""

import os
from contextlib import contextmanager

import h5py


@contextmanager
def unsealed(path):
    """Yield an HDF5 file of txl for changes, without the seal, which earlier versions did not write."""
    copy = path.with_name(f"{path.name}.unsealed")
    with h5py.File(path) as sealed, h5py.File(copy, "w") as file:
        for name in sealed:
            sealed.copy(name, file)
        file.attrs.update(sealed.attrs)
        yield file
    os.replace(copy, path)


def flip(path, place, bit=0):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)
