"""txl eval --html: the page has the losses of --losses and the model's likeliest tokens; a browser shows them."""

import base64
import itertools
import json
import math
import re
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

import txlcli
from tests.browser import PROGRAM, browser
from tests.commands.novel import done, json_of, refusal
from txlcli.report.pages import text_page
from txlcli.workflows.evaluation.annotated import AnnotatedText

TEXT = "the owl jumps\n" * 3 + "été, naïve 語 🦊 </script>\n" + "the cat flies over\n" * 4


def facts_of(page):
    """Return the numbers and texts of a page, with its arrays unpacked."""
    (data,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    facts = json.loads(data)
    for name, packed in facts.items():
        if isinstance(packed, dict):
            facts[name] = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=packed["dtype"])
    return facts


def page_of(run, *options):
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    done("eval", run, "--text", "text.txt", "--html", "out.html", "--losses", "losses.h5", "--batch-size", 1, *options)
    with h5py.File("losses.h5") as file:
        losses = {name: array[:] for name, array in file.items()}
    return Path("out.html").read_text(encoding="utf-8"), losses


@pytest.mark.parametrize("run", ["byte", "sentencepiece", "word"])
def test_the_page_has_the_text_the_losses_and_the_likeliest_tokens(here, run):
    page, losses = page_of(run, "--mem-len", "7,0")
    facts = facts_of(page)
    assert not re.search(r"""(src|href)=|url\(|https?://(?!www\.w3\.org/2000/svg")""", page)  # nothing from elsewhere
    assert [row["mem_len"] for row in facts["rows"]] == [0, 7]
    model = txlcli.load(run)
    if run != "word":
        assert facts["before"] + facts["text"] == TEXT
    count, ends = len(facts["lengths"]), np.cumsum(facts["tokens"], dtype=np.int64)
    pieces = np.split(np.frombuffer(facts["text"].encode("utf-16-le"), dtype="<u2"), np.cumsum(facts["lengths"])[:-1])
    assert len(pieces) == count
    assert (facts["tokens"].max() > 1) == (run == "byte")  # characters of several bytes are one piece
    for row, name in enumerate(("mem_len_0", "mem_len_7")):
        bits = np.add.reduceat(losses[name] / math.log(2), np.append(0, ends[:-1]))
        shown = facts["scale"] * facts["bits"].reshape(2, count)[row]
        np.testing.assert_allclose(shown, bits, atol=facts["scale"])
    log_probs = model.log_probs(TEXT, mem_len=7)[: len(losses["tokens"])][ends - 1]
    best = np.argsort(-log_probs, axis=1, kind="stable")[:, :4]
    names = np.array(facts["names"])
    expected = np.vectorize(model.vocab.symbol)(best.T)
    agree = names[facts["likeliest"]].reshape(4, count) == expected
    assert agree.mean() > 0.99  # equal probabilities may come in another order
    probabilities = np.exp(np.take_along_axis(log_probs, best, axis=1)).T
    np.testing.assert_allclose(facts["probabilities"].reshape(4, count) / 255, probabilities, atol=0.5 / 255 + 1e-5)
    assert names[facts["targets"]].tolist() == [model.vocab.symbol(token) for token in losses["tokens"][ends - 1]]


def test_without_lengths_the_page_compares_the_memory_of_the_recipe_with_none(here):
    _, losses = page_of("byte")
    assert sorted(losses) == ["mem_len_0", "mem_len_5", "tokens"]
    assert "out.html exists" in refusal("eval", "byte", "--html", "out.html")
    assert len(json_of("eval", "byte", "--html", "split.html", "--positions", 30)["rows"]) == 2
    assert facts_of(Path("split.html").read_text(encoding="utf-8"))["title"] == "byte on novel test"


def annotated(pieces):
    """Return a page's text with memory lengths 0 and 5, whose losses in bits count 0 1 2 3 0 1 2 3 and half of that."""
    count = len(pieces)
    bits = np.arange(count) % 4
    return AnnotatedText(
        title="a run on a text",
        settings="settings",
        metric="bpc",
        rows=[{"mem_len": 0, "bits": 1.5, "measure": 1.5}, {"mem_len": 5, "bits": 0.75, "measure": 0.75}],
        before="",
        text="".join(pieces),
        lengths=np.ones(count),
        tokens=np.ones(count),
        bits=np.stack([2 * bits, bits]),
        scale=0.5,
        names=list("abc"),
        targets=np.arange(count) % 3,
        likeliest=np.stack([np.zeros(count), np.arange(count) % 3]),
        probabilities=np.full((2, count), 128),
    )


