"""The page of runs, alive in a browser: `make browser`. EGRM_SHOTS names a folder that keeps its screenshots."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bench_tools import write
from page_tools import DESKTOP, NASTY, PHONE, chromium, process_seconds, requests_of, run_folder, show

from transformers_egrm.evaluation.page import read_scores, render
from transformers_egrm.evaluation.report import read_run


pytestmark = pytest.mark.slow
ENTER = "\ue007"
SIZES = pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two runs: pairs whose first item was thought about, and RM-Bench's nine comparisons."""
    folder = tmp_path_factory.mktemp("page")
    results, items = read_run(run_folder(folder))
    items[0]["asks"][0] |= {
        "route": "long", "tokens": 40, "flops": 2.5e9,
        "details": {
            "stage": "chains",
            "probes": [{"name": "rung 1, exact", "distribution": {"7": 0.8, NASTY: 0.2}}],
            "candidates": [
                {"verdict": "7", "score": 0.5, "text": f"a chain {NASTY}", "kind": "chain", "chosen": True},
                {"verdict": None, "score": None, "text": "no word", "kind": "probe", "chosen": False},
            ],
            "cost": {"prefill_tokens": 1200, "probe_tokens": 10},
        },
    }  # fmt: skip
    items[1]["asks"][0] |= {"reward": None, "status": "no_verdict", "error": NASTY}
    results["figures"]["by_consensus"] = [
        {"low": 0.4, "high": 0.5, "n": 2, "consensus": 0.5, "right": 0.5},
        {"low": 0.9, "high": 1.0, "n": 4, "consensus": 1.0, "right": 0.75},
    ]
    figure = {"value": 0.5, "low": 0.25, "high": 0.75}
    results["rivals"] = [
        {"name": "shorter", "headline": figure, "ahead": figure},
        {"name": "first", "reason": "asks for pairs"},
    ]
    styles = {
        "title": "RM-Bench, styles", "columns": ["against one", "two", "three"],
        "rows": [{"label": f"right {row}", "n": 3, "values": [figure | {"value": row / 2}] * 3} for row in range(3)],
    }  # fmt: skip
    other = results | {"tables": [styles], "judge": {"name": "another"}, "rivals": []}
    path = folder / "page.html"
    path.write_text(render([(results, items), (other, items[2:])]), "utf-8")
    return path


def all_of(window: Any, selector: str) -> list[Any]:
    return window.find_elements("css selector", selector)


def click(window: Any, selector: str) -> None:
    """As a reader would: what is hidden or covered cannot be clicked."""
    (element,) = all_of(window, selector)
    window.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def text_of(window: Any, selector: str) -> str:
    """The text that can be seen there."""
    return "\n".join(element.text for element in all_of(window, selector))


def shoot(window: Any, name: str) -> None:
    """Keep a screenshot where somebody wants to look at it."""
    if folder := os.environ.get("EGRM_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        window.save_screenshot(f"{folder}/{name}.png")


@SIZES
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_reader_filters_opens_an_item_and_finds_its_probes(window: Any, page: Path, size: Any, dark: bool):
    name = f"{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}"
    show(window, page, size, dark=dark)
    shoot(window, f"{name}-top")
    click(window, "[data-filter=wrong]")
    assert text_of(window, "#count") == "2 of 6 items"
    click(window, "[data-filter=failed]")
    assert text_of(window, "#count") == "3 of 6 items"
    click(window, "[data-filter=wrong]")
    click(window, "[data-filter=failed]")
    click(window, "[data-filter=long]")
    assert text_of(window, "#count") == "1 of 6 items"
    click(window, "#list [data-item='0']")
    opened = text_of(window, "#open")
    for words in ("Prompt", NASTY[:40], "Answer 1, better", "Answer 2, worse", "Probes, rung by rung", "rung 1, exact", "80.00",
                  "Candidate 1, a chain: 7, score 0.5000, chosen", "a chain", "Candidate 2, a probe: no verdict",
                  "1,200", "2.50 G"):  # fmt: skip
        assert words in opened
    seven, other = (bar.size["width"] for bar in all_of(window, ".probe i"))
    assert seven / other == pytest.approx(4, rel=0.1)
    shoot(window, f"{name}-item")
    if size == PHONE:
        assert not all_of(window, "#list")[0].is_displayed()
        click(window, ".back")
        assert all_of(window, "#list")[0].is_displayed()


@SIZES
def test_charts_are_drawn_and_nothing_is_wider_than_the_window(window: Any, page: Path, size: Any):
    show(window, page, size)
    assert len(all_of(window, "#trade svg circle")) == 2
    assert "best rival: shorter" in text_of(window, "#trade svg")
    assert len(all_of(window, "#charts svg .diagonal")) == 2
    shades = {element.value_of_css_property("background-color") for element in all_of(window, ".heat td[style]")}
    assert len(shades) == 3
    assert window.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    shoot(window, f"{'phone' if size == PHONE else 'desktop'}-whole")


def test_no_text_becomes_markup_and_nothing_is_asked_of_the_network(window: Any, page: Path):
    requests_of(window)
    show(window, page, DESKTOP, address="#run=0&filter=&item=0")
    for number in range(6):
        click(window, f"#list [data-item='{number}']")
        assert NASTY[:40] in text_of(window, "#open")
    assert window.title == "Judges on benchmarks"
    assert all_of(window, "img, iframe, object, embed, link:not([rel=icon])") == []
    assert len(all_of(window, "script")) == 2
    assert requests_of(window) == [page.as_uri() + "#run=0&filter=&item=0"] or requests_of(window) == []
    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert window.get_log("browser") == []


def test_a_script_that_got_in_would_not_run(window: Any, page: Path, tmp_path: Path):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text("utf-8").replace("<main>", "<main><img src=x onerror=\"document.title='broken'\">"
                                                      "<script>document.title='broken'</script>"), "utf-8")  # fmt: skip
    show(window, broken, DESKTOP)
    assert window.title == "Judges on benchmarks"
    assert all("Content Security Policy" in entry["message"] for entry in window.get_log("browser"))


