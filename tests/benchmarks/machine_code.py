"""Compile what torch.compile generates for recipes to machine code for GPUs that are not there.

python -m tests.benchmarks.machine_code [RECIPE ...] [--capability 80 --capability 90]

A fake device collects the kernels of Inductor of a training step, of a segment of evaluation and of a single token, by
default for enwik8, ptb and wt103. Triton compiles each for every compute capability, and the assembler says what it
needs. It fails if a kernel does not compile, spills more than a few registers, or needs more shared memory than a
program can have. Needs Linux, g++ and Triton.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.benchmarks import launches
from tests.core.fake_devices import call

RECIPES = ("enwik8", "ptb", "wt103")
MAX_SPILLED_BYTES = 32


def collect(recipe, directory):
    """Write the source of every kernel of Inductor for a recipe into a directory, and their names."""
    from tests.core.fake_cuda import triton_device

    launches.measure_here(recipe)
    directory = Path(directory)
    names = {}
    for number, (source, name) in enumerate(triton_device.sources.items()):
        file = directory / f"kernel_{number}.py"
        file.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))  # there is no GPU to find
        names[file.name] = name
    (directory / "names.json").write_text(json.dumps(names))


def kernel_of(file, name):
    """Import a kernel of Inductor from its source."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def compiled(kernel, capability):
    """Yield the kernel compiled for a compute capability, in each of its configurations."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for config in kernel.configs:
        meta = kernel._create_compile_meta(config)
        meta["cc"] = capability
        source = ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0])
        options = kernel._create_compile_options(config, meta)
        yield triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def check(directory, capability):
    """Compile all kernels of a directory; return their needs by name, and lines about those that are wrong."""
    from tests.core.kernels.triton_compiler import SHARED_BYTES, compiling_for, resources

    needs, wrong = [], []
    for file, name in json.loads((directory / "names.json").read_text()).items():
        try:
            with compiling_for(capability):
                kernel = kernel_of(directory / file, name)
                found = [resources(binary) for binary in compiled(kernel, capability)]
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            continue
        best = min(found, key=lambda need: need["spilled"])  # Inductor times configurations, and skips those that spill
        needs.append(best)
        if best["spilled"] > MAX_SPILLED_BYTES or best["shared"] > SHARED_BYTES[capability]:
            wrong.append(f"{name}: {best}")
    return needs, wrong


def main(
    recipes: Annotated[list[str] | None, typer.Argument(help="Recipes of models with attention.")] = None,
    capability: Annotated[list[int] | None, typer.Option(help="Compute capability, as 90 for 9.0.")] = None,
) -> None:
    """Compile the kernels of recipes for GPUs."""
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        library = launches.cuda_library(Path(directory))
        for recipe in recipes or RECIPES:
            kernels = Path(directory) / recipe
            kernels.mkdir()
            call(library, "tests.benchmarks.machine_code:collect", recipe, str(kernels))
            for number in capability or (80, 90):
                needs, wrong = check(kernels, number)
                most = {key: max(need[key] for need in needs) for key in ("registers", "spilled", "shared")}
                told = ", ".join(f"{key} {value:,}" for key, value in most.items())
                print(f"{recipe}, sm_{number}: {len(needs)} kernels, at most {told}", flush=True)
                for line in wrong:
                    print(f"  wrong: {line}", flush=True)
                failures += len(wrong)
    sys.exit(int(failures > 0))


if __name__ == "__main__":
    typer.run(main)
