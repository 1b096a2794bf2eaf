"""Files that unpack to far more than they have."""

import zipfile
import zlib

HUGE = 3 << 30


def packed_zeros(head=b"", size=HUGE):
    """Return `head` and zeros up to `size` bytes as a raw deflate stream of a thousandth of that."""
    packer, step = zlib.compressobj(9, wbits=-15), 1 << 24
    begin = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(step)) + packer.flush(zlib.Z_FULL_FLUSH)  # can be repeated
    return begin + block * (size // step) + packer.flush()


def zip_of(path, name, stream, size):
    """Write a zip file with one member of that packed stream, which states its unpacked size."""
    # zipfile cannot write a packed stream: pack a small member, then replace its data and its sizes.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"")
        info = archive.getinfo(name)
        archive.fp.seek(-info.compress_size, 1)
        info.file_size, info.compress_size = size, len(stream)
        archive.fp.write(stream)
        archive.start_dir = archive.fp.tell()
        archive._didModify = True
    return path