def test_an_address_opens_the_page_at_an_item(window: Any, page: Path):
    show(window, page, DESKTOP, address="#run=1&filter=wrong&item=3")
    assert text_of(window, "#count") == "1 of 4 items"
    assert all_of(window, "[data-filter=wrong]")[0].get_attribute("aria-pressed") == "true"
    assert all_of(window, "#list [data-item='3']")[0].get_attribute("aria-current") == "true"
    assert "Judgement of answer 1" in text_of(window, "#open")


def test_every_control_has_a_name_and_the_keyboard_reaches_it(window: Any, page: Path):
    show(window, page, DESKTOP)
    unnamed = [element.get_attribute("outerHTML") for element in all_of(window, "button, select, input, a, svg[role=img]")
               if element.is_displayed() and not element.accessible_name]  # fmt: skip
    assert unnamed == []
    levels = [int(element.tag_name[1]) for element in all_of(window, "h1, h2, h3, h4")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    (item,) = all_of(window, "#list [data-item='3']")
    item.send_keys(ENTER)
    assert "Answer 1" in text_of(window, "#open")
    (following,) = all_of(window, "[data-move=Next]")
    following.send_keys(ENTER)
    assert all_of(window, "#list [data-item='4']")[0].get_attribute("aria-current") == "true"
    window.switch_to.active_element.send_keys(ENTER)  # the focus stayed where it was
    assert all_of(window, "#list [data-item='5']")[0].get_attribute("aria-current") == "true"


def test_scores_of_the_command_line_show_why(window: Any, tmp_path: Path):
    vote = {"prompt": 0, "temperature": 1.0, "top_p": 0.9, "verdict": "0", "text": " 0"}
    account = {"stage": "probes", "labels": ["0"], "probes": [vote], "verdict_probs": [], "candidates": [], "chosen": None,
               "prefill_tokens": 12, "probe_tokens": 2, "new_tokens": 2, "flops": 5e6}  # fmt: skip
    row = {
        "id": "a",
        "reward": 0.0,
        "status": "ok",
        "verdict": "0",
        "consensus": 1.0,
        "route": "short",
        "account": account,
    }
    path = write(tmp_path / "scores.jsonl", [row])
    page = tmp_path / "page.html"
    page.write_text(render([read_scores(path)]), "utf-8")
    show(window, page, PHONE)
    assert text_of(window, "#list .tag").startswith("reward 0")
    click(window, "#list [data-item=a]")
    opened = text_of(window, "#open")
    assert "The texts were not kept" in opened
    assert "temperature 1, top-p 0.9: 1 vote" in opened
    assert "reward 0, short path" in opened


def test_three_thousand_items_are_ready_within_two_seconds(window: Any, tmp_path: Path):
    results, items = read_run(run_folder(tmp_path))
    text = "The answer needs some words, as answers do. " * 40
    probes = [
        {"name": f"rung {rung}", "distribution": {str(verdict): 0.09 for verdict in range(11)}} for rung in range(5)
    ]
    many = [one | {"id": str(number), "prompt": f"{number} {text}", "responses": [text, text],
                   "asks": [ask | {"details": {"probes": probes}} for ask in one["asks"]]}
            for number, one in enumerate(items * 500)]  # fmt: skip
    page = tmp_path / "page.html"
    page.write_text(render([(results, many)]), "utf-8")
    before = process_seconds(window)
    show(window, page, PHONE)
    assert text_of(window, "#count") == "3000 of 3000 items"
    # Seconds of a processor, all of the page's process: what a reader waits where the machine has nothing else to do.
    assert 0 < process_seconds(window) - before < 2
    click(window, "[data-filter=wrong]")
    assert text_of(window, "#count") == "1000 of 3000 items"
    (search,) = all_of(window, "#search")
    search.send_keys("2997 the ANSWER")
    window.execute_async_script("setTimeout(arguments[0], 400)")  # it waits for the reader to stop typing
    assert text_of(window, "#count") == "1 of 3000 items"
