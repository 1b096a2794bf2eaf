"""Damaged versions of a content, as disks, crashes and copies leave them."""

PAGE = 4096  # bytes; half as long as the file if that is shorter
BURST = 64  # bytes


def damaged_bytes(content, other, number, chance):
    """Return a description and a damaged content.

    Args:
        content: of the undamaged file, not empty.
        other: content of another file, which replaces it now and then.
        number: of the mutation; kinds of damage take turns.
        chance: random.Random of this mutation.
    """
    kinds = (_flip_bit, _truncate, _flip_bit, _zero_page, _flip_bit, _change_burst)
    if number % 50 == 49:
        return "replaced by another file", other
    return kinds[number % len(kinds)](content, chance)


def _truncate(content, chance):
    length = chance.randrange(len(content))
    return f"truncated to {length} bytes", content[:length]


def _flip_bit(content, chance):
    position, bit = chance.randrange(len(content)), chance.randrange(8)
    return f"bit {bit} of byte {position} flipped", _with(content, position, bytes([content[position] ^ 1 << bit]))


def _change_burst(content, chance):
    position, length = chance.randrange(len(content)), chance.randrange(2, BURST)
    burst = chance.randbytes(min(length, len(content) - position))
    return f"{len(burst)} bytes from {position} replaced", _with(content, position, burst)


def _zero_page(content, chance):
    size = min(PAGE, max(1, len(content) // 2))
    number = chance.randrange(-(-len(content) // size))
    return f"page {number} of {size} bytes zeroed", _with(content, number * size, bytes(size))[: len(content)]


def _with(content, position, part):
    return content[:position] + part + content[position + len(part) :]


def is_cut(before, after):
    """Return True if lines at the end of a text are missing or incomplete, as after a kill."""
    return before.startswith(after.rpartition(b"\n")[0])
