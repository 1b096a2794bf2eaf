"""Mutations: damaged files of every format, read by the commands that use them.

A result is silently wrong if a command ends with exit code 0, reports no damage and prints another result than with the
undamaged file. Texts without a checksum can also be edited by hand: a mutation that leaves a recipe, or a run.json or a
line of reports without its checksum, valid, with the same keys and types, counts as such an edit, and may give another
result. So does the vocabulary or SentencePiece model of a stranger, whose fingerprint fits, and a store of a stranger
without a seal. A command that fails must leave all files as they were, and no new ones, unless the damage is an edit: a
training may begin with it.
"""

import base64
import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from tests.cards import read_card
from tests.faults import process, results
from tests.faults.damage import (
    damaged_bytes,
    damaged_toml,
    damaged_value,
    is_cut,
    is_edit_of_card,
    is_edit_of_configuration,
    is_edit_of_json,
    is_edit_of_lines,
    is_edit_of_toml,
    short,
    to_json,
)
from tests.faults.sample import BARE, RECL, Sample, state_of
from tests.faults.table import LEFTOVER, LOST, SILENT
from tests.hdf5_files import unsealed
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.runs import log_file

EVAL = ("--positions", "40", "--json")
OTHERS = (
    *("data/char.h5", "runs/char/best.safetensors", "tf.npz", "state.pt", "tiny.toml", "hf/config.json", "words.pkl"),
    *("runs/char/vocab.json", "text8.zip"),
)
"""Files of all formats, which replace the damaged one."""


WRONG_ATTRIBUTES = (None, -1, 0, 7, 2.5, "", "x", "\x1b[31m", float("nan"), 2**62, [1, 2], np.zeros((2, 3)), b"\xff")
"""Values of attributes of HDF5 files; None removes the attribute."""


@dataclass(frozen=True)
class Target:
    """A file of one format, and the commands that read it."""

    format: str
    file: str
    needs: tuple[str, ...]
    """Files and directories of the sample that the commands need, the file among them."""
    commands: tuple[tuple[str, ...], ...]
    damage: Callable
    """Function like `damage_bytes`: returns a description, and True if no other result is permitted."""
    output: str | None = None
    """File that the last command writes."""


# --- kinds of damage -------------------------------------------------------------------------------------------------


def damage_bytes(path, others, number, chance, *, is_edit=None):
    """Damage bytes anywhere in a file; `is_edit` says which damage is an edit."""
    before = path.read_bytes()
    name, after = damaged_bytes(before, others, number, chance)
    path.write_bytes(after)
    return name, is_edit is None or not is_edit(before, after)


