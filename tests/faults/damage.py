"""Damaged versions of a content: bytes of any file, values of JSON and of TOML."""

import copy
import json
import tomllib

PAGE = 4096  # bytes; half as long as the file if that is shorter
BURST = 64  # bytes
WRONG_VALUES = (
    *(None, True, -1, 0, 7, 2.5, 1e9, 1e300, 10**30, "", "x", "\x1b[31m", [], [1], {}, {"a": 1}, [[[]]]),
    *(float("nan"), float("inf"), 10**4400),
)
WRONG_TOML = ("-1", "0", "true", '"5"', "[5]", "5.5", "nan", "inf", "1e400", "9" * 30, "{}", '""', "1979-05-27")


def damaged_bytes(content, others, number, chance):
    """Return a description and a damaged content.

    Args:
        content: of the undamaged file, not empty.
        others: contents of other formats by name.
        number: of the mutation; kinds of damage take turns.
        chance: random.Random of this mutation.
    """
    kinds = (_flip_bit, _change_byte, _flip_bit, _truncate, _flip_bit, _zero_page, _change_burst, _swap_pages, _insert)
    if number % 50 == 49:
        name = chance.choice(sorted(others))
        return f"replaced by {name}", others[name]
    if number % 50 < 11:  # every tenth, also with few mutations
        return _truncate(content, chance, tenth=number % 50)
    return kinds[number % len(kinds)](content, chance)


def _truncate(content, chance, tenth=None):
    length = chance.randrange(len(content)) if tenth is None else len(content) * tenth // 10 - (tenth == 10)
    return f"truncated to {length} bytes", content[:length]


def _flip_bit(content, chance):
    position, bit = chance.randrange(len(content)), chance.randrange(8)
    return f"bit {bit} of byte {position} flipped", _with(content, position, bytes([content[position] ^ 1 << bit]))


def _change_byte(content, chance):
    position = chance.randrange(len(content))
    value = chance.choice((0, 255, (content[position] + chance.randrange(1, 256)) % 256))
    return f"byte {position} set to {value}", _with(content, position, bytes([value]))


def _change_burst(content, chance):
    position, length = chance.randrange(len(content)), chance.randrange(2, BURST)
    burst = chance.randbytes(min(length, len(content) - position))
    return f"{len(burst)} bytes from {position} replaced", _with(content, position, burst)


def _insert(content, chance):
    position, length = chance.randrange(len(content)), chance.randrange(1, BURST)
    if chance.random() < 0.5:
        return f"{length} bytes at {position} removed", content[:position] + content[position + length :]
    return f"{length} bytes at {position} inserted", content[:position] + chance.randbytes(length) + content[position:]


def _zero_page(content, chance):
    size, number = _page(content, chance)
    return f"page {number} of {size} bytes zeroed", _with(content, number * size, bytes(size))[: len(content)]


def _swap_pages(content, chance):
    size, one = _page(content, chance)
    _, other = _page(content, chance)
    pages = [content[start : start + size] for start in range(0, len(content), size)]
    pages[one], pages[other] = pages[other], pages[one]
    return f"pages {one} and {other} of {size} bytes swapped", b"".join(pages)


