import io
import struct

import numpy as np
import pytest
from PIL import Image

from ocrquant.errors import ImageError, PageSizeError
from ocrquant.pages.pixels import check_pixels, decode_image, image_size, num_frames


def encoded(image, format="PNG", **keys):
    buffer = io.BytesIO()
    image.save(buffer, format, **keys)
    return buffer.getvalue()


def grey16_tiff(values, photometric, endian="<"):
    """A 1 x n TIFF of 16-bit grey, written by hand, because Pillow does not write white-is-zero."""
    data = np.asarray(values, dtype=f"{endian}u2").tobytes()
    tags = [
        (256, len(values)),
        (257, 1),
        (258, 16),
        (259, 1),
        (262, photometric),
        (273, 0),
        (277, 1),
        (278, 1),
    ]
    tags.append((279, len(data)))
    start = 8 + 2 + 12 * len(tags) + 4
    out = (b"II*\0" if endian == "<" else b"MM\0*") + struct.pack(f"{endian}IH", 8, len(tags))
    for tag, value in tags:
        out += struct.pack(f"{endian}HHII", tag, 4, 1, start if tag == 273 else value)
    return out + struct.pack(f"{endian}I", 0) + data


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 100, (100, 100, 100)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("LA", (0, 255), (0, 0, 0)),
        ("LA", (0, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), (204, 204, 204)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
    ],
)
def test_modes_become_rgb_with_transparency_on_white(mode, value, expected):
    image = decode_image(encoded(Image.new(mode, (2, 3), value)), "x")
    assert (image.mode, image.size) == ("RGB", (2, 3))
    assert image.getpixel((1, 2)) == expected


def test_cmyk_jpeg_is_not_inverted():
    image = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "JPEG"), "x")
    assert max(image.getpixel((4, 4))) < 10
    image = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG"), "x")
    assert min(image.getpixel((4, 4))) > 245


def test_palette_with_a_transparent_entry():
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.putpixel((1, 0), 1)
    plain = decode_image(encoded(image), "x")
    assert [plain.getpixel((x, 0)) for x in (0, 1)] == [(200, 0, 0), (0, 0, 200)]
    holed = decode_image(encoded(image, transparency=0), "x")
    assert [holed.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 200)]


def test_grey_with_a_transparent_value():
    image = Image.new("L", (2, 1), 0)
    image.putpixel((1, 0), 90)
    holed = decode_image(encoded(image, transparency=0), "x")
    assert [holed.getpixel((x, 0))[0] for x in (0, 1)] == [255, 90]


def test_grey16_keeps_its_range():
    image = Image.fromarray(np.array([[0, 257, 0x8000, 65535]], dtype=np.uint16))
    greys = np.asarray(decode_image(encoded(image), "x"))[0, :, 0]
    assert greys.tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize(("photometric", "endian"), [(1, "<"), (1, ">"), (0, "<")])
def test_grey16_tiff_of_either_polarity(photometric, endian):
    data = grey16_tiff([0, 0x8000, 65535], photometric, endian)
    greys = np.asarray(decode_image(data, "x"))[0, :, 0].tolist()
    assert greys == ([0, 128, 255] if photometric else [255, 127, 0])


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_without_a_stated_range_are_refused(mode):
    with pytest.raises(ImageError, match="a.tif: expected 8 or 16 bits a channel"):
        decode_image(encoded(Image.new(mode, (2, 2)), "TIFF"), "a.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_orientation_is_applied_and_the_header_agrees(format, orientation):
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:, 8:] = 255
    # The inverse of what a reader does: store the rows so that the tag brings them back.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), format, exif=exif)
    assert image_size(data, "x") == (16, 8)
    image = np.asarray(decode_image(data, "x").convert("L"))
    assert image.shape == (8, 16)
    assert image[4, 2] < 60
    assert image[4, 13] > 195


def test_frames_of_a_tiff_and_only_of_a_tiff(tmp_path):
    frames = [Image.new("L", (4 + n, 3), 50 * n) for n in range(3)]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert num_frames(tmp_path / "a.tif", "a") == 3
    assert num_frames(tmp_path / "a.gif", "a") == 1
    assert [image_size(tmp_path / "a.tif", "a", n) for n in range(3)] == [(4, 3), (5, 3), (6, 3)]
    assert decode_image(tmp_path / "a.tif", "a", 2).getpixel((0, 0)) == (100, 100, 100)
    with pytest.raises(ImageError, match="too few frames"):
        image_size(tmp_path / "a.tif", "a", 3)


def test_header_is_enough_for_the_size():
    data = encoded(Image.effect_noise((64, 64), 50))
    assert image_size(data[: len(data) // 2], "cut.png") == (64, 64)
    with pytest.raises(ImageError, match=r"^cut.png: expected a readable image, got OSError: .*; replace"):
        decode_image(data[: len(data) // 2], "cut.png")


@pytest.mark.parametrize("data", [b"", b"hello"])
def test_not_an_image(data):
    with pytest.raises(
        ImageError, match=r"^notes.png: expected an image, got .*; replace the file or remove it$"
    ):
        image_size(data, "notes.png")


def test_limit_on_pixels():
    check_pixels("p", 10, 10, 100)
    with pytest.raises(PageSizeError, match=r"^p: expected at most 99 pixels, got 10 x 10 = 100; scale"):
        check_pixels("p", 10, 10, 99)


def test_more_pixels_than_pillow_opens(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(PageSizeError, match="x.png"):
        image_size(encoded(Image.new("L", (9, 9))), "x.png")
