"""txl probe: its numbers, computed token by token and with a pencil."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import txlcli
from tests.commands.novel import done, json_of, refusal
from txlcli.commands.probe import _bits
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.workflows.evaluation.annotated import Pieces
from txlcli.workflows.probe import copy_texts, recall_texts, word_losses

RUN, SEED, TEXTS, DISTANCES = "char", 3, 5, (2, 7)


def scored_alone(model, tokens):
    """Return the losses of all tokens but the first, and True where they are the likeliest, reading one text alone."""
    reader = model.reader()
    segments = torch.tensor(tokens[None, :-1]).split(reader.seg_len, dim=1)
    log_probs = torch.cat([reader.log_probs(reader.read(segment))[0] for segment in segments])
    targets = torch.tensor(tokens[1:])
    return -log_probs[torch.arange(len(targets)), targets].numpy(), (log_probs.argmax(-1) == targets).numpy()


def test_copies_and_recalls_are_those_of_each_text_read_alone(here):
    options = ["--distances", "7,2", "--texts", TEXTS, "--seed", SEED, "--positions", 60]
    *rows, farther, new = json_of("probe", RUN, *options)["rows"]
    assert [row["distance"] for row in (*rows, farther, new)] == [*DISTANCES, "farther", "new"]
    model, rng = txlcli.load(RUN), np.random.default_rng(SEED)
    symbols = np.unique(TokenStore.open(Path(f"data/{RUN}.h5")).ids("valid")[1:61]).astype(np.int64)
    for row in rows:
        for share, saved, make, counted in (
            ("copied", "copy_saved_nats", copy_texts, row["distance"] - 1),
            ("recalled", "recall_saved_nats", recall_texts, 1),
        ):
            scored = [scored_alone(model, text) for text in make(symbols, TEXTS, row["distance"], rng)]
            losses, hits = (np.array(values)[:, -counted:] for values in zip(*scored, strict=True))
            assert row[saved] == pytest.approx(losses[TEXTS:].mean() - losses[:TEXTS].mean(), abs=1e-6)
            assert row[share] == pytest.approx(hits[:TEXTS].mean())


def test_words_have_the_losses_of_eval(here):
    output = json_of("probe", RUN, "--distances", "10,40", "--texts", 2)
    done("eval", RUN, "--split", "valid", "--mem-len", "5,0", "--batch-size", 1, "--losses", "losses.h5")
    with h5py.File("losses.h5") as file:
        losses, without, tokens = file["mem_len_5"][:], file["mem_len_0"][:], file["tokens"][:]
    text = txlcli.load(RUN).vocab.decode(tokens)
    groups, seen = {"10": [], "40": [], "farther": [], "new": []}, {}
    for word in re.finditer(r"\w+", text):
        back = word.start() - seen.get(word[0], word.start())
        seen[word[0]] = word.start()
        group = "new" if back == 0 else "10" if back <= 10 else "40" if back <= 40 else "farther"
        part = slice(word.start(), word.end())
        groups[group].append((losses[part].sum(), without[part].sum()))
    for row, of_group in zip(output["rows"], groups.values(), strict=True):
        assert row["words"] == len(of_group)
        expected = np.mean(of_group, axis=0).tolist() if of_group else [None, None]
        assert [row["word_nats"], row["word_nats_without_memory"]] == pytest.approx(expected, rel=1e-5)
    assert len(groups["40"]) > 5


def test_a_repetition_before_the_segment_saves_nothing_without_memory(here):
    near, far, *_ = json_of("probe", RUN, "--distances", "2,10", "--mem-len", 0, "--texts", 3)["rows"]
    assert abs(near["copy_saved_nats"]) > 1e-3
    assert far["copy_saved_nats"] == pytest.approx(0.0, abs=1e-6)
    assert near["word_nats"] == near["word_nats_without_memory"]


def test_a_loss_that_rounds_to_0_has_no_sign():
    assert _bits(-1e-3) == "0.00"


def test_generated_texts_repeat_themselves_and_their_controls_do_not():
    symbols, rng = np.array([2, 3, 5, 7, 11]), np.random.default_rng(1)
    texts, controls = np.split(copy_texts(symbols, 50, 6, rng), 2)
    assert (texts[:, :6] == texts[:, 6:]).all()
    assert (controls[:, 6:] == texts[:, 6:]).all()
    assert 0.1 < (controls[:, :6] == controls[:, 6:]).mean() < 0.3  # one in five by chance
    texts, controls = np.split(recall_texts(symbols, 50, 6, rng), 2)
    assert texts.shape == (50, 8)
    assert (texts[:, :2] == texts[:, 6:]).all()
    assert (texts[:, 2:6] != texts[:, :1]).all()
    assert (texts[:, 1] != controls[:, 1]).all()
    assert (np.delete(texts, 1, axis=1) == np.delete(controls, 1, axis=1)).all()
    assert set(texts.ravel()) == set(symbols)


def test_words_are_joined_and_their_distances_counted_in_tokens():
    # Tokens: "to" " " "b" "e" "," " to" " be" — the third word begins 5 tokens after the first.
    pieces = Pieces("", ["to", " ", "b", "e", ",", " to", " be"], np.arange(7))
    losses = np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]])
    back, nats = word_losses(pieces, losses, Vocab("char", "x"))
    assert back.tolist() == [0, 0, 5, 4]
    assert nats.tolist() == [[1.0, 12.0, 32.0, 64.0]]
    words = Vocab("word", ["<unk>", "a,"], unknown=0)
    back, nats = word_losses(Pieces("", ["a,", " <unk>", " a,"], np.array([0, 1, 2])), losses[:, :3], words)
    assert (back.tolist(), nats.tolist()) == ([0, 2], [[1.0, 4.0]])


def test_texts_are_not_generated_of_a_single_symbol(here):
    message = refusal("probe", "char", "--positions", 1)
    assert message.startswith("char valid: its first 1 tokens have fewer than 2 symbols")
    assert "--positions" in message


def test_a_distance_has_at_least_two_tokens(here):
    assert refusal("probe", "byte", "--distances", "4,1") == "--distances must be at least 2, not 1"
