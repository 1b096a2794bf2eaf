"""Changes files of txl as failing disks do."""


def flip(path, place, bit=0):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)
