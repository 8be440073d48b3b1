"""PDFs written by hand, small enough to read, and images with a known pixel or two."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

A4 = (595, 842)
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def _encryption(password: bytes, file_id: bytes) -> bytes:
    """Dictionary of the standard security handler, revision 2 (PDF 32000-1, 7.6.3)."""
    padded = (password + _PADDING)[:32]
    owner = _rc4(hashlib.md5(padded).digest()[:5], padded)
    permissions = (-4).to_bytes(4, "little", signed=True)
    key = hashlib.md5(padded + owner + permissions + file_id).digest()[:5]
    user = _rc4(key, _PADDING)
    return b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>" % (
        owner.hex().encode(),
        user.hex().encode(),
    )


def build_pdf(
    contents: list[str],
    *,
    size: tuple[int, int] = A4,
    page_keys: str = "",
    resources: str = "",
    password: str | None = None,
    extra_objects: list[str] | None = None,
) -> bytes:
    """A PDF of one page a content stream.

    Font /F is Helvetica; /D the same with codes 1 to 4 for fi, minus, quoteright and a name of no glyph;
    /C is Courier. ``extra_objects`` are numbered from 6 on.
    """
    differences = "<< /Type /Encoding /Differences [1 /fi /minus /quoteright /g7391] >>"
    fonts = [
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding {differences} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
    ]
    objects = ["", "", *fonts, *(extra_objects or [])]
    first_page = len(objects) + 1
    kids = " ".join(f"{first_page + 2 * number} 0 R" for number in range(len(contents)))
    objects[0] = "<< /Type /Catalog /Pages 2 0 R >>"
    objects[1] = f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>"
    for number, content in enumerate(contents):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] {page_keys} "
            f"/Resources << /Font << /F 3 0 R /D 4 0 R /C 5 0 R >> {resources} >> "
            f"/Contents {first_page + 2 * number + 1} 0 R >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    for offset in offsets:
        out += f"{offset:010d} 00000 n \n".encode()
    security = b""
    if password is not None:
        file_id = bytes(16)
        entry = _encryption(password.encode(), file_id)
        security = b"/Encrypt %s /ID [<%s> <%s>]" % (entry, file_id.hex().encode(), file_id.hex().encode())
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        security,
        start,
    )
    return bytes(out)


@pytest.fixture
def write_pdf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a PDF below the temporary folder and gives its path."""

    def write(name: str, contents: list[str], **keys: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(build_pdf(contents, **keys))
        return path

    return write
