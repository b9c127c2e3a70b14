"""Settings for all tests: Hypothesis draws the same examples in every run, torch uses one thread.

And a headless browser for pages; tests that use it are marked `browser`.
"""

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Two workers and some two hundred processes read this code: each would compile all of it anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
settings.register_profile("feta", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("feta")
torch.set_num_threads(1)
FLAGS = ("headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking")
FLAGS += ("disable-component-update", "disable-sync", "window-size=1400,1000")


# Those that take longest, the longest first: a worker that gets one of them last leaves the other idle.
LONG = (
    "test_docs_blocks", "test_contract", "test_recipe", "test_cli_process", "test_memory", "test_ranks",
    "test_net_trim", "test_examples", "test_bench", "test_notebooks", "test_soak", "test_pruned_odd_networks",
    "test_harness", "test_reproduce", "test_spread", "test_lab_report", "test_odd_models",
    "test_cli_prune", "test_cli_certify",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Files are dealt out in the order below, not by their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture
def files_limited_to():
    """A context in which the system itself refuses larger files: a real error in the middle of a write."""

    @contextmanager
    def limited(n_bytes: int):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Chromium for all tests, with an empty profile and its console on record."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(f"needs chromium and chromedriver, found {chromium} and {driver}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def visit(browser: object) -> Iterator[object]:
    """Opens a page from its file; afterwards the console must be empty and nothing fetched."""

    def opened(path: Path) -> object:
        browser.get(path.as_uri())
        return browser

    browser.get_log("browser")
    yield opened
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)") == []
