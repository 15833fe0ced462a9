"""What the tests of pages share: a run whose texts are nasty, and headless Chromium that tells everything it does."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_tools import FEW, write

from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.judges import callable_judge
from transformers_egrm.evaluation.report import results_of, write_run
from transformers_egrm.evaluation.runner import evaluate


NASTY = "</script><img src=x onerror=\"document.title='broken'\"><!-- <script>document.title='broken'</script> \u2028 é {{DATA}}"
"""Would run, end the data or fill a place of the frame, were it anything but text."""
PHONE, DESKTOP = (390, 844), (1440, 900)
"""Width and height of a window, in CSS pixels."""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def run_folder(folder: Path, count: int = 6, text: str = NASTY) -> Path:
    """A run over pairs of which every third one is wrong.

    Args:
        folder: Holds the records, and the run in `run`.
        count: How many pairs.
        text: In every prompt.
    """
    rows = [
        {"id": number, "prompt": f"{text} {number}", "chosen": "x" * (1 + (number % 3 > 0)),
         "rejected": "x" * (2 - (number % 3 > 0))}
        for number in range(count)
    ]  # fmt: skip
    path = write(folder / "own.jsonl", rows)
    judge = callable_judge(lambda prompt, response: len(response), "longer words")
    run = evaluate(load_benchmark("own"), Data(path=str(path)), judge, settings=FEW)
    write_run(run, results_of(run), folder / "run")
    return folder / "run"


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A Selenium driver of headless Chromium; the test is skipped where either is absent.

    Args:
        profile: An empty folder, or one that does not exist yet.
    """
    reason = "needs Selenium: pip install 'transformers-egrm[browser]'"
    webdriver: Any = pytest.importorskip("selenium.webdriver", reason=reason)
    service: Any = pytest.importorskip("selenium.webdriver.chrome.service", reason=reason)
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium and its driver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=service.Service(driver))
    try:
        yield window
    finally:
        window.quit()


def show(window: Any, page: Path, size: tuple[int, int], *, address: str = "", dark: bool = False) -> None:
    """Open a page anew, as a reader with such a window would; a real window cannot be as narrow as a phone."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    window.get("about:blank")  # the same page with another end of its address would not be loaded again
    window.get(f"{page.absolute().as_uri()}{address}")


def requests_of(window: Any) -> list[str]:
    """Every address that was asked for since the last call, the page's own among them."""
    messages = (json.loads(entry["message"])["message"] for entry in window.get_log("performance"))
    sent = (one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent")
    return [url for url in sent if not url.startswith(("data:", "about:"))]


def process_seconds(window: Any) -> float:
    """Seconds of a processor that the page's process has taken; its loading among them, and the wait for others not."""
    window.execute_cdp_cmd("Performance.enable", {})
    metrics = window.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "ProcessTime")


__all__ = ["DESKTOP", "NASTY", "PHONE", "chromium", "process_seconds", "requests_of", "run_folder", "show"]
