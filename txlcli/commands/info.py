"""`txl info`: versions, device, threads, stores and runs."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json
from txlcli.workflows.workspace import Workspace

if TYPE_CHECKING:
    from txlcli.workflows.info import Installation


def info(workspace: Workspace, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    from txlcli.workflows.info import describe

    console.show_result(describe(workspace.data_dir, workspace.runs_dir), _show, json=json)


def _show(installed: "Installation") -> None:
    for name, value in vars(installed).items():
        items = [f"{key} {of_key}" for key, of_key in value.items()] if isinstance(value, dict) else value
        text = ", ".join(items) if isinstance(items, list | tuple) else str(items or "")
        console.show_line(f"{name.replace('_', ' ')}: {text or 'none'}")
