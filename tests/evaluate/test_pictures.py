import re

import pytest
from matplotlib.patches import Rectangle

from ocrquant.artifacts import PositionStatistics
from ocrquant.evaluate import pictures
from ocrquant.evaluate.theme import COLORS, HEAT, to_svg
from tests.evaluate import making


def cells(axes, color=None):
    from matplotlib.colors import to_hex

    return [
        patch
        for patch in axes.patches
        if isinstance(patch, Rectangle) and (color is None or to_hex(patch.get_facecolor()) == color)
    ]


def test_heat_map_has_a_panel_a_format_and_a_cell_a_score():
    scores = making.sensitivity()
    figure = pictures.sensitivity_heat_map(scores)
    fp8, nvfp4, scale = figure.axes
    assert [axes.get_title(loc="left") for axes in (fp8, nvfp4)] == ["FP8", "NVFP4"]
    assert len(cells(fp8, HEAT)) == len(scores.groups)
    assert len(cells(nvfp4, HEAT)) == len(scores.groups) - 1
    assert [text.get_text() for text in nvfp4.texts] == ["\u2013"]  # the closed group
    assert any("nats a token" in text.get_text() for text in scale.texts)


def test_shades_rise_with_the_score_and_noise_is_dotted():
    scores = making.sensitivity()
    figure = pictures.sensitivity_heat_map(scores)
    rows = [row for row in scores.rows if row.precision == "nvfp4"]
    shades = [cell.get_alpha() for cell in cells(figure.axes[1], HEAT)]
    ranked = sorted(range(len(rows)), key=lambda index: rows[index].mean)
    assert [shades[index] for index in ranked] == sorted(shades)
    assert max(shades) == 1
    noisy = [row for row in scores.rows if row.precision == "fp8" and row.mean <= 2 * row.standard_error]
    assert noisy
    assert len(figure.axes[0].lines) == len(noisy)


def test_estimated_scores_are_flat():
    scores = making.sensitivity()
    rows = [
        row.model_copy(update={"score": "screened", "is_measured": index % 3 == 0})
        for index, row in enumerate(scores.rows)
    ]
    figure = pictures.sensitivity_heat_map(scores.model_copy(update={"rows": rows}))
    for axes, precision in zip(figure.axes, ("fp8", "nvfp4"), strict=False):
        heights = [cell.get_height() for cell in cells(axes, HEAT)]
        flat = [not row.is_measured for row in rows if row.precision == precision]
        assert [height < max(heights) for height in heights] == flat


def test_heat_map_of_scores_that_are_all_zero():
    scores = making.sensitivity()
    rows = [row.model_copy(update={"mean": 0.0}) for row in scores.rows]
    pictures.sensitivity_heat_map(scores.model_copy(update={"rows": rows}))


def test_strip_shows_every_group_with_its_bits_and_the_shares():
    scores = making.sensitivity()
    plan = making.assignment(scores)
    grid, shares = pictures.assignment_strip(plan, scores).axes
    for precision, color in COLORS.items():
        expected = sum(found == precision for found in plan.groups.values())
        assert len(cells(grid, color)) == expected
    assert sorted({text.get_text() for text in grid.texts}) == ["16", "4", "8"]
    assert sum(patch.get_width() for patch in cells(shares) if patch.get_height() == 1) == pytest.approx(1)


def test_outliers_leave_dead_inputs_out():
    found = making.statistics()
    dead = PositionStatistics(num_tokens=0, amax=0, outlier_ratio=0, dead_channels=[])
    linears = [found.linears[0].model_copy(update={"text": dead}), *found.linears[1:]]
    figure = pictures.activation_outliers(found.model_copy(update={"linears": linears}))
    image, text = figure.axes[0].collections
    assert len(image.get_offsets()) == len(linears)
    assert len(text.get_offsets()) == len(linears) - 1


def test_quality_shows_predictions_and_measurements(run):
    scores = making.sensitivity()
    report = making.report_of(run, making.transcripts())
    upper, lower = pictures.quality_against_bits(making.pareto(), making.assignment(scores), report).axes
    points = [
        (line.get_xdata()[0], line.get_ydata()[0]) for line in upper.lines if len(line.get_xdata()) == 1
    ]
    plan = report.arm("plan")
    assert (plan.bits_per_weight, plan.overall.mean_kl) in points
    assert any(loss == 0.3 for _, loss in points)  # uniform NVFP4 as predicted
    heights = [line.get_ydata()[0] for line in lower.lines if len(line.get_xdata()) == 1]
    assert heights == [pytest.approx(100 * arm.overall.cer) for arm in report.arms]


def test_front_shows_its_line_and_every_named_plan_that_loses_something():
    scores = making.sensitivity()
    pareto, plan = making.pareto(), making.assignment(scores)
    axes = pictures.pareto_front(pareto, plan).axes[0]
    line, *marks = axes.lines
    assert list(line.get_ydata()) == [point.predicted_loss for point in pareto.front[:-1]]
    found = {mark.get_label(): (mark.get_xdata()[0], mark.get_ydata()[0]) for mark in marks}
    assert found == {
        "Uniform NVFP4": (4.6, 0.3),
        "Uniform FP8": (8.0, 0.03),
        "nvidia/Qwen3.6-27B-NVFP4": (5.2, 0.26),
        "a map that is not listed": (6.1, 0.2),
        "Plan": (plan.bits_per_weight, plan.predicted_loss),
    }


def test_pages_behind_a_score_are_ranked_and_the_rest_is_summed():
    scores = making.page_scores(num_pages=20)
    axes = pictures.pages_behind(scores, "lm_head", "nvfp4").axes[0]
    frame = scores.to_frame("lm_head", "nvfp4")
    widths = [cell.get_width() for cell in cells(axes)]
    assert widths[:12] == pytest.approx(list(frame.share[:12]))
    assert sum(widths) == pytest.approx(1)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == frame.page[0]
    assert labels[-1] == "8 other pages"
    few = pictures.pages_behind(making.page_scores(num_pages=3), "lm_head", "nvfp4").axes[0]
    assert len(cells(few)) == 3


def test_differences_have_a_mark_an_arm_and_kind(run):
    report = making.report_of(run, making.transcripts(), gate=making.GateSection(max_cer_increase=0.02))
    axes = pictures.cer_differences(report).axes[0]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert len(marks) == 3 * 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["all", "lines", "blocks"]
    assert [text.get_text() for text in axes.texts] == ["gate"]


def test_every_picture_shows_itself_in_jupyter():
    figure = pictures.activation_outliers(making.statistics())
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_svg_is_stable_self_contained_and_follows_the_page():
    def draw(name):
        return to_svg(pictures.sensitivity_heat_map(making.sensitivity()), name, 'A <"title">')

    text = draw("heat")
    assert text == draw("heat")
    assert "http" not in text
    assert "<style" not in text
    assert not re.search(
        r"#[0-9a-f]{6}", text.replace("#heat-", "")
    )  # every colour is a property of the page
    assert 'aria-label="A &lt;&quot;title&quot;&gt;"' in text
    assert "DejaVu" not in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert all(name.startswith("heat-") for name in ids)
    assert len(ids) == len(set(ids))
    assert all(target in ids for target in re.findall(r'(?:url\(|href=")#([^)"]*)', text))
