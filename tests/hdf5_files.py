"""Changes files of txl as failing disks and other programs do."""

from txlcli.data.hdf5 import set_attributes


def flip(path, place, bit=0):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def set_attribute(part, name, value):
    """Replace an attribute of an HDF5 file, as txl writes it."""
    del part.attrs[name]
    set_attributes(part, {name: value})
