"""Settings of weights to import, which are read and checked before PyTorch is imported."""

from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.settings import CorpusSettings, Settings, TrainSettings, plain_name
from txlcli.errors import RunError, UsageError
from txlcli.exchange import huggingface
from txlcli.runs import run_directory
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import check_regular
from txlcli.workflows.options import ImportOptions


def name_of(source: Path) -> str:
    """Return the name of a run that is named after its source."""
    return plain_name(source.resolve(), otherwise="imported")


def settings_of(source: Path, options: ImportOptions) -> Settings:
    """Return the settings: the model from a directory's configuration and the rest from the recipe, or all from it."""
    if not check_regular(source).exists():
        raise RunError(f"no file or folder at {source}; give a Hugging Face folder or a file of weights")
    if (source / run_directory.CARD).is_file():
        raise RunError(f'{source} is already a run; evaluate it with "{command_line("eval", str(source))}"')
    if not source.is_dir():
        if options.recipe is None:
            raise UsageError(
                f"{source}: a file of weights does not contain the number of heads, the cutoffs or the corpus; "
                "name its recipe, e.g. `recipe` wt103-large-tf"
            )
        return recipe.load(options.recipe, options.overrides)
    huggingface.file_of_weights(source)  # raises an error if there is none
    config, where = huggingface.read_config(source), source / huggingface.CONFIG
    if options.recipe is not None:
        table: dict[str, Any] = recipe.to_table(recipe.load(options.recipe))
    else:
        evaluation = huggingface.eval_settings(config, where)
        plain = Settings(
            corpus=CorpusSettings(store=name_of(source)),
            model=huggingface.model_settings(config, where),
            # How the model was trained is unknown. Only the lengths matter: they give the distances that it knows.
            train=TrainSettings(seg_len=evaluation.seg_len, mem_len=evaluation.mem_len, batch_size=1, max_steps=1),
            eval=evaluation,
        )
        table = recipe.to_table(plain)
    model = recipe.to_keys(huggingface.model_settings(config, where))
    return recipe.resolve(recipe.override({**table, "model": model}, options.overrides), where=str(where))
