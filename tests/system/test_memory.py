"""Errors of PyTorch and Python that mean that memory ran out are recognized."""

import os

import pytest
import torch

from txlcli.system.memory import free_bytes, is_out_of_memory, requested_size


@pytest.mark.parametrize("work", [lambda: torch.empty(1 << 50), lambda: [0] * (1 << 60)], ids=["tensor", "list"])
def test_what_does_not_fit_into_memory_is_recognized(work):
    with pytest.raises((RuntimeError, MemoryError)) as caught:  # of a tensor, a plain RuntimeError
        work()
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "message", ["could not create a memory object", "could not execute a primitive", "std::bad_alloc"]
)
def test_errors_of_libraries_that_do_not_say_what_they_lack(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError(f"{message} descriptor"))
    assert not is_out_of_memory(ValueError(message))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", " (tried to allocate 2.00 GiB)"),
        ("can't allocate memory: you tried to allocate 3221225472 bytes.", " (tried to allocate 3.00 GiB)"),
        ("can't allocate memory: you tried to allocate 1572864 bytes.", " (tried to allocate 1.5 MiB)"),
        ("Unable to allocate 7.5 MiB for an array", " (tried to allocate 7.5 MiB)"),
        ("", ""),
    ],
)
def test_the_size_of_a_request_is_stated_in_a_readable_unit(message, text):
    assert requested_size(MemoryError(message)) == text


GIB = 1 << 30
VERSION_1 = {"job/memory.limit_in_bytes": 5 * GIB, "job/memory.usage_in_bytes": 2 * GIB}
VERSION_2 = {"job/memory.max": 5 * GIB, "job/memory.current": 2 * GIB}
LIMITED = {
    "version 2": ("0::/job/step", VERSION_2, 3),
    "version 2, without a limit": ("0::/job/step", {"job/memory.max": "max", "job/memory.current": GIB}, 11),
    "version 2, caches": ("0::/job", {**VERSION_2, "job/memory.stat": f"inactive_file {GIB}\nactive_file 0"}, 4),
    "version 2, in a container": ("0::/", {"memory.max": 5 * GIB, "memory.current": 6 * GIB}, 0),
    "version 1": ("7:cpu:/\n4:hugetlb,memory:/job/step", {f"memory/{k}": v for k, v in VERSION_1.items()}, 3),
    "version 1, in a container": (
        "4:memory:/docker/of/the/host",
        {"memory/memory.limit_in_bytes": 5 * GIB, "memory/memory.usage_in_bytes": 2 * GIB},
        3,
    ),
    "version 1, caches": (
        "4:memory:/job",
        {
            **{f"memory/{k}": v for k, v in VERSION_1.items()},
            "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}",
        },
        4.5,
    ),
    "no groups": (None, {}, 11),
    "a name that is not UTF-8": ("0::/job/\udcff", VERSION_2, 3),
}


@pytest.mark.parametrize("case", LIMITED)
def test_the_limit_of_a_control_group_counts_as_the_memory_of_the_machine(tmp_path, case):
    group, files, expected = LIMITED[case]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {11 * GIB // 1024} kB\n")
    if group is not None:
        (tmp_path / "proc/self/cgroup").write_bytes(os.fsencode(f"{group}\n"))
    for name, value in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    assert free_bytes(tmp_path / "proc", tmp_path / "cgroup") == expected * GIB


def test_without_the_tables_of_linux_the_free_memory_is_unknown(tmp_path):
    assert free_bytes(tmp_path, tmp_path) is None