def _page(content, chance):
    """Return the size of a page and the number of one."""
    size = min(PAGE, max(1, len(content) // 2))
    return size, chance.randrange(-(-len(content) // size))


def _with(content, position, part):
    return content[:position] + part + content[position + len(part) :]


def leaves(value, path=()):
    """Yield the path of every value in parsed JSON, also of lists and objects."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def damaged_value(value, number, chance):
    """Return a description and a copy of parsed JSON in which one value has another type, or is missing."""
    changed = copy.deepcopy(value)
    path = sorted(leaves(value), key=str)[number % sum(1 for _ in leaves(value))]
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    where = ".".join(map(str, path))
    if chance.random() < 0.1:
        del parent[path[-1]]
        return f"{where} removed", changed
    parent[path[-1]] = chance.choice(WRONG_VALUES)
    return f"{where} = {short(parent[path[-1]])}", changed


def short(value):
    """Return a value as text that fits on a line."""
    text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value > 1e30 else repr(value)
    return text if len(text) < 40 else f"{text[:40]}..."


def to_json(value, **options):
    """Return JSON text, also of integers with more digits than Python writes; options are those of json.dumps."""
    huge = "huge-integer"
    text = json.dumps(_replaced(value, huge), ensure_ascii=False, **options)
    return text.replace(f'"{huge}"', "1" + "0" * 4400)


def _replaced(value, huge):
    if isinstance(value, dict):
        return {key: _replaced(inner, huge) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, huge) for inner in value]
    return huge if isinstance(value, int) and value > 10**4000 else value


def damaged_toml(text, chance):
    """Return a description and a recipe in which one value has another type, or is missing."""
    lines = text.splitlines()
    number = chance.choice([number for number, line in enumerate(lines) if "=" in line])
    key = lines[number].split("=")[0].strip()
    if chance.random() < 0.1:
        del lines[number]
        return f"{key} removed", "\n".join(lines)
    lines[number] = f"{key} = {chance.choice(WRONG_TOML)}"
    return lines[number], "\n".join(lines)


# --- edits: a text without a checksum may be changed by hand ---------------------------------------------------------


def is_cut(before, after):
    """Return True if lines at the end of a text are missing or incomplete, as after a kill."""
    return before.startswith(after.rpartition(b"\n")[0])


def is_edit_of_json(before, after):
    """Return True if a text is valid JSON with the same keys and types as before, so that it may have been edited."""
    return _is_edit(before, after, json.loads)


def is_edit_of_card(before, after):
    """Return True for a run.json without its checksum, with the same types, and perhaps fewer keys."""
    try:
        earlier, later = json.loads(before.decode()), json.loads(after.decode())
        if later.get("checksum") is not None:
            return False
    except (ValueError, RecursionError, AttributeError):
        return False
    earlier.pop("checksum", None)
    later.pop("checksum", None)
    return _same_types(earlier, later, may_lack_keys=True)


def is_edit_of_configuration(before, after):
    """Return True if a text is valid JSON whose keys have the same types: most have a default, others are ignored."""
    try:
        earlier, later = json.loads(before.decode()), json.loads(after.decode())
        known = {key: value for key, value in later.items() if key in earlier}
    except (ValueError, RecursionError, AttributeError):
        return False
    return _same_types(earlier, known, may_lack_keys=True)


def is_edit_of_toml(before, after):
    """Return True if a text is valid TOML with the same types, and perhaps fewer keys: most have a default."""
    return _is_edit(before, after, tomllib.loads, may_lack_keys=True)


def is_edit_of_lines(before, after):
    """Return True for JSON lines with the same keys and types, also if the last ones are missing or incomplete."""
    try:
        lines = after.decode().split("\n")[:-1]
    except UnicodeDecodeError:
        return False
    earlier = before.decode().splitlines()
    return len(lines) <= len(earlier) and all(
        is_edit_of_json(one.encode(), other.encode()) for one, other in zip(earlier, lines, strict=False)
    )


def _is_edit(before, after, parse, *, may_lack_keys=False):
    try:
        return _same_types(parse(before.decode()), parse(after.decode()), may_lack_keys)
    except (ValueError, RecursionError):
        return False


def _same_types(before, after, may_lack_keys):
    if isinstance(before, dict) and isinstance(after, dict):
        same_keys = after.keys() <= before.keys() if may_lack_keys else after.keys() == before.keys()
        return same_keys and all(_same_types(before[key], after[key], may_lack_keys) for key in after)
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=False)
        return len(before) == len(after) and all(_same_types(one, other, may_lack_keys) for one, other in pairs)
    return type(after) is type(before) or (isinstance(before, float) and type(after) is int)
