"""lm-evaluation-harness with runs of txl: `python -m txlcli.lm_eval --model txl --model_args run=RUN --tasks TASK`.

The harness finds models in its registry only, and loads no plugins; so `register` has to be called before it is used.
"""

import sys

from txlcli.errors import TxlError, UsageError

NAME = "txl"
"""Name of the model in the harness."""


def register() -> None:
    """Add the model "txl" to the registry of lm-evaluation-harness; its arguments are those of `HarnessModel`."""
    try:
        import lm_eval.models  # noqa: F401, PLC0415 - fills the registry, which must not be empty before txl is added
        from lm_eval.api.registry import model_registry  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise UsageError(
            f'lm-evaluation-harness cannot be imported ({error}); run pip install "lm_eval>=0.4.13" first'
        ) from error
    if NAME not in model_registry:
        model_registry.register(NAME, target="txlcli.lm_eval.model:HarnessModel")


def main() -> None:
    """Run the harness's own command line, with the model "txl"."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate  # noqa: PLC0415 - an optional package

        cli_evaluate()
    except TxlError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
