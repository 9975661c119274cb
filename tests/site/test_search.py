"""The site's search, from a file: what people look for stands first."""

from pathlib import Path
from typing import Any

import pytest

SEARCHES = {
    "hang": "lessons/when_it_hangs.html",
    "sum or mean": "lessons/data_parallel_by_hand.html#why-a-sum-and-not-a-mean",
    "batch size": "lessons/trainer.html#per-gpu-or-global-what-a-batch-size-means",
    "OutOfMemoryError": "lessons/one_gpu.html#what-a-training-step-keeps-in-memory",
    "deadlock": "glossary.html#term-deadlock",
    "no_sync": "lessons/distributed_data_parallel.html#gradient-accumulation-with-no-sync",
    "split.remainder_dropped": "troubleshooting.html#split.remainder_dropped",
}


@pytest.fixture(scope="module")
def found(chromium: Any, site: Path) -> dict[str, str]:
    """What the site's own search puts first, opened as a file."""
    tab = chromium.new_page()
    results = {}
    for words in SEARCHES:
        tab.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
        tab.locator("#search-results li a").first.wait_for(timeout=10_000)
        results[words] = tab.locator("#search-results li a").first.get_attribute("href")
    tab.close()
    return results


@pytest.mark.parametrize("words", SEARCHES)
def test_search_puts_first_what_answers(found: dict[str, str], words: str) -> None:
    assert found[words] == SEARCHES[words]
