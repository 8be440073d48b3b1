"""``report.html`` and ``report.md``: well-formed, self-contained, safe whatever a page or a model says."""

import re
from html.parser import HTMLParser

import pytest

from ocrquant.artifacts import Report, Rounding, RunFolder, Statistics
from ocrquant.errors import ArtifactError
from ocrquant.evaluate import write_report
from ocrquant.evaluate.diff import Span
from ocrquant.evaluate.html_parts import marked
from ocrquant.evaluate.markdown import render_markdown
from ocrquant.evaluate.material import Material
from ocrquant.evaluate.words import STAND_IN
from ocrquant.recipe.sections import GateSection
from tests.evaluate.making import RECIPE, ZERO, output, report_of, transcripts

GATE = GateSection(max_cer_increase=0.02, max_worst_kind_cer_increase=0.03, max_kl=0.2)
VOID = {"meta", "img", "br", "hr", "link", "input"}
HOSTILE = (
    '<script>alert("1")</script> | `code` ``` </td> <img src=x onerror=y> [a](http://evil.test) \u202e\x00'
)


class Page(HTMLParser):
    """Checks that every element is closed in order, and collects elements and text."""

    def __init__(self):
        super().__init__()
        self.stack, self.elements, self.texts = [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> without a start"
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.stack or self.stack[-1] not in ("style", "script"):
            self.texts.append(data)

    @classmethod
    def of(cls, text):
        page = cls()
        page.feed(text)
        page.close()
        assert page.stack == []
        return page

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def write(run, found, **options):
    report = report_of(run, found, **options)
    run.save(report)
    markdown, html = write_report(run.path)
    return markdown.read_text(), html.read_text()


def render(run, found, **options):
    """Markdown alone, which needs no pictures."""
    report = report_of(run, found, **options)
    return render_markdown(Material.read(run.path, report, with_timings=False))


@pytest.fixture(scope="module")
def module_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    with RunFolder.open(folder, recipe_digest=ZERO, recipe_text=RECIPE) as opened:
        yield opened


@pytest.fixture(scope="module")
def sound(module_run):
    """Markdown and HTML of an ordinary report."""
    return write(module_run, transcripts(), gate=GATE)


@pytest.fixture(scope="module")
def hostile(module_run, sound):
    """The same of one that is full of markup."""
    return write(module_run, hostile_transcripts(), gate=GATE)


def hostile_transcripts():
    found = transcripts()
    worst = found.pages[0]
    arms = {**worst.arms, "plan": output(HOSTILE + " " + HOSTILE, kl=1.0)}
    page = worst.model_copy(
        update={"page": "<b>page</b>|x", "document": "<i>d</i>", "truth": f"ok {HOSTILE}", "arms": arms}
    )
    return found.model_copy(update={"pages": [page, *found.pages[1:]]})


def test_html_is_well_formed_and_begins_with_the_verdict(sound):
    _, html = sound
    page = Page.of(html)
    assert html.startswith("<!doctype html>")
    assert page.text.index("Gate passed") < page.text.index("Plans side by side")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == [
        "Plans side by side",
        "By kind of page",
        "Quality against size",
        "Other budgets",
        "Sensitivity by layer",
        "The plan",
        "Weights",
        "Activations",
        "Pages that lost most",
        "Where the numbers come from",
    ]
    assert html.count("<svg") == 7


def test_html_asks_for_nothing_outside(sound):
    _, html = sound
    page = Page.of(html)
    assert not {tag for tag, _ in page.elements} & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "base",
        "a",
    }
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
            if name in attributes:
                assert attributes[name].startswith(("data:image/", "#")), (tag, attributes[name])
    style = html[html.index("<style>") : html.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert "http" not in html
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert len(images) == 5


def test_hostile_text_stays_text(hostile):
    markdown, html = hostile
    page = Page.of(html)
    assert not {tag for tag, _ in page.elements} & {"script", "b", "i"}
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert '<script>alert("1")</script>' in page.text
    assert "<b>page</b>|x" in page.text
    assert "\u202e" not in html
    assert "\x00" not in html
    assert "[U+202E]␀" in page.text
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", markdown)
    assert "<script" not in outside
    assert r"\<b\>page\</b\>\|x" in outside
    assert "\u202e" not in markdown
    fences = re.findall(r"(?m)^(`{3,})text$", markdown)
    assert max(map(len, fences)) == 4  # one longer than what the text holds


def test_tables_of_markdown_have_equal_rows(hostile):
    markdown, _ = hostile
    for block in re.findall(r"(?m)(?:^\|.*\|$\n?)+", markdown):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().split("\n")}
        assert len(counts) == 1


