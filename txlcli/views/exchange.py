"""Shows what was imported or exported."""

import shlex
from typing import Any

from txlcli import console


def show_import(result: dict[str, Any]) -> None:
    """Print what was imported as a table."""
    rows = [
        ["weights of", f"{result['system']} ({result['source']})"],
        ["vocabulary", f"{result['vocab_size']:,} symbols"],
        ["line end, unknown", ", ".join(result[key] or "none" for key in ("boundary", "unknown"))],
        ["norm, cutoffs", f"{result['norm']}, {result['cutoffs'] or 'none'} (from {result['settings_from']})"],
        ["token store", result["store"] or "none with this vocabulary yet"],
        ["next", result["next"]],
    ]
    console.show_table(f"{result['run']}: {result['parameters']:,} parameters", ("", ""), rows)


def show_store_export(result: dict[str, Any]) -> None:
    """Print the files of an exported store as a table."""
    rows = [
        ["files", ", ".join(result["files"])],
        ["tokens", ", ".join(f"{split} {count:,}" for split, count in result["tokens"].items())],
        *([["dtype", result["dtype"]]] if result["dtype"] else []),
        ["prepare again", shlex.join(["txl", "prepare", result["folder"], *_dtype_option(result)])],
    ]
    title = f"{result['store']} as {result['format']} files in {result['folder']}"
    console.show_table(title, ("", ""), rows, result["notes"])


def _dtype_option(result: dict[str, Any]) -> list[str]:
    """Return the option with which `txl prepare` reads ids without a header that are not uint16."""
    return ["--dtype", result["dtype"]] if result["format"] == "nanogpt" and result["dtype"] != "uint16" else []


def show_export(result: dict[str, Any]) -> None:
    """Print what was exported as a table."""
    rows = [
        ["files", ", ".join(result["files"])],
        ["import again", shlex.join(["txl", "import", result["folder"]])],
    ]
    console.show_table(f"{result['run']} as {result['folder']}", ("", ""), rows, result["notes"])
