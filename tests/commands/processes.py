"""Helpers for tests of commands that run in several processes."""

import re
import socket
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import pytest

from tests.commands.novel import LONGEST_WAIT_S, start

on_linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
TORCHRUN = ["--standalone", "--nproc-per-node", "2", "-m", "txlcli"]


def ended(process, code):
    """Return the stdout of a process and the lines of its stderr."""
    stdout, stderr = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == code, stderr
    return stdout, stderr.splitlines()


def processes_in(here):
    """Return the ids of the processes that train in this folder, by rank."""
    ids = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            current, environment = (directory / "cwd").readlink(), (directory / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        rank = [word for word in environment.split(b"\0") if word.startswith(b"RANK=")]
        if current == here.resolve() and rank:
            ids[int(rank[0].removeprefix(b"RANK="))] = int(directory.name)
    return ids


def start_ranks(*of_each_rank, port, **changed):
    """Start one process per rank as a cluster does, with RANK and WORLD_SIZE; each gets its own arguments."""
    world = {"WORLD_SIZE": len(of_each_rank), "MASTER_ADDR": "localhost", "MASTER_PORT": port, **changed}
    return [
        start(*arguments, environment={name: str(value) for name, value in (world | {"RANK": rank}).items()})
        for rank, arguments in enumerate(of_each_rank)
    ]


def environment_of(pid):
    """Return the environment with which a process was started."""
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if word)


def listening(pids):
    """Return the addresses and ports on which these processes wait for connections."""
    owned = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            owned |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in owned:
                address, port = local.split(":")
                found.append((_address(address), int(port, 16)))
    return found


def _address(words):
    """Return an address from the hexadecimal words of /proc/net, the lowest byte of each first."""
    packed = b"".join(bytes.fromhex(word)[::-1] for word in re.findall(".{8}", words))
    address = ip_address(packed)
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def network_addresses():
    """Return the addresses at which other machines reach this one: none without a network."""
    found = []
    for family, elsewhere in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect((elsewhere, 9))  # sends nothing
            except OSError:
                continue
            found.append(sender.getsockname()[0])
    return found
