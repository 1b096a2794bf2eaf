"""Packages that must be importable for each part of `tests.gpu`; nothing needs to be installed by pip.

On a machine with a network: python -m tests.gpu wheels > needed.txt, then pip download -r needed.txt.
"""

from importlib import metadata

EVERY_PART = "every part"
NEEDED = {
    EVERY_PART: (
        *("torch>=2.11,<2.14", "triton>=3.6", "numpy>=1.26"),
        *("safetensors>=0.4.3", "xxhash>=3.4", "filelock>=3.12", "h5py>=3.10"),
    ),
    "tests": ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "typer>=0.12"),
    "peer": (
        *("transformers==4.36.2", "tokenizers>=0.14,<0.19", "huggingface-hub>=0.19.3,<1.0"),
        *("requests", "pyyaml", "regex", "tqdm", "packaging", "typer>=0.12"),
    ),
    "ptb": ("pyarrow>=17", "sentencepiece>=0.2.2"),
}
"""Requirements of the modules that a part really imports. Those of `txl` itself are more: see pyproject.toml."""


def installed(requirement):
    """Return the version that is importable here and whether it satisfies a requirement, as far as this can be told."""
    name = requirement
    for sign in "=<>":
        name = name.partition(sign)[0]
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return None, False
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        return version, requirement == name or version in requirement or ">=" in requirement
    return version, Requirement(requirement).specifier.contains(version, prereleases=True)


def show():
    """Print the requirements: those that are satisfied here as comments."""
    for part, requirements in NEEDED.items():
        print(f"# {part}")
        for requirement in requirements:
            version, fits = installed(requirement)
            print(f"# {requirement}: here {version}" if fits else f"{requirement}  # here {version or 'missing'}")
