"""`txl info`: versions, device, threads, stores and runs."""

from txlcli import console
from txlcli.commands.options import Json
from txlcli.workflows.workspace import Workspace


def info(workspace: Workspace, json: Json = False) -> None:
    """Show versions, device, threads, token stores and runs.

    Add its output to a report of a problem.

    Example: txl info
    """
    from txlcli.workflows.info import describe

    console.show_result(describe(workspace.data_dir, workspace.runs_dir), json=json)
