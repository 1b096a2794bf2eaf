"""What a GPU of Apple's has to compute: training and reading of each case of `device_cases`, and measures."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.core.device_cases import CASES, build, load, read, start
from tests.core.fake_apple.device import APPLE, generator_calls, pretending
from tests.core.fake_devices import outcomes
from txlcli.core.kernels.device import forked_generators
from txlcli.core.measures.adaptation import theta_candidates
from txlcli.core.measures.attention_maps import first_query, observe
from txlcli.core.measures.timing import Repetitions, peak_flops_per_s, time_evaluation, time_training
from txlcli.core.reading.sampling import Sampling, generate, reader_of_one_text
from txlcli.core.reading.scoring import Stream
from txlcli.core.reading.windows import score_windows, windows_at_once
from txlcli.core.training import checkpoint


def train_and_read(case):
    """Take two steps and save the generators; read segments, a token, and tokens that are sampled."""
    settings = load(case)
    training = start(settings, build(case, settings, APPLE))
    for _ in range(2):
        training.update()
    assert {"cpu", "apple"} == checkpoint.gather_generators(training.world, training.device).keys()
    read(settings, build(case, settings, APPLE))
    reader = reader_of_one_text(build(case, settings, APPLE), settings.eval)
    tokens = generate(reader, torch.zeros(7, dtype=torch.long), Sampling(top_p=0.9), seed=3)
    assert list(itertools.islice(tokens, 2)) == [0, 0]


def measures():
    """Score windows, average attention, time products, evaluation and training, and suggest parameters of a cache."""
    settings = load("relative")
    model = build("relative", settings, APPLE)
    ids = np.arange(first_query(settings.eval) + 5)
    stream = Stream(model, ids, ids, replace(settings.eval, batch_size=1))
    observe(stream, at=len(ids) - 5, rows=3)
    windows = replace(settings.eval, seg_len=11, mem_len=0, batch_size=windows_at_once(model, 11))
    score_windows(Stream(model, ids[:40], ids[:40], windows), stride=3)
    peak_flops_per_s(APPLE, "fp32", size=7)
    time_evaluation(model, replace(settings.eval, batch_size=2), Repetitions(1))
    time_training(model, settings.train, Repetitions(1))
    theta_candidates(model, ids[:13], settings.eval)


def generators():
    """Restore the generator of the device after a block."""
    generator_calls.clear()
    with forked_generators(APPLE):
        assert generator_calls == ["read"]
    assert generator_calls == ["read", "set"]


def noticed():
    """Fail where the device must reject something."""
    with pytest.raises(AssertionError, match="float64"):
        torch.ones(2, device=APPLE).double()
    with pytest.raises(AssertionError, match="asynchronous"):
        torch.ones(2).to(APPLE, non_blocking=True)
    table = torch.ones(5, 3, device=APPLE, requires_grad=True)
    rows = F.embedding(torch.ones(2, dtype=torch.long, device=APPLE), table, sparse=True)
    with pytest.raises(AssertionError, match="sparse"):
        rows.sum().backward()


OTHERS = {"measures": measures, "generators": generators, "noticed": noticed}


def check(name):
    with pretending():
        if name in CASES:
            train_and_read(name)
        else:
            OTHERS[name]()


def failures(names):
    """Return the tracebacks of checks that fail."""
    found = outcomes({name: partial(check, name) for name in names})
    return [outcome for outcome in found.values() if outcome is not None]
