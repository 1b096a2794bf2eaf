"""Sampling draws what it should, as often as it should, and reads it with memory."""

import itertools

import pytest
import torch

from tests.core import tape
from tests.core.builders import V, draw_tokens, make_decoder, small_model
from txlcli.core.reading.sampling import NO_TOKEN, Sampling, generate, sample
from txlcli.errors import RunError

L, M = 5, 7
ODDS = torch.tensor([0.05, 0.4, 0.25, 0.3])  # likeliest first: 1, 3, 2, 0


def drawn(options, count=2000, odds=ODDS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    candidates = odds.log().topk(options.candidates(len(odds)))
    noise = torch.empty_like(candidates.values)
    tokens = [sample(*candidates, options, noise.exponential_(generator=generator)) for _ in range(count)]
    return torch.bincount(torch.cat(tokens), minlength=len(odds)) / count


def shares(*wanted):
    wanted = torch.tensor(wanted)
    return wanted / wanted.sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Sampling(top_k=None), ODDS),
        (Sampling(top_k=40), ODDS),
        (Sampling(top_k=2), shares(0, 0.4, 0, 0.3)),
        (Sampling(top_k=1), shares(0, 1.0, 0, 0)),
        (Sampling(greedy=True), shares(0, 1.0, 0, 0)),
        (Sampling(top_k=None, temperature=0.5), shares(0.05**2, 0.4**2, 0.25**2, 0.3**2)),
        (Sampling(top_k=None, temperature=2.0), shares(0.05**0.5, 0.4**0.5, 0.25**0.5, 0.3**0.5)),
        (Sampling(top_k=None, top_p=0.3), shares(0, 1.0, 0, 0)),
        (Sampling(top_k=None, top_p=0.6), shares(0, 0.4, 0, 0.3)),
        (Sampling(top_k=None, top_p=0.9), shares(0, 0.4, 0.25, 0.3)),
        (Sampling(top_k=None, top_p=1.0), ODDS),
        # Of the two likeliest, 4/7 and 3/7 of what is left, the first alone reaches a half.
        (Sampling(top_k=2, top_p=0.5), shares(0, 1.0, 0, 0)),
    ],
)
def test_tokens_come_as_often_as_they_should(options, expected):
    found = drawn(options)
    assert ((expected == 0) == (found == 0)).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.04)  # four standard deviations of 2,000 draws


def test_a_seed_gives_the_tokens_of_multinomial():
    odds = torch.rand(200, generator=torch.Generator().manual_seed(2), dtype=torch.float64).sort(descending=True).values
    ours, pytorchs = (torch.Generator().manual_seed(5) for _ in range(2))
    noise = torch.empty_like(odds)
    for _ in range(50):
        token = sample(odds.log(), torch.arange(200), Sampling(), noise.exponential_(generator=ours))
        assert token == torch.multinomial(odds / odds.sum(), 1, generator=pytorchs)


def test_the_likeliest_stays_however_small_the_share():
    for top_p in (1e-9, 1e-50, 5e-324):  # some are 0 in float32
        assert drawn(Sampling(top_k=None, top_p=top_p), count=20).tolist() == [0, 1, 0, 0]


def test_a_share_of_1_leaves_out_no_token_of_a_large_vocabulary():
    count = 300_007
    log_probs = (torch.arange(1, count + 1, dtype=torch.float64) ** -2).log().float()
    noise = torch.ones(count)
    noise[-1] = 1e-20
    assert sample(log_probs, torch.arange(count), Sampling(top_k=None, top_p=1.0), noise) == count - 1


def decoder(model, mem_len=M, **how):
    return make_decoder(model, batch_size=1, mem_len=mem_len, seg_len=L, **how)


def first(count, tokens):
    return list(itertools.islice(tokens, count))


def test_a_seed_decides_the_text_whatever_was_read_before():
    model, context = small_model(), draw_tokens(1, 23)[0]
    used = decoder(model)
    used.read(draw_tokens(1, L, seed=9))
    readers = ((decoder(model), 3), (used, 3), (decoder(model), 4))
    one, again, other = (first(40, generate(reader, context, Sampling(), seed=seed)) for reader, seed in readers)
    assert one == again
    assert one != other
    assert all(0 <= token < V for token in one)


@pytest.mark.parametrize("changes", [{}, {"cutoffs": (5, 11)}], ids=["softmax", "adaptive softmax"])
@pytest.mark.parametrize("options", [Sampling(), Sampling(top_k=3, top_p=0.8), Sampling(greedy=True)], ids=str)
def test_graphs_sample_the_same_text(changes, options):
    model, context = small_model(**changes), draw_tokens(1, 9)[0]
    captured = decoder(model, capture_graph=tape.capture)
    for seed in (3, 4):
        expected = first(30, generate(decoder(model), context, options, seed=seed))
        assert first(30, generate(captured, context, options, seed=seed)) == expected


@pytest.mark.parametrize("length", [1, L, 12])
def test_each_token_is_drawn_from_the_model_with_its_memory(length):
    model, context = small_model(), draw_tokens(1, length)[0]
    tokens = first(60, generate(decoder(model), context, Sampling(greedy=True), seed=0))
    stream = [*context.tolist(), *tokens]
    with torch.no_grad():
        memory = model.first_memory(1, M)
        expected = []
        # The context in segments of L, as it is read; what follows one by one.
        parts = [*context.split(L), *torch.tensor(stream[length:-1])[:, None]]
        for number, part in enumerate(parts):
            hidden, memory = model(part[None], memory, mem_len=M)
            if number >= len(parts) - len(tokens):
                expected.append(int(model.log_probs(hidden)[0, -1].argmax()))
    assert tokens == expected


@pytest.mark.parametrize("options", [Sampling(), Sampling(greedy=True), Sampling(top_p=0.5)])
def test_probabilities_that_are_not_numbers_are_rejected(options):
    assert sample(torch.full((3,), torch.nan), torch.arange(3), options, torch.ones(3)).tolist() == [NO_TOKEN]
    model = small_model()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    tokens = generate(make_decoder(model, batch_size=1, mem_len=M, seg_len=L), torch.arange(3), options, seed=1)
    with pytest.raises(RunError, match="probabilities are not numbers"):
        next(tokens)
