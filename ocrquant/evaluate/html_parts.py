"""Small pieces of HTML: tables, marked differences, images. Everything foreign passes through `escape` here.

Knows HTML. Does not know which pieces a report has.
"""

from __future__ import annotations

import base64
import html

from ocrquant.evaluate.diff import Span, visible
from ocrquant.evaluate.tables import Table

__all__ = ["data_uri", "escape", "figure", "marked", "section", "table"]

_MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg"}
_TAGS = {"missing": "del", "added": "ins"}
_MANY_COLUMNS = 7
_RESULTS = {"holds": "holds"} | dict.fromkeys(("exceeded", "not reached", "not shown", "worse"), "exceeded")


def escape(text: str) -> str:
    """Foreign text, safe in an element or a quoted attribute, its invisible characters shown."""
    return html.escape(visible(text), quote=True)


def section(title: str, *parts: str, lead: str = "") -> str:
    """A section of the page; `title` and `lead` are plain text, parts are HTML."""
    head = f"<h2>{escape(title)}</h2>"
    if lead:
        head += f'\n<p class="lead">{escape(lead)}</p>'
    return "<section>\n" + "\n".join([head, *[part for part in parts if part]]) + "\n</section>"


def table(content: Table, *, caption: str = "", digest_columns: frozenset[int] = frozenset()) -> str:
    """A table that scrolls sideways where the screen is narrow.

    Args:
        content: The table.
        caption: A sentence above it.
        digest_columns: Columns that hold long codes, which may break anywhere.
    """

    def column_class(index: int) -> str:
        return ' class="word"' if index < content.num_text_columns else ""

    head = "".join(
        f'<th scope="col"{column_class(index)}>{escape(title)}</th>'
        for index, title in enumerate(content.header)
    )
    rows = []
    for number, row in enumerate(content.rows):
        classes = ["strong"] if number in content.strong else []
        classes += ["more"] if content.groups and number not in content.groups else []
        mark = f' class="{" ".join(classes)}"' if classes else ""
        cells = []
        for index, text in enumerate(row):
            names = ["word"] if index < content.num_text_columns else []
            names += ["digest"] if index in digest_columns else []
            result = _RESULTS.get(text.split(",")[0])
            names += [result] if result else []
            cells.append(f"<td{_class(names)}>{escape(text)}</td>")
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    body = "\n".join(rows)
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    width = "wide" if len(content.header) >= _MANY_COLUMNS else "slim"
    above = f'<p class="standin">{escape(caption)}</p>\n' if caption else ""
    return f'{above}<div class="scroll"><table class="{width}">{inner}</table></div>'


def figure(svg: str) -> str:
    """A picture that scrolls sideways where the screen is narrow."""
    return f'<figure class="scroll">\n{svg}\n</figure>'


def marked(spans: list[Span], num_cut: int = 0) -> str:
    """An output with what it lacks struck out and what it adds underlined."""
    parts = []
    for span in spans:
        if span.kind == "same":
            parts.append(escape(span.text))
            continue
        # A line break alone would be a mark that nobody sees.
        text = escape(span.text).replace("\n", "↵\n")
        parts.append(f"<{_TAGS[span.kind]}>{text}</{_TAGS[span.kind]}>")
    if num_cut:
        parts.append(f'<span class="cut"> … {num_cut:,} more characters</span>')
    return "".join(parts) or '<span class="cut">(empty)</span>'


def data_uri(name: str, data: bytes) -> str:
    """An image inside the page; the end of its name tells what it is."""
    media_type = _MEDIA_TYPES[name[name.rindex(".") :]]
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def _class(names: list[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""
