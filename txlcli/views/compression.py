"""Shows what was compressed or restored."""

from typing import Any

from txlcli import console


def show_compressed(result: dict[str, Any]) -> None:
    """Print the sizes as a table."""
    size, packed = result["bytes"], result["compressed_bytes"]
    overhead = packed - result["predicted_bits"] / 8
    rows = [
        ["size", f"{size:,} bytes to {packed:,}" + (f" ({100 * packed / size:.2f} %)" if size else "")],
        ["bits per byte", f"{result['bits_per_byte']:.4f}" if size else "-"],
        [
            "by the predictions",
            f"{result['predicted_bits'] / 8:,.0f} bytes, and {overhead:,.0f} of header and rounding",
        ],
        ["L, M, lanes", f"{result['seg_len']}, {result['mem_len']}, {result['lanes']}"],
    ]
    if result["lane_cost_bits"] is not None:
        rows.append(["cost of the lanes", f"{result['lane_cost_bits'] / 8:,.0f} bytes beyond a single one"])
    if result["dynamic"] is not None:
        rows.append(["dynamic evaluation", "lr {:g}, decay {:g}".format(*result["dynamic"])])
    if result["escaped_symbols"]:
        rows.append(["not in the vocabulary", f"{result['escaped_symbols']:,} symbols, coded by their bytes"])
    rows.append(["time", _rate(result)])
    console.show_table(f"{result['compressed']}: {result['file']} with {result['run']}", ("", ""), rows)


def show_restored(result: dict[str, Any]) -> None:
    """Print the size and the rate."""
    console.show_line(f"{result['file']}: {result['bytes']:,} bytes restored in {_rate(result)}")


def _rate(result: dict[str, Any]) -> str:
    return f"{result['seconds']:,.1f} s, {result['bytes'] / max(result['seconds'], 1e-9):,.0f} bytes per second"
