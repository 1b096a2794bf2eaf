"""The report contains all text, in Markdown and in HTML, properly escaped."""

import dataclasses
import json

from txlcli.report.pages import to_html, to_markdown
from txlcli.workflows.reproduction.section import Claim, Grid, ReportSection

SECTION = ReportSection(
    name="table6",
    title="Table 6: what <recurrence> is worth",
    scale="tiny",
    notes=["A note & more."],
    grids=[Grid(["model", "ppl"], [["a | b", "1.5"], ["<c>", "2.5"]], "caption")],
    figures=[["curve.png", "The curve"]],
    texts=[["Sample", "code:\n```\nx < y\n```"]],
    claims=[
        Claim("one is ahead", True, "here 1 and 2"),
        Claim("two is ahead", False, "here 3 and 2"),
        Claim("three is", None, "-"),
    ],
    commands=["txl train stdlib", "txl eval runs/stdlib"],
    seconds=90.0,
    hardware="a machine",
    data={"one": [1.0]},
)


def test_the_page_contains_all_text_links_verdicts_and_the_figure(tmp_path):
    markdown = to_markdown("The report", [SECTION], "the end")
    assert 'src="curve.png"' in to_html("The report", [SECTION], markdown, tmp_path)  # a missing figure is named
    (tmp_path / "curve.png").write_bytes(b"\x89PNG picture")
    page = to_html("The report", [SECTION], markdown, tmp_path)
    for text in (
        '<a href="#table-6">Table 6</a>',
        '<h2 id="table-6">Table 6: what &lt;recurrence&gt; is worth</h2>',
        "<p>A note &amp; more.</p>",
        "<td>a | b</td>",
        "<td>&lt;c&gt;</td>",
        "<p>caption</p>",
        '<strong class="held">as in the paper</strong>: one is ahead (here 1 and 2)',
        '<strong class="failed">NOT as in the paper</strong>: two is ahead (here 3 and 2)',
        "<strong>undecided</strong>: three is (-)",
        "code:\n```\nx &lt; y\n```",
        "1.5 minutes on a machine. Finished training runs were reused, not counted. Commands",
        "txl eval runs/stdlib",
        "the end",
        'src="data:image/png;base64,iVBORyBwaWN0dXJl"',
    ):
        assert text in page


def test_a_section_survives_json():
    assert ReportSection.from_json(json.loads(json.dumps(dataclasses.asdict(SECTION)))) == SECTION
