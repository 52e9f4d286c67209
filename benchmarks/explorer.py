"""Measure the explorer's page in headless Chromium: how soon heads are shown, and the browser's memory.

The server must run, with a family that takes texts:
`python -m benchmarks.explorer --address HOST:PORT --model NAME`.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
from rich.console import Console
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

PAGE = (sys.executable, "-c", "from polyhead_view.explorer.command import app; app()")
WORDS = ("the", "cat", "that", "I", "saw", "yesterday", "sat", "on", "a", "mat", "while", "it", "rains")
SHOWN = "return [performance.getEntriesByName('heads shown').at(-1)?.startTime, performance.now()]"
ANSWERED = """
const answers = performance.getEntriesByType('resource').filter(({name}) => name.endsWith('/api/overview'));
return [answers.at(-1).requestStart, answers.at(-1).responseEnd, answers.at(-1).encodedBodySize]
"""
TYPE = (
    "const field = document.getElementById('text'); field.value = arguments[0];"
    "field.dispatchEvent(new Event('input')); performance.clearMarks(); performance.clearResourceTimings()"
)
RUNS = 5


def main() -> None:
    """Print a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1:8001")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    arguments = parser.parse_args()

    table = Table(
        "T", "answer, ms", "KiB", "shown after the answer, ms", "one head opened, ms", "browser, MB"
    )
    command = [*PAGE, "--port", "0", "--address", arguments.address, "--model", arguments.model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            address = page.stdout.readline().split()[-1]
            with webdriver.Chrome(options=_options(), service=_service()) as driver:
                driver.get("about:blank")
                table.add_row("no page", "", "", "", "", f"{_memory(driver):.0f}")
                driver.get(address)
                WebDriverWait(driver, 60).until(
                    lambda _: driver.find_elements(By.CSS_SELECTOR, "[role=gridcell]")
                )
                for tokens in arguments.tokens:
                    table.add_row(str(tokens), *_measure(driver, tokens))
        finally:
            page.terminate()
    Console(width=120).print(table)


def _measure(driver: webdriver.Chrome, tokens: int) -> list[str]:
    """Show sentences of so many tokens, and a head of each; medians."""
    answers, sizes, pictures, heads = [], [], [], []
    for run in range(RUNS):
        words = [WORDS[(at + run) % len(WORDS)] for at in range(tokens - 2)]
        driver.execute_script(TYPE, " ".join(words))
        _until(driver, lambda: driver.execute_script(SHOWN)[0] is not None and not _busy(driver))
        shown = driver.execute_script(SHOWN)[0]
        sent, answered, size = driver.execute_script(ANSWERED)
        answers.append(answered - sent)
        sizes.append(size / 1024)
        pictures.append(shown - answered)
        cells = driver.find_elements(By.CSS_SELECTOR, "[role=gridcell]")
        started = time.perf_counter()
        cells[(7 * run) % len(cells)].click()
        _until(driver, lambda: driver.find_elements(By.CSS_SELECTOR, "#detail canvas") and not _busy(driver))
        heads.append(1000 * (time.perf_counter() - started))
    return [f"{statistics.median(values):.0f}" for values in (answers, sizes, pictures, heads)] + [
        f"{_memory(driver):.0f}"
    ]


def _busy(driver: webdriver.Chrome) -> bool:
    return bool(driver.find_elements(By.CLASS_NAME, "busy"))


def _until(driver: webdriver.Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(driver, 120, 0.01).until(lambda _: condition())


def _memory(driver: webdriver.Chrome) -> float:
    """Return the memory of all the browser's processes in MB, without garbage; what they share once."""
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    service = psutil.Process(driver.service.process.pid)
    return sum(one.memory_full_info().pss for one in service.children(recursive=True)) / 1e6


def _options() -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,1100"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    return options


def _service() -> webdriver.ChromeService:
    return webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")


if __name__ == "__main__":
    main()
