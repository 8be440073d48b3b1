import io
import sys

from ocrquant.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_silent_where_nobody_watches(capsys):
    with progress_bar("statistics", 4, "pages") as advance:
        advance(3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_shows_rate_and_count_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("statistics", 8, "pages", done=2) as advance:
        advance(3, note="71 tokens/s")
    text = terminal.getvalue()
    assert "statistics" in text
    assert "5/8" in text
    assert "pages/s" in text
    assert "71 tokens/s" in text
