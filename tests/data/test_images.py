"""The image reader against images written by the specification of PNG, or by tifffile."""

import io
import re
import struct
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from core.data.images import read_image, read_mask
from core.data.pixels import as_images, white_level
from core.errors import InputError
from tests import sentences
from tests.data import layouts
from tests.data.layouts import chunk, exif, png

tifffile = pytest.importorskip("tifffile")
RNG = np.random.default_rng(0)
COLOURS = {"grey": 0, "rgb": 2, "grey and alpha": 4, "rgba": 6}
#: what a reader must do with an image for a person to see it upright, by EXIF's orientation
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}


def pixels(kind, top, height=5, width=7):
    channels = {"grey": 1, "rgb": 3, "grey and alpha": 2, "rgba": 4}[kind]
    values = RNG.integers(0, top, (height, width, channels), endpoint=True).astype(np.uint16)
    values[0, 0] = top  # all bits are in use
    return values


def on_white(values, top=255):
    """Colours (H, W, C) with an alpha channel as they look on white, in float64."""
    colour, alpha = values[..., :-1].astype(float), values[..., -1:] / top
    return np.floor(colour * alpha + top * (1 - alpha) + 0.5)


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", COLOURS)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_mode_bits_and_orientation(tmp_path, kind, bits, orientation):
    values, clear = pixels(kind, 2**bits - 1), kind in ("grey and alpha", "rgba")
    path, metadata = tmp_path / "a.png", chunk(b"eXIf", exif(orientation))
    path.write_bytes(png(values, COLOURS[kind], min(bits, 9) // 9 * 8 + 8, metadata))
    if bits > 8 and kind != "grey":
        refused(path, "more than 8 bits")
        return
    wanted = on_white(values) if bits == 8 and clear else values[..., : 1 if kind == "grey" else 3]
    expected, found = UPRIGHT[orientation](wanted), read_image(path)
    assert found.dtype == (np.uint8 if bits == 8 else np.uint16)
    assert np.array_equal(found, expected[..., 0] if "grey" in kind else expected)


@pytest.mark.parametrize("bits", [9, 12, 16])
def test_the_bits_in_use_become_eight(bits):
    """In all parts of a set by one scale, so that the brightest pixel of all decides."""
    dark, bright = np.array([[[0, 2**bits - 1]] * 2]), np.array([[[0, 300]] * 2])
    found = as_images({"a": dark.astype(np.uint16), "b": bright.astype(np.uint16)})
    assert found["a"][0, 0, 0].tolist() == [0, 255]
    assert found["b"][0, 0, 0].tolist() == [0, round(300 * 255 / (2**bits - 1))]
    assert white_level(200) == 255 and white_level(256) == 511


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("ending", ["jpg", "webp", "tif"])
def test_other_formats_are_turned_once(tmp_path, ending, orientation):
    values = np.kron(np.arange(6).reshape(2, 3) * 40, np.ones((16, 16))).astype(np.uint8)
    path = tmp_path / f"a.{ending}"
    options = {"tif": {}, "jpg": {"quality": 100}, "webp": {"lossless": True}}[ending]
    metadata = Image.Exif()
    metadata[0x112] = orientation
    Image.fromarray(values).save(path, exif=metadata, **options)
    found = read_image(path)
    found = found if found.ndim == 2 else found[..., 0]
    assert np.abs(found.astype(int) - UPRIGHT[orientation](values)).max() <= 2


@pytest.mark.parametrize(
    "more", [{}, {"byteorder": ">"}, {"compression": "deflate", "predictor": True}]
)
@pytest.mark.parametrize("top", [255, 4095, 65535])
def test_tiff(tmp_path, more, top):
    path, dtype = tmp_path / "a.tif", np.uint8 if top == 255 else np.uint16
    grey, colour = (pixels(kind, top).astype(dtype) for kind in ("grey", "rgb"))
    tifffile.imwrite(path, grey[..., 0], photometric="minisblack", **more)
    assert np.array_equal(read_image(path), grey[..., 0])
    tifffile.imwrite(path, colour, photometric="rgb", **more)
    if top > 255:
        refused(path, "more than 8 bits")
    else:
        assert np.array_equal(read_image(path), colour)


def test_transparency_lies_on_white_wherever_it_is_written(tmp_path):
    """The numbers of a mask are as written."""
    path, grey, colour = tmp_path / "a.png", pixels("grey", 255), pixels("rgb", 255)
    key = chunk(b"tRNS", struct.pack(">H", int(grey[2, 3, 0])))
    path.write_bytes(png(grey, 0, 8, key))
    alpha = np.where(grey == grey[2, 3], 0, 255)
    assert np.array_equal(read_image(path), on_white(np.concatenate([grey, alpha], 2))[..., 0])
    key = chunk(b"tRNS", struct.pack(">HHH", *colour[1, 1].tolist()))
    path.write_bytes(png(colour, 2, 8, key))
    assert read_image(path)[1, 1].tolist() == [255] * 3
    palette = chunk(b"PLTE", bytes([10, 20, 30, 200, 100, 0])) + chunk(b"tRNS", bytes([255, 51]))
    path.write_bytes(png(np.array([[[0], [1]]]), 3, 8, palette))
    assert read_image(path).tolist() == [[[10, 20, 30], [244, 224, 204]]]
    assert read_mask(path).tolist() == [[0, 1]]


def test_a_grey_map_is_scaled_as_it_announces(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 4095\n" + np.array([2048, 4095], ">u2").tobytes())
    assert np.abs(read_image(tmp_path / "a.pgm").astype(int) - [[32776, 65535]]).max() <= 1


def refused(path, words):
    line = sentences.refused(words, read_image, path)
    assert str(path) in line and len(line) < 300 + len(str(path))


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def announced(width, height):
    """The begin of an image of that size."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + struct.pack(">I", 9) + b"IDAT"


DEEP = pixels("grey", 65535)
FRAMES = [Image.new("L", (2, 2), shade) for shade in (0, 99)]
BAD = {
    "two billion pixels": (announced(50_000, 50_000), "50000 by 50000|2500000000 pixels"),
    "more pixels than allowed": (announced(9_000, 9_000), "9000 by 9000"),
    "nothing of what it announces": (announced(100, 100), "cannot be read as an image"),
    # Pillow would start another program for it
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of BMP"),
    "cut": (png(pixels("rgb", 255, 40, 40), 2)[:200], "cannot be read as an image"),
    "nothing": (b"", "none of BMP"),
    "several": (saved(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "several images"),
    "numbers below 0": (saved(Image.new("I", (2, 2), -5), "TIFF"), "-5 to -5"),
    "floating point": (saved(Image.new("F", (2, 2), 0.5), "TIFF"), "floating-point"),
    "deep with a transparent grey": (png(DEEP, 0, 16, chunk(b"tRNS", b"\0\1")), "transparent"),
    "deep in colour, as PPM": (b"P6 1 1 65535\n" + bytes(6), "more than 8 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_right_is_refused_in_one_line(tmp_path, name):
    path = tmp_path / "image"
    path.write_bytes(BAD[name][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        refused(path, BAD[name][1])


def test_zero_is_white(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2, 2), np.uint16), photometric="miniswhite")
    refused(tmp_path / "a.tif", "its zero is white")
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((2, 2), np.uint8), photometric="miniswhite")
    assert read_image(tmp_path / "b.tif").tolist() == [[255, 255]] * 2


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP"]),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=4),
)
def test_a_scribble_gives_an_image_or_one_line(tmp_path, kind, place, scribble):
    content = saved(Image.fromarray(layouts.draw(0, 1, 20, 20, 3)[0][0]), kind)
    at = int(place * len(content))
    path = tmp_path / "image"
    path.write_bytes(content[:at] + scribble + content[at + len(scribble) :])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read_image(path)
        assert found.dtype in (np.uint8, np.uint16) and found.shape[2:] in ((), (3,))
    except InputError as error:
        assert re.fullmatch(r".*image.*", str(error))
