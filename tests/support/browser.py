"""A real browser without a screen: finds one, opens a file in it, and reads the picture it took."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SIZE = (1100, 700)
"""Pixels of the window; a browser may keep some rows of it to itself."""

_FLAGS = (
    "--headless",
    # The pages are the tests' own. Root in a container has no other way.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    f"--window-size={SIZE[0]},{SIZE[1]}",
)


class BrowserError(Exception):
    """There is no browser, or it did not do what it was asked for."""


def find() -> str:
    """A browser that works, tried with an empty page.

    Raises:
        BrowserError: there is none on PATH, or it does not start.
    """
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise BrowserError(f"no browser on PATH (looked for {', '.join(NAMES)})")
    if "<body" not in document(path, "about:blank"):
        raise BrowserError(f"{path} does not print the document of an empty page")
    return path


def document(path: str, address: str) -> str:
    """The document of a page once it is loaded and its scripts have run, as HTML."""
    return _run(path, "--dump-dom", address)


def screenshot(path: str, address: str, into: Path) -> np.ndarray:
    """What the page looks like: ``uint8[height, width, 3]``."""
    _run(path, f"--screenshot={into}", address)
    if not into.is_file():
        raise BrowserError(f"{path} took no screenshot")
    return pixels(into.read_bytes())


def _run(path: str, *words: str) -> str:
    """What the browser prints; files take it, since a helper that it leaves behind would hold a pipe open."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [path, *_FLAGS, f"--user-data-dir={profile}/data", *words]
        # Browsers look for settings in the home folder, which may not be writable.
        env = {**os.environ, "HOME": profile}
        with open(f"{profile}/out", "w+b") as out, open(f"{profile}/err", "w+b") as err:
            try:
                done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BrowserError(f"{path}: {error}") from error
            said, complained = (_text(file) for file in (out, err))
    if done.returncode:
        raise BrowserError(f"{path} ended with {done.returncode}: {complained[-500:]}")
    return said


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def pixels(png: bytes) -> np.ndarray:
    """A PNG of 8 bits a channel, red, green and blue with or without alpha, not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    width = height = channels = 0
    while at < len(png):
        length, name = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        if name == b"IHDR":
            width, height = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
            assert (body[8], body[12]) == (8, 0)
            channels = {2: 3, 6: 4}[body[9]]
        elif name == b"IDAT":
            packed += body
        at += length + 12
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    made = np.zeros((height + 1, width, channels), np.uint8)
    for y in range(height):
        made[y + 1] = _unfiltered(int(rows[y, 0]), rows[y, 1:].reshape(width, channels), made[y])
    return made[1:, :, :3]


def _unfiltered(kind: int, row: np.ndarray, above: np.ndarray) -> np.ndarray:
    """One row without its filter (PNG specification, 9.2)."""
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    if kind == 2:
        return row + above
    made = np.zeros_like(row)
    for channel in range(row.shape[1]):
        left = corner = 0
        values = []
        for given, up in zip(row[:, channel].tolist(), above[:, channel].tolist(), strict=True):
            if kind == 3:
                near = (left + up) // 2
            else:
                guess = left + up - corner
                _, _, near = min(
                    (abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner)
                )
            left, corner = (given + near) & 255, up
            values.append(left)
        made[:, channel] = values
    return made