def test_markdown_begins_with_the_verdict(run, sound):
    markdown, _ = sound
    assert markdown.startswith("**Gate passed.** At 6.29 bits per weight the plan reads with a CER of ")
    failed = render(run, transcripts(plan_every=6), gate=GATE)
    assert failed.startswith("**Gate failed.** max_cer_increase and ")


def test_pages_without_truth_say_so_wherever_an_error_rate_stands(run):
    markdown, html = write(run, transcripts(truth_source="model"), gate=GATE)
    page = Page.of(html)
    assert page.text.count(STAND_IN) == 1 + 3 + 5  # verdict, tables, worst pages
    assert f'@bottom-left {{ content: "{STAND_IN}"' in html  # every sheet of paper
    assert "CER to bf16" in page.text
    assert "Truth" not in page.text
    assert "bf16's own text, in place of a truth" in page.text
    assert markdown.count(STAND_IN) == 1 + 3 + 5
    assert "| CER |" not in markdown


def test_pages_with_truth_do_not(sound):
    markdown, html = sound
    assert STAND_IN not in markdown
    assert "CER to bf16" not in html


def test_differences_are_marked_and_long_outputs_cut(run):
    found = transcripts()
    arms = {**found.pages[0].arms, "plan": output("loop " * 2000, finished=False, kl=1.0)}
    page = found.pages[0].model_copy(update={"arms": arms})
    markdown = render(run, found.model_copy(update={"pages": [page, *found.pages[1:]]}))
    assert "{+" in markdown
    assert "[-" in markdown
    assert "more characters" in markdown
    assert len(markdown) < 40_000


def test_differences_in_html():
    spans = [Span("same", "a<"), Span("missing", "b\n"), Span("added", "&")]
    assert marked(spans) == "a&lt;<del>b↵\n</del><ins>&amp;</ins>"
    assert "(empty)" in marked([])
    assert "1,234 more characters" in marked(spans, 1234)


def test_reports_of_equal_material_are_equal(run, sound):
    run.record_timing("statistics", 1.5, num_pages=9)
    assert write(run, transcripts(), gate=GATE) == sound


def test_what_computed_each_arm_is_said(sound):
    for text in sound:
        assert "own runtime. It keeps weights packed" in text
    assert "| bf16 | 2 bf16 | bf16 | bf16 | native | cpu |" in sound[0]
    assert (
        "| Plan | 1 bf16; 1 FP8 (activations fp8, scaled by token) | FP8 | bf16 | native | cpu |" in sound[0]
    )


def test_a_linear_that_did_not_get_what_was_asked_is_named(run):
    found = transcripts()
    (_, fp8) = found.runtimes["plan"].linears
    plain = found.runtimes["plan"].model_copy(update={"linears": [fp8.model_copy(update={"reads": "plain"})]})
    markdown = render(run, found.model_copy(update={"runtimes": {**found.runtimes, "plan": plain}}))
    assert "| Plan | 1 FP8 (activations plain, not fp8, scaled by token as asked) |" in markdown


def test_timings_on_request(run):
    run.save(report_of(run, transcripts()))
    run.record_timing("statistics", 1.5, num_pages=9)
    markdown, html = (path.read_text() for path in write_report(run.path, with_timings=True))
    assert "| statistics | 9 pages | 1.5 |" in markdown
    assert "<h3>Timings</h3>" in html


def test_report_is_shown_again_from_what_is_left_of_a_run_folder(run, sound):
    run.save(report_of(run, transcripts(), gate=GATE))
    for name in ("pages.json", "transcripts.json", Statistics.FILE_NAME, Rounding.FILE_NAME):
        (run.path / name).unlink()
    _, html = (path.read_text() for path in write_report(run.path))
    assert "<h2>Activations</h2>" not in html
    assert "<h2>Weights</h2>" not in html
    start, end = "<h2>By kind of page</h2>", "<h2>Quality against size</h2>"
    assert html[html.index(start) : html.index(end)] == sound[1][sound[1].index(start) : sound[1].index(end)]
    Page.of(html)


def test_an_image_of_another_run_is_refused(run):
    run.save(report_of(run, transcripts()))
    image = run.path / Report.load(run.path).worst_pages[0].image
    image.write_bytes(image.read_bytes() + b"x")
    with pytest.raises(ArtifactError, match=f"{image.name}: expected SHA-256"):
        write_report(run.path)


def test_no_report(tmp_path):
    with pytest.raises(ArtifactError, match="run the stage `evaluate` first"):
        write_report(tmp_path)
