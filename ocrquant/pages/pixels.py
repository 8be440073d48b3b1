"""Encoded images to 8-bit RGB, and their sizes from the header alone.

Knows colour modes, transparency, orientation and frames. Knows nothing of pages or truth; PDFs are elsewhere.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ocrquant.errors import ImageError, PageSizeError

__all__ = ["IMAGE_SUFFIXES", "check_pixels", "decode_image", "image_size", "num_frames"]

IMAGE_SUFFIXES = frozenset(
    [
        ".bmp",
        ".gif",
        ".jp2",
        ".jpeg",
        ".jpg",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    ]
)

_EXIF_ORIENTATION = 0x0112
# EXIF 2.32, tag Orientation: how the stored rows and columns turn into what a person should see.
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = frozenset({5, 6, 7, 8})
_TIFF_PHOTOMETRIC = 262
_WHITE_IS_ZERO = 0


def num_frames(source: Path, name: str) -> int:
    """Frames of a TIFF file; 1 for every other format, whose further frames are animation or thumbnails.

    Raises:
        ImageError: The file is not an image.
    """
    with _opened(source, name) as image:
        return int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1


def image_size(source: Path | bytes, name: str, frame: int = 0) -> tuple[int, int]:
    """Width and height in pixels after orientation, without decoding any pixel.

    Args:
        source: A file, or its content.
        name: What an error message calls the image.
        frame: Which frame of a TIFF file.

    Raises:
        ImageError: Not an image, or no such frame.
        PageSizeError: More pixels than Pillow opens at all.
    """
    with _opened(source, name) as image:
        image.seek(frame)
        width, height = image.size
        return (height, width) if _orientation(image) in _SIDEWAYS else (width, height)


def decode_image(source: Path | bytes, name: str, frame: int = 0) -> Image.Image:
    """The image as 8-bit RGB, upright, transparency laid on white; arguments and errors as `image_size`.

    16-bit grey keeps its range (65535 becomes 255). 32-bit integer and float images state no range and are
    refused.
    """
    with _opened(source, name) as image:
        image.seek(frame)
        orientation = _orientation(image)
        image.load()
        rgb = _to_rgb(image, name)
    return rgb.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else rgb


def check_pixels(name: str, width: int, height: int, max_pixels: int, fix: str = "") -> None:
    """Refuse a page with more than ``max_pixels`` pixels.

    Raises:
        PageSizeError: It has more.
    """
    if width * height > max_pixels:
        raise PageSizeError(
            name,
            expected=f"at most {max_pixels:,} pixels",
            given=f"{width} x {height} = {width * height:,}",
            fix=fix or "scale the image down or raise max_pixels",
        )


@contextmanager
def _opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """An open image; whatever Pillow raises inside the block becomes one line about the file."""
    try:
        with warnings.catch_warnings():
            # The caller has a limit of its own; damaged EXIF blocks and palettes are not worth a line each.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                yield image
    except Image.DecompressionBombError as error:
        raise PageSizeError(
            name, expected="an image that Pillow opens", given=error, fix="scale the image down"
        ) from None
    except UnidentifiedImageError:
        raise ImageError(
            name, expected="an image", given=_what(source), fix="replace the file or remove it"
        ) from None
    except EOFError:
        raise ImageError(name, expected="a frame of that number", given="too few frames") from None
    except (OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, OverflowError) as error:
        given = f"{type(error).__name__}: {error}"
        raise ImageError(
            name, expected="a readable image", given=given, fix="replace the file or remove it"
        ) from None


def _what(source: Path | bytes) -> str:
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    return f"{size} bytes of another format" if size else "an empty file"


def _orientation(image: Image.Image) -> int:
    """EXIF orientation as far as the header states it, so that size and pixels always agree.

    Pillow turns TIFF files by itself. `getexif` on PNG would decode the image to look for a trailing block.
    """
    if image.format == "TIFF":
        return 1
    if image.format == "PNG":
        exif = Image.Exif()
        exif.load(image.info.get("exif", b""))
        return int(exif.get(_EXIF_ORIENTATION, 1))
    return int(image.getexif().get(_EXIF_ORIENTATION, 1))


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode in ("I", "F"):
        raise ImageError(
            name,
            expected="8 or 16 bits a channel",
            given=f"32-bit {'integer' if image.mode == 'I' else 'float'} pixels",
            fix="save it as an 8-bit image",
        )
    if image.mode.startswith("I;16"):
        return _from_grey16(image).convert("RGB")
    if image.mode in ("La", "RGBa"):
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _from_grey16(image: Image.Image) -> Image.Image:
    """65535 to 255 with rounding; `Image.convert` would clip everything above 255 to white."""
    values = np.asarray(image).astype(np.uint32)
    grey = ((values + 128) // 257).astype(np.uint8)
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO:
        grey = 255 - grey  # Pillow inverts 8-bit files of this kind, and leaves 16-bit ones alone.
    return Image.fromarray(grey)
