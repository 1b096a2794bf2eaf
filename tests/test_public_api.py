"""The public names and signatures of the Python interface: public_api.txt has them."""

import inspect
from pathlib import Path

import txlcli
from txlcli import api, testing

PUBLIC = Path(__file__).with_name("public_api.txt")
"""Written by `python -m tests.test_public_api`."""


def signature(function):
    """Return the parameters of a function with their defaults, without types."""
    found = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def public_lines():
    """Return a line for each public name, with its parameters."""
    lines = [f"{name}{signature(getattr(txlcli, name))}" for name in txlcli.__all__]
    for name, member in vars(api.LoadedRun).items():
        if not name.startswith("_"):
            lines.append(f"LoadedRun.{name}{signature(member) if callable(member) else ''}")
    lines.append(f"TextScore{signature(api.TextScore)}")
    lines.append(f"Sampling: {', '.join(api.Sampling.__annotations__)}")
    for name in ("check_architecture", "check_encoding", "check_optimizer"):
        lines.append(f"testing.{name}{signature(getattr(testing, name))}")
    return lines


def test_the_public_names_and_their_parameters_are_these():
    assert public_lines() == PUBLIC.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    PUBLIC.write_text("".join(f"{line}\n" for line in public_lines()), encoding="utf-8")
