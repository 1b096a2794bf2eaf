"""Changes HDF5 files of txl as other programs, earlier versions and failing disks do."""

import hashlib
import json
import os
from contextlib import contextmanager

import h5py

SEAL = b"txl seal 1\n"
USER_BLOCK = 4096


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


def make_endless(path):
    """Set the global heap of an HDF5 file to zeros: an object of no size follows itself, and HDF5 2.0 never ends."""
    content = bytearray(path.read_bytes())
    first_object = content.index(b"GCOL") + 16
    content[first_object : first_object + 4080] = bytes(4080)
    path.write_bytes(content)


def seal_again(path):
    """Correct the checksums of the seal of a changed file, as somebody does who knows the format."""
    content = path.read_bytes()
    facts = json.loads(content[len(SEAL) : USER_BLOCK].split(b"\n")[0])
    edges = [USER_BLOCK, *(edge for span in facts["unsealed"] for edge in span), len(content)]
    sealed = b"".join(content[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
    line = json.dumps(facts | {"bytes": len(content), "sha256": hashlib.sha256(sealed).hexdigest()}).encode()
    block = SEAL + line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    path.write_bytes(block.ljust(USER_BLOCK, b"\0") + content[USER_BLOCK:])
