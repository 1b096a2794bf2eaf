"""Reads how much memory is free, recognizes errors that mean that it ran out, and formats sizes."""

import re
from collections.abc import Iterator
from pathlib import Path

LESS = "use a smaller batch size, shorter lengths or a smaller model"
"""The next step where no forecast says what would fit."""
LIBRARY_MESSAGES = frozenset(
    {
        "could not create a memory",
        "could not create a memory object",
        "could not create a primitive",
        "could not execute a primitive",
        "std::bad_alloc",
    }
)
"""Whole messages of PyTorch's RuntimeErrors for C++ code, oneDNN's above all, that does not say what it lacked."""


PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def free_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the bytes that new allocations can use, of the machine and of the control groups of this process.

    Containers and batch systems limit a group, and the system kills a process that goes beyond. None if the system does
    not report them as Linux does.
    """
    free = _values(proc / "meminfo").get("MemAvailable")
    if free is None:
        return None
    try:
        groups = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        groups = []
    return max(0, min([1024 * free, *_free_in_groups(groups, cgroups)]))


def _free_in_groups(groups: list[str], cgroups: Path) -> Iterator[int]:
    """Yield the bytes that each control group with a limit leaves; file caches of a group can be dropped."""
    for line in groups:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2
            mount = cgroups
            limit_file = "memory.max"
            used_file = "memory.current"
            prefix = ""
        elif "memory" in controllers.split(","):  # version 1
            mount = cgroups / "memory"
            limit_file = "memory.limit_in_bytes"
            used_file = "memory.usage_in_bytes"
            prefix = "total_"
        else:
            continue
        group = mount / name.strip("/")  # in a container, often a path of the host, so that only the mount is there
        for directory in (group, *group.parents):
            limit = _number(directory / limit_file)
            used = _number(directory / used_file)
            if limit is not None and used is not None:
                caches = _values(directory / "memory.stat")
                cached = sum(caches.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
                yield limit - used + cached
            if directory == mount:
                break


def _number(path: Path) -> int | None:
    """Return the number in a file of the system; None without it, as in the group of a version 2 without a limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _values(path: Path) -> dict[str, int]:
    """Return the numbers in a table of the system by their names; none without the file."""
    values = {}
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            name, number = line.split()[:2]
            values[name.removesuffix(":")] = int(number)
    except (OSError, ValueError):
        pass
    return values


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if PyTorch or Python could not allocate memory.

    On a CPU PyTorch raises a plain RuntimeError, on CUDA an OutOfMemoryError. That class is recognized by its name,
    because the command line calls this function without loading PyTorch.
    """
    classes = {cls.__name__ for cls in type(error).__mro__}
    if classes & {"MemoryError", "OutOfMemoryError"}:
        return True
    message = str(error)
    return "can't allocate memory" in message or ("RuntimeError" in classes and message in LIBRARY_MESSAGES)


def requested_size(error: BaseException) -> str:
    """Return the size in such an error, as ` (tried to allocate 2.00 GiB)`, or an empty text."""
    size = re.search(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
    if size is None:
        return ""
    amount = f"{size[1]} {size[2]}"
    if size[2] == "bytes":
        amount = format_size(float(size[1]))
    return f" (tried to allocate {amount})"


def format_size(size: float) -> str:
    """Return a number of bytes in GiB, or in MiB if it is less than one GiB."""
    if size >= 2**30:
        return f"{size / 2**30:,.2f} GiB"
    return f"{size / 2**20:,.1f} MiB"
