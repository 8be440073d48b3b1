import pytest

from ocrquant.artifacts import Interval
from ocrquant.evaluate import words

M = words.MINUS
THIN = "\u202f"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0312, "0.031"), (0.000024, "0.000024"), (-0.5, f"{M}0.5"), (12.34, "12"), (1234.0, "1200")],
)
def test_number_has_two_significant_digits(value, text):
    assert words.number(value) == text


def test_percent_and_points_have_their_signs():
    assert words.percent(0.03456) == f"3.46{THIN}%"
    assert words.percent(None) == words.NOTHING
    assert words.points(0.0021) == "+0.21"
    assert words.points(-0.0021) == f"{M}0.21"
    assert words.points(-0.00001) == "0.00"
    assert words.change(-0.153) == f"{M}15{THIN}%"
    assert words.change(-0.001) == f"0{THIN}%"


def test_intervals():
    known = Interval(estimate=0.002, low=-0.001, high=0.0052)
    assert words.points_interval(known) == f"+0.20 ({M}0.10 to 0.52)"
    assert words.points_interval(Interval(estimate=0.002, low=None, high=None)) == "+0.20"
    assert words.points_interval(None) == words.NOTHING
    assert words.interval_range(known, decimals=3) == f"{M}0.001 to 0.005"
    assert words.interval_range(Interval(estimate=0, low=-1e-9, high=0)) == "0.00 to 0.00"


def test_nats():
    assert words.nats(None) == words.NOTHING
    assert words.nats(0.0) == "0"
    assert words.nats(0.01234) == "0.0123"
    assert words.nats(-0.00001) == "0.0000"


@pytest.mark.parametrize(
    ("size", "text"),
    [(12, "12 B"), (1_500, "1.5 kB"), (7_090_000, "7.09 MB"), (20_000_000, "20 MB"), (1.4e9, "1.4 GB")],
)
def test_byte_size(size, text):
    assert words.byte_size(size) == text


def test_count():
    assert words.count(1, "page") == "1 page"
    assert words.count(1200, "page") == "1,200 pages"
