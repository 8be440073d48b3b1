import pytest

from ocrquant.artifacts import PageTranscripts, Transcripts
from ocrquant.evaluate.scoring import Scores
from tests.evaluate.making import damage, output, runtimes, transcripts


def page(name, truth, bf16, plan, *, kind="line", document=None):
    return PageTranscripts(
        page=name,
        kind=kind,
        document=document or name,
        truth=truth,
        truth_source="ground_truth",
        arms={
            "bf16": output(bf16, kl=0.0, tokens=10),
            "plan": output(plan, kl=0.5, tokens=10) if isinstance(plan, str) else plan,
        },
    )


def scores(*pages, seed=0):
    ran = runtimes(*pages[0].arms)
    found = Transcripts(inputs={}, max_new_tokens=64, runtimes=ran, pages=list(pages))
    return Scores(found, num_resamples=500, seed=seed)


def test_rates_are_sums_over_sums():
    found = scores(
        page("a", "0123456789", "0123456789", "0123456780"),  # 1 of 10
        page("b", "ab cd", "ab cd", "xb yd"),  # 2 of 5
    )
    base, plan = found.metrics("bf16"), found.metrics("plan")
    assert (base.cer, base.wer, base.exact_line_rate, base.digit_error_rate) == (0, 0, 1, 0)
    assert plan.cer == pytest.approx(3 / 15)  # not the mean of the two rates
    assert plan.wer == pytest.approx(3 / 3)
    assert plan.exact_line_rate == 0
    assert plan.digit_error_rate == pytest.approx(1 / 10)
    assert plan.mean_kl == pytest.approx(0.05)
    assert (plan.num_pages, plan.num_documents, plan.num_characters) == (2, 2, 15)
    assert plan.cer_increase.estimate == pytest.approx(0.2)
    assert base.cer_increase is None
    assert base.kl_interval is None


def test_kinds_are_apart():
    found = scores(page("b", "abcd", "abcd", "abcd", kind="block"), page("a", "abcd", "abcd", "abcx"))
    assert found.kinds == ["line", "block"]
    assert found.metrics("plan", "line").cer == pytest.approx(0.25)
    assert found.metrics("plan", "block").cer == 0


def test_loops_and_cut_off_outputs_are_counted():
    loop = "ab " * 40
    found = scores(
        page("a", "short", "short", output(loop, finished=False)),
        page("b", loop, loop, loop),  # the truth itself repeats: no fault of the arm
    )
    plan = found.metrics("plan")
    assert (plan.num_repetition_loops, plan.num_unfinished) == (1, 1)
    assert found.metrics("bf16").num_repetition_loops == 0


def test_pages_without_finite_logits_are_left_out_of_the_mean_and_counted():
    broken = output("abcd", kl=None, tokens=10)
    found = scores(page("a", "abcd", "abcd", "abcd"), page("b", "abcd", "abcd", broken))
    plan = found.metrics("plan")
    assert plan.num_nonfinite == 1
    assert plan.mean_kl == pytest.approx(0.05)
    only = scores(page("b", "abcd", "abcd", broken)).metrics("plan")
    assert (only.mean_kl, only.kl_interval) == (None, None)


def test_truth_without_digits_or_characters():
    found = scores(page("a", "", "", "xy"), page("b", "", "", "", document="other")).metrics("plan")
    assert (found.digit_error_rate, found.cer_increase, found.wer_increase) == (None, None, None)
    assert found.cer == 2


def test_equal_outputs_have_an_interval_of_zero_width():
    found = scores(*[page(str(index), "abcd", "abcx", "xbcd") for index in range(6)]).metrics("plan")
    assert (found.cer_increase.estimate, found.cer_increase.low, found.cer_increase.high) == (0, 0, 0)


def test_interval_holds_the_estimate_and_depends_on_the_seed_alone():
    texts = ["abcd" * (1 + index % 7) for index in range(20)]
    pages = [page(str(index), text, text, damage(text, 3 + index % 5)) for index, text in enumerate(texts)]
    first, again, other = (scores(*pages, seed=seed).metrics("plan").cer_increase for seed in (0, 0, 1))
    assert first.low < first.estimate < first.high
    assert first == again
    assert first != other


def test_pages_of_one_document_are_drawn_together():
    def width(documents):
        pages = [
            page(
                str(index),
                "abcd",
                "abcd",
                "abcx" if index < 12 else "abcd",
                document=f"d{index // documents}",
            )
            for index in range(24)
        ]
        found = scores(*pages).metrics("plan").cer_increase
        return found.high - found.low

    assert width(6) > 1.5 * width(1)


def test_one_document_gives_no_interval():
    pages = [page(str(index), "abcd", "abcd", "abcx", document="d") for index in range(9)]
    found = scores(*pages).metrics("plan")
    assert found.num_documents == 1
    assert (found.cer_increase.estimate, found.cer_increase.low) == (0.25, None)


def test_comparison_is_the_difference_of_two_arms():
    found = Scores(transcripts(), num_resamples=300, seed=0)
    result = found.comparison("plan", "nvfp4")
    plan, nvfp4 = found.metrics("plan"), found.metrics("nvfp4")
    assert result.cer.estimate == pytest.approx(plan.cer - nvfp4.cer)
    assert result.kl.estimate == pytest.approx(plan.mean_kl - nvfp4.mean_kl)
    assert result.cer.high < 0
    assert not result.kl.includes_zero


def test_worst_pages_are_those_that_lost_most_against_bf16():
    found = scores(
        page("bad for both", "abcd", "xxxx", "xxxx"),
        page("lost a little", "abcd", "abcd", "abcx"),
        page("lost more", "abcd", "abcd", "abxx"),
        page("won", "abcd", "abxx", "abcd"),
    )
    names = [item.page for item in found.worst_pages("plan", 3)]
    assert names == ["lost more", "lost a little", "bad for both"]


def test_cer_of_a_page():
    first = page("a", "abcd", "abcd", "abcx")
    assert scores(first).page_cer("plan", first) == 0.25