@pytest.mark.browser
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
def test_a_browser_shows_numbers_by_mouse_and_by_keys_and_a_million_characters(tmp_path):
    small, large = tmp_path / "small.html", tmp_path / "large.html"
    small.write_text(text_page(annotated(list("to be or not to be\n" * 20))), encoding="utf-8")
    large.write_text(text_page(annotated(list("to be or not to be\n" * 55_000))), encoding="utf-8")
    with browser() as page:
        for width, scheme in itertools.product((360, 1280), ("dark", "light")):
            page.open(small, width=width, scheme=scheme)
            assert page.run("document.documentElement.scrollWidth <= innerWidth")  # nothing is cut at the right
            colour = page.run("getComputedStyle(document.body).backgroundColor")
            assert colour == ("rgb(22, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
        assert page.text("#piece") == "t 1 of 380"
        page.run("document.querySelector('.block').scrollIntoView()")
        page.mouse("mouseMoved", *page.point(".block span", 3))
        assert page.text("#piece") == "b 4 of 380"
        shown = " ".join(page.text("#losses").split())
        assert shown == "bits probability M = 0 3.00 13 % M = 5 1.50 35 % gain 1.50"
        assert " ".join(page.text("#likeliest").split()) == "likeliest ✓ a 50 % ✓ a 50 %"
        page.mouse("mouseMoved", 5, 5)
        assert page.text("#piece") == "t 1 of 380"  # the selected token again
        page.click(".block span", 3)
        for name, code, number in (("ArrowRight", 39, 5), ("ArrowLeft", 37, 4), ("End", 35, 380), ("Home", 36, 1)):
            page.key(name, code)
            assert page.text("#piece").endswith(f" {number} of 380")
            assert page.run("document.querySelector('.current').number") == number - 1
        page.key("ArrowRight", 39)
        assert page.accessible("slider") == ["Token: arrow keys, or click in the text"]
        spoken = "o: 0.50 bits with M = 5, gain 0.50 bits; likeliest: a 50 %, b 50 %"
        assert page.run("document.querySelector('[role=status]').textContent") == spoken  # to a screen reader
        page.click("#next")
        assert page.text("#piece").endswith(" 4 of 380")  # the next gain of 1.5 bits
        page.click("aside summary")
        page.point("#places li")
        assert page.text("#places li") == "to be or not 3.00 bits"  # gains of 0.5, 1.0 and 1.5 bits
        page.click("#places button")
        assert page.text("#piece") == "n 10 of 380"
        page.click("#numbers summary")
        by_length, by_position = page.text("#numbers .wide").split("from token")
        assert "5 0.75 bits 0.750 -0.75 bits" in " ".join(by_length.split())
        # Bins of 4 tokens, each with losses of 0, 1, 2 and 3 bits without memory, and half of that with M = 5.
        assert len(by_position.splitlines()) == 1 + 95
        assert set(re.findall(r"\t(.*)\t(.*)", by_position)) == {("M = 0", "M = 5"), ("1.50 bits", "0.75 bits")}
        page.open(large)
        assert page.run("document.querySelectorAll('*').length") < 10_000
        assert page.run("document.querySelector('#text').textContent.length") == 19 * 55_000  # found by the search
        page.run("document.getElementById('cursor').focus()")
        page.key("End", 35)
        assert page.text("#piece") == "⏎ 1,045,000 of 1,045,000"
        assert page.run(
            "(({top, bottom}) => top > 0 && bottom <= innerHeight)"
            "(document.querySelector('.current').getBoundingClientRect())"
        )
        frames = page.run(
            """new Promise(done => { const times = []; const step = now => { times.push(now); scrollBy(0, -400);
            times.length < 60 ? requestAnimationFrame(step) : done(times); }; requestAnimationFrame(step); })"""
        )
        assert np.median(np.diff(frames)) < 100  # ms; 17 on an idle machine
        assert page.problems == []