def damage_json(path, others, number, chance, *, is_edit=is_edit_of_json):
    """Damage bytes, or change the type of one value in a JSON file."""
    if number % 2:
        return damage_bytes(path, others, number // 2, chance, is_edit=is_edit)
    before = path.read_bytes()
    name, value = damaged_value(json.loads(before), number // 2, chance)
    path.write_text(to_json(value, indent=2), encoding="utf-8")
    return name, not is_edit(before, path.read_bytes())


def damage_run(path, others, number, chance):
    """Damage bytes, or change the type of one value in run.json, most of the time without its checksum."""
    if number % 2:
        return damage_bytes(path, others, number // 2, chance, is_edit=is_edit_of_card)
    before = path.read_bytes()
    card = json.loads(before) if number % 8 == 0 else read_card(path.parent)
    name, value = damaged_value(card, number // 2, chance)
    path.write_text(to_json(value, indent=2), encoding="utf-8")
    return f"{name}{', no checksum' * ('checksum' not in value)}", not is_edit_of_card(before, path.read_bytes())


def damage_lines(path, others, number, chance):
    """Damage bytes in a file with a JSON object per line, or change a value of a line without a checksum."""
    if number % 2:
        return damage_bytes(path, others, number // 2, chance, is_edit=is_cut)
    lines = path.read_text().splitlines()
    line = chance.randrange(len(lines))
    name, value = damaged_value(log_file.from_line(lines[line]), number // 2, chance)
    earlier = [*lines]
    earlier[line], lines[line] = to_json(log_file.from_line(lines[line])), to_json(value)
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    before = "".join(f"{text}\n" for text in earlier).encode()
    return f"line {line + 1}: {name}", not is_edit_of_lines(before, path.read_bytes())


def damage_recipe(path, others, number, chance):
    """Damage bytes, or change the type of one value in a recipe."""
    if number % 2:
        return damage_bytes(path, others, number // 2, chance, is_edit=is_edit_of_toml)
    before = path.read_bytes()
    name, text = damaged_toml(before.decode(), chance)
    path.write_text(text)
    return name, not is_edit_of_toml(before, text.encode())


def damage_store(path, others, number, chance):
    """Damage bytes, or change the type of one value in the JSON of a store, half of the time without its seal."""
    if number % 3:
        name, is_strict = damage_bytes(path, others, number, chance)
        return name, is_strict and "replaced by data/" not in name  # a store may be renamed
    is_sealed = number % 2
    with h5py.File(path, "r+") if is_sealed else unsealed(path) as file:
        holders = [(file, "facts"), *((group, "info") for group in file["splits"].values())]
        holder, attribute = chance.choice(holders)
        before = json.loads(holder.attrs[attribute])
        name, value = damaged_value(before, number // 3, chance)
        holder.attrs[attribute] = to_json(value)
        name = f"{holder.name}@{attribute}: {name}"
    if is_sealed:
        return name, True
    is_edit = is_edit_of_configuration(to_json(before).encode(), to_json(value).encode())  # conventions have any keys
    return f"{name}, no seal", not is_edit


def damage_stored_vocabulary(path, others, number, chance):
    """Change the type of one value in the vocabulary of a store, half of the time with a fingerprint that fits."""
    is_sealed = number % 2
    with h5py.File(path, "r+") if is_sealed else unsealed(path) as file:
        name, value = damaged_value(json.loads(bytes(file["vocabulary"][()])), number // 2, chance)
        text = _canonical(value).encode()
        del file["vocabulary"]
        file["vocabulary"] = np.frombuffer(text, dtype=np.uint8)
        if not is_sealed:
            file.attrs["fingerprint"] = hashlib.sha256(text).hexdigest()
    return f"vocabulary: {name}{'' if is_sealed else ', fingerprint fits'}", bool(is_sealed)


def damage_losses(path, others, number, chance):
    """Damage bytes, or change the type of one attribute of a file of losses without its seal."""
    if number % 3:
        return damage_bytes(path, others, number, chance)
    with unsealed(path) as file:
        holders = [file]
        file.visititems(lambda _, part: holders.append(part))
        holder, attribute = chance.choice([(holder, key) for holder in holders for key in holder.attrs])
        name = _damage_attribute(holder, attribute, number // 3, chance)
    return f"{holder}@{attribute}: {name}, no seal", False


def _damage_attribute(holder, attribute, number, chance):
    """Change an attribute, or a value in its JSON; return a description."""
    text = holder.attrs[attribute]
    if isinstance(text, str) and text.startswith("{"):
        name, value = damaged_value(json.loads(text), number, chance)
        holder.attrs[attribute] = to_json(value)
        return name
    value = chance.choice(WRONG_ATTRIBUTES)
    if value is None:
        del holder.attrs[attribute]
    else:
        holder.attrs[attribute] = value
    return short(value)


def damage_checkpoint(path, others, number, chance):
    """Damage bytes, or change the type of one value of the training state and save the checkpoint again."""
    if number % 3:
        return damage_bytes(path, others, number, chance)
    before, loaded = state_of(path.read_bytes()), checkpoint.load(path)
    state = {key: value for key, value in loaded.state.items() if key in before}
    name, changed = damaged_value(state, number // 3, chance)
    try:
        checkpoint.save(path, Checkpoint(loaded.tensors, changed))
    except (TypeError, ValueError):  # an integer that Python refuses to write as text
        return damage_bytes(path, others, number, chance)
    if name.startswith(("train_sha256", "valid_sha256")) and changed.get(name.split()[0]) is None:
        return f"state {name}", False  # earlier versions did not write it
    return f"state {name}", not is_edit_of_json(json.dumps(state).encode(), to_json(changed).encode())


def damage_vocabulary(path, others, number, chance):
    """Damage the vocabulary of a run, half of the time with a fingerprint that fits."""
    if number % 2:
        return damage_json(path, others, number // 2, chance, is_edit=lambda *_: False)
    name, value = damaged_value(json.loads(path.read_text(encoding="utf-8")), number // 2, chance)
    _replace_vocabulary(path, value)
    return f"{name}, fingerprint fits", False


def damage_sentencepiece(path, others, number, chance):
    """Damage the SentencePiece model of a run, most of the time with a fingerprint that fits."""
    value = json.loads(path.read_text(encoding="utf-8"))
    name, model = damaged_bytes(base64.b64decode(value["model"]), others, number, chance)
    value["model"] = base64.b64encode(model).decode()
    if number % 3 == 0:
        path.write_text(_canonical(value), encoding="utf-8")
        return name, True
    _replace_vocabulary(path, value)
    return f"{name}, fingerprint fits", False


def _replace_vocabulary(path, value):
    """Write a vocabulary and its fingerprint wherever a run keeps it."""
    text = _canonical(value)
    path.write_text(text, encoding="utf-8")
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    card = path.with_name("run.json")
    card.write_text(json.dumps(read_card(card.parent) | {"vocab_fingerprint": fingerprint}))
    for name in ("best.safetensors", "last.safetensors"):
        loaded = checkpoint.load(path.with_name(name))
        state = loaded.state | {"vocab_fingerprint": fingerprint}
        checkpoint.save(path.with_name(name), Checkpoint(loaded.tensors, state))


def _canonical(value):
    """Return a vocabulary as txl writes it."""
    return to_json(value, sort_keys=True, separators=(",", ":"))


def damage_weights(path, others, number, chance):
    """Damage weights of another system; their format has no checksum of the numbers."""
    before = path.read_bytes()
    start = 8 + int.from_bytes(before[:8], "little")

    def is_edit(_, after):
        if len(after) != len(before) or after[:8] != before[:8]:
            return False
        return after[8:start] == before[8:start] or is_edit_of_json(before[8:start], after[8:start])

    return damage_bytes(path, others, number, chance, is_edit=is_edit)


damage_words = partial(damage_bytes, is_edit=lambda *_: True)  # any words are a vocabulary


# --- targets ---------------------------------------------------------------------------------------------------------


HALF = (("runs", "show", "half", "--json"), ("eval", "half", *EVAL), ("train", "--resume", "half", "--json"))
WORD = (("generate", "word", "--prompt", "the fox", "--tokens", "5", "--greedy", "--json"), ("eval", "word", *EVAL))
PIECES = (("generate", "sentencepiece", "--prompt", "the fox", "--tokens", "5", "--greedy", "--json"),)
NEEDS_HALF = ("runs/half", "data/novel.h5")
NEW, RESUMED, IMPORTED = "runs/new/last.safetensors", "runs/half/last.safetensors", "runs/imported/best.safetensors"
SHORT = ("--max-steps", "2", "--name", "new", "--json")


NEEDS_FOREIGN = ("foreign.toml", "words.txt", "data/char.h5")


def _import(source, *words, then=("eval", "imported", "--text", "words.txt", *EVAL)):
    return ("import", source, *words, "--name", "imported", "--json"), then


TARGETS = (
    *(
        Target(
            "store",
            f"data/{store}.h5",
            (f"data/{store}.h5", f"runs/{run}", "tiny.toml"),
            (
                ("prepare", "--list", "--json"),
                ("eval", run, *EVAL),
                ("train", "tiny.toml", "--set", f"corpus.store={store}", *SHORT),
            ),
            damage,
            NEW,
        )
        for store, run, damage in (
            ("novel", "byte", damage_store),
            ("word", "word", damage_store),
            ("word", "word", damage_stored_vocabulary),
        )
    ),
    Target(
        "recipe", "tiny.toml", ("tiny.toml", "data/novel.h5"), (("train", "tiny.toml", *SHORT),), damage_recipe, NEW
    ),
    Target("run", "runs/half/run.json", NEEDS_HALF, HALF, damage_run, RESUMED),
    *(
        Target(
            "jsonl",
            f"runs/half/{name}",
            (*NEEDS_HALF, "runs/word"),
            (("runs", "show", "half", "--json"), ("runs", "compare", "half", "word", "--json"), ("runs", "--json")),
            damage_lines,
        )
        for name in ("metrics.jsonl", "evals.jsonl")
    ),
    Target("checkpoint", "runs/half/best.safetensors", NEEDS_HALF, HALF[:2], damage_checkpoint),
    Target("checkpoint", "runs/half/last.safetensors", NEEDS_HALF, (HALF[0], HALF[2]), damage_checkpoint, RESUMED),
    Target(
        "loss-file",
        "runs/recl.h5",
        ("runs/recl.h5", "runs/byte", "data/novel.h5"),
        (("recl", "byte", *RECL, "--split", "valid", "--json"),),
        damage_losses,
    ),
    Target(
        "loss-file",
        "losses.h5",
        ("losses.h5", "runs/byte", "data/novel.h5"),
        (("eval", "byte", *EVAL, "--losses", "losses.h5"),),
        damage_losses,
        "losses.h5",
    ),
    Target("vocabulary", "runs/word/vocab.json", ("runs/word", "data/word.h5"), WORD, damage_vocabulary),
    Target("sentencepiece", "runs/sentencepiece/vocab.json", ("runs/sentencepiece",), PIECES, damage_sentencepiece),
    *(
        Target(
            "import",
            f"hf/{name}",
            ("hf", "data/word.h5"),
            _import("hf", then=("eval", "imported", *EVAL)),
            damage,
            IMPORTED,
        )
        for name, damage in (
            ("config.json", partial(damage_json, is_edit=is_edit_of_configuration)),
            ("model.safetensors", damage_weights),
            ("vocab.json", partial(damage_json, is_edit=lambda *_: True)),  # any words are a vocabulary
        )
    ),
    Target("import", "state.pt", ("state.pt", *NEEDS_FOREIGN), _import("state.pt", *BARE), damage_bytes, IMPORTED),
    Target("import", "tf.npz", ("tf.npz", *NEEDS_FOREIGN), _import("tf.npz", *BARE), damage_bytes, IMPORTED),
    Target("import", "words.txt", ("state.pt", *NEEDS_FOREIGN), _import("state.pt", *BARE), damage_words, IMPORTED),
    *(
        Target(
            "archive", file, (file,), (("prepare", name, "--source", file, "--json"),), damage_bytes, f"data/{name}.h5"
        )
        for name, file in (("ptb", "ptb.tgz"), ("text8", "text8.zip"))
    ),
)
FORMATS = tuple(dict.fromkeys(target.format for target in TARGETS))


@dataclass(frozen=True)
class Mutation:
    """A mutation of one file, and the commands that read it afterwards."""

    target_file: Target
    number: int
    """Among the mutations of the format."""
    seed: int
    sample: Sample
    expected: list
    """Results of the commands with the undamaged file."""
    output: object
    """What the last command writes with the undamaged file."""

    fault = "mutations"

    @property
    def target(self):
        return self.target_file.format

    @property
    def name(self):
        return f"{self.target_file.file} #{self.number}"

    def act(self, directory, outcome):
        target = self.target_file
        self.sample.copy(target.needs, directory)
        others = {name: (self.sample.directory / name).read_bytes() for name in OTHERS}
        chance = random.Random(f"{self.seed} {target.file} {self.number}")
        damage, is_strict = target.damage(directory / target.file, others, self.number // self._turns(), chance)
        outcome.name = f"{self.name}: {damage}"
        for words, expected in zip(target.commands, self.expected, strict=True):
            before = results.contents(directory)
            ended = outcome.examine(process.run(*words, directory=directory))
            if is_strict and not ended.done:
                examine_files(before, results.contents(directory), ended, outcome)
            wrong = ended.done and (
                results.stable(ended.stdout) != expected
                or (words == target.commands[-1] and _output(target, directory) != self.output)
            )
            if wrong and is_strict and not _reports_damage(ended.stderr):
                outcome.add(SILENT, f"{ended.command}: another result")

    def _turns(self):
        return sum(target.format == self.target for target in TARGETS)


def examine_files(before, after, ended, outcome):
    """Check that a command that failed has left all files as they were."""
    if lost := [name for name in before if after.get(name) != before[name]]:
        outcome.add(LOST, f"{ended.command}: failed, and changed {', '.join(lost)}; {ended.last_line}")
    if added := [name for name in after if name not in before]:
        outcome.add(LEFTOVER, f"{ended.command}: failed, and left {', '.join(added)}; {ended.last_line}")


def _reports_damage(stderr):
    return "error: " in stderr or "damaged" in stderr


def injections(sample, amounts):
    """Return the mutations of all formats, or of those that are asked for."""
    made = []
    for name in amounts.formats or FORMATS:
        targets = [target for target in TARGETS if target.format == name]
        expected = [_expected(sample, target) for target in targets]
        for number in range(amounts.mutations):
            turn = number % len(targets)
            made.append(Mutation(targets[turn], number, amounts.seed, sample, *expected[turn]))
    return made


def _expected(sample, target):
    """Return the results of the commands with the undamaged file, and the file that the last one writes."""
    with tempfile.TemporaryDirectory(dir=sample.directory.parent) as name:
        directory = sample.copy(target.needs, Path(name))
        ended = [process.run(*words, directory=directory) for words in target.commands]
        output = _output(target, directory)
    for one in ended:
        assert one.done, f"{one.command}: {one.stderr}"
    return [results.stable(one.stdout) for one in ended], output


def _output(target, directory):
    return results.written(directory / target.output) if target.output else None
