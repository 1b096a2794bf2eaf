"""Packages that must be importable for each part of `tests.gpu`; nothing needs to be installed by pip.

The list is complete: it also has what each package needs, but for what PyTorch brings along.
"""

from importlib import metadata

EVERY_PART = "every part"
OF_TYPER = (
    *("typer>=0.29", "annotated-doc", "annotated-types", "markdown-it-py", "mdurl", "pydantic", "pydantic-core"),
    *("pygments", "rich", "shellingham", "typing-inspection"),
)
NEEDED = {
    EVERY_PART: (
        *("torch>=2.11,<2.14", "triton>=3.6", "numpy>=1.26"),
        *("safetensors>=0.4.3", "xxhash>=3.4", "filelock>=3.12", "h5py>=3.10"),
    ),
    "tests": (
        *("pytest>=8", "iniconfig", "packaging", "pluggy", "pytest-xdist>=3.5", "execnet"),
        *("hypothesis>=6.100", "sortedcontainers", *OF_TYPER),
    ),
    "peer": (
        *("transformers==4.36.2", "tokenizers>=0.14,<0.19", "huggingface-hub>=0.19.3,<1.0", "hf-xet"),
        *("requests", "certifi", "charset-normalizer", "idna", "urllib3"),
        *("pyyaml", "regex", "tqdm", "packaging", *OF_TYPER),
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
    print("# ptb also needs the store data/ptb.h5, which `txl prepare ptb` writes")
