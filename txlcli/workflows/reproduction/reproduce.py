"""Reproduces tables and figures one after the other, and keeps the report in its directory up to date."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from txlcli.errors import RunError, TxlError, UsageError
from txlcli.system import locks
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_REPORT, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.runner import Runner
from txlcli.workflows.reproduction.section import Section

SECTIONS, LOCK = "reproduction.json", ".lock"
Render = Callable[[Sequence[Section]], Mapping[str, str]]
"""Returns the text of each file of the report, by name."""


def reproduce(
    names: Sequence[str], directory: Path, scale_name: str, make_runner: Callable[[], Runner], render: Render
) -> list[Section]:
    """Reproduce items into the report in a directory, which keeps the sections of earlier calls.

    Args:
        names: items, in the paper's order.
        directory: directory of the report; created if necessary.
        scale_name: name of the scale, which must be that of the report.
        make_runner: called once the directory is locked.
        render: makes the files of the report from its sections.
    """
    _make_directory(directory)
    new_sections = []
    with locks.exclusive(
        directory / LOCK, f"another process writes to {directory}; wait for it, or give another --out"
    ):
        by_name = _read_sections(directory, scale_name, render)
        runner = make_runner()
        for number, name in enumerate(names, 1):
            runner.workspace.reporter.say("")
            runner.workspace.reporter.say(f"{name} ({number} of {len(names)}), {scale_name} scale")
            with runner.recording() as provenance:
                section = ITEMS[name].make(runner)
            facts = {**dataclasses.asdict(provenance), "scale": scale_name, "hardware": runner.machine}
            section = dataclasses.replace(section, **facts)
            new_sections.append(section)
            by_name[name] = section
            _write(directory, scale_name, by_name, render)  # after each item, so that an interruption loses only one
    return new_sections


def _make_directory(directory: Path) -> None:
    if (directory / SECTIONS).is_file():
        return
    begun = {LOCK, f".{SECTIONS}.new"}  # a killed process may have left these
    if directory.exists() and not (directory.is_dir() and {path.name for path in directory.iterdir()} <= begun):
        raise UsageError(f"{directory} exists and is not a reproduction; give another --out")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TxlError(f"{directory}: cannot be created ({error.strerror}); give another --out") from error


def _read_sections(directory: Path, scale_name: str, render: Render) -> dict[str, Section]:
    """Return the sections of a report; write an empty report into a new directory."""
    path = directory / SECTIONS
    if not path.exists():
        _write(directory, scale_name, {}, render)
        return {}
    try:
        stored = parse_json(read_text(path, MAX_REPORT))
        sections = {name: Section.from_table(table) for name, table in stored["sections"].items()}
        stored_scale = str(stored["scale"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: damaged, or of another version of txl ({error}); remove the folder, or give another --out"
        ) from error
    if stored_scale != scale_name:
        raise UsageError(f"{directory} is a reproduction at {stored_scale} scale; give another --out")
    return sections


def _write(directory: Path, scale_name: str, by_name: Mapping[str, Section], render: Render) -> None:
    """Write the sections and the files of the report."""
    tables = {name: section.to_table() for name, section in by_name.items()}
    texts = {
        SECTIONS: json.dumps({"scale": scale_name, "sections": tables}),
        **render([by_name[name] for name in ITEMS if name in by_name]),
    }
    try:
        for name, text in texts.items():
            with replacing(directory / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TxlError(f"{directory}: the report cannot be written ({error.strerror}); free some space") from error
