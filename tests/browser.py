"""Headless Chromium (Debian: chromium and chromium-driver)."""

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

import pytest
from selenium import webdriver

CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")
DRIVER = which("chromedriver")

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs Chromium and its driver: apt-get install chromium chromium-driver",
)


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """Runs a browser until the end of the block."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = str(CHROMIUM)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as opened:
        opened.set_script_timeout(240)
        yield opened
