"""The settings that a run goes on with: which may change, and what is kept of a change."""

import dataclasses

from txlcli import console
from txlcli.config import recipe
from txlcli.errors import RecipeError
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run

FIXED_KEYS = ("batch_size", "seg_len", "mem_len", "optimizer", "momentum", "average", "seed")
VALID_KEYS = ("valid_seg_len", "valid_tokens")  # losses of other readings are not comparable


def changed(run: Run, changes: list[str]) -> Run:
    """The run with changed settings; what its weights, memory and place in the text rest on stays."""
    for change in changes:
        section, _, key = change.partition("=")[0].strip().partition(".")
        if section in ("corpus", "model") or (section == "train" and key in FIXED_KEYS + VALID_KEYS):
            raise RecipeError(f"--set {change}: a run that goes on keeps its {section}.{key}; start a new run instead")
    table = recipe.override(recipe.to_table(run.settings), changes)
    return dataclasses.replace(run, settings=recipe.resolve(table, where=recipe.with_changes(str(run.folder), changes)))


def check_validations(run: Run, before: Run, *, validated: int) -> None:
    """Refuse other lanes of validation once there is one to compare with; `validated` is the step of the last one."""
    lanes = run.settings.train.valid_batch_size
    if validated and lanes != before.settings.train.valid_batch_size:
        raise RecipeError(
            f"--set train.valid_batch_size={lanes}: a run that was validated keeps it, since more lanes have more "
            "tokens without context; start a new run instead"
        )


def with_changes(run: Run, before: Run, step: int) -> Run:
    """The run, whose card tells what it goes on with after this step; and say it."""
    new = recipe.differences([recipe.to_table(one.settings) for one in (before, run)])
    if not new:
        return run
    for name, (old, value) in new.items():
        console.say(f"{name} is {recipe.format_value(value)} from here on; it was {recipe.format_value(old)}")
    *earlier, last = (*run.changes, run_folder.Change(step, new))
    if earlier and earlier[-1].step == step:  # no step was taken with those
        last = earlier.pop().followed_by(new)
    return dataclasses.replace(run, changes=(*earlier, *([last] if last.settings else [])))
