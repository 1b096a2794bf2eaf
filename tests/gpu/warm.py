"""Compile and capture recipes for the compiler's cache on disk, while tests run.

python -m tests.gpu.warm RECIPE [CHANGE ...] [-- RECIPE [CHANGE ...]] ...
"""

import sys

from tests.gpu import rows


def main(arguments):
    """Take the first steps of each recipe; one that fails is left out."""
    recipes = [[]]
    for argument in arguments:
        if argument == "--":
            recipes.append([])
        else:
            recipes[-1].append(argument)
    for name, *changes in recipes:
        try:
            rows.first_steps(name, changes, "cuda")
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
        rows.forget_compiled(rows.torch.device("cuda"))


if __name__ == "__main__":
    main(sys.argv[1:])
