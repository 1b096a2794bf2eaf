"""Private PyTorch names: all in one module, and what they compute."""

import ast
from pathlib import Path

import torch

import txlcli
from txlcli.core.kernels import private

B, L, K, INPUTS, OUTPUTS = 2, 5, 7, 11, 13
OF_PYTHON = {"_fields", "_replace", "_Unpickler"}
"""Names of named tuples, which are public, and the unpickler that is written in Python."""


def private_names(source):
    """Private attributes and modules in a source text, and the lines, without those of `self`, `cls` and `os`."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")):
                names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names for name in alias.name.split(".")]
        yield from ((name, node.lineno) for name in names if name.startswith("_") and not name.startswith("__"))


def own_names(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def test_no_other_module_uses_a_private_name_of_a_library():
    files = sorted(Path(txlcli.__file__).parent.rglob("*.py"))
    sources = {path: path.read_text(encoding="utf-8") for path in files if path != Path(private.__file__)}
    own = OF_PYTHON | {name for source in sources.values() for name in own_names(source)}
    found = [f"{path}:{at} {name}" for path in sources for name, at in private_names(sources[path]) if name not in own]
    assert found == []


def test_tensors_without_data_have_a_shape_and_a_device_and_no_bytes_in_memory():
    with private.tensors_without_data():
        product = torch.zeros(1 << 30, 3) @ torch.zeros(3, 1 << 20)
    assert (product.shape, product.dtype, product.device.type) == ((1 << 30, 1 << 20), torch.float32, "cpu")
