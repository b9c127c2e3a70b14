"""A headless browser for pages (tests that use it are marked `browser`), and a data set to train on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from feta_lab.data import DataSet, Normalisation, Split

FLAGS = ("headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking")
FLAGS += ("disable-component-update", "disable-sync", "window-size=1400,1000")


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


@pytest.fixture(scope="session")
def tiny_data() -> DataSet:
    """Three kinds of noisy 6 x 6 images: enough to learn from in a second, too noisy to learn in full."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 60, (3, 1, 6, 6), generator=generator)

    def split(n: int) -> Split:
        labels = torch.randint(0, 3, (n,), generator=generator)
        noise = torch.randint(0, 190, (n, 1, 6, 6), generator=generator)
        return Split((patterns[labels] + noise).to(torch.uint8), labels)

    train, validation, test = split(300), split(120), split(120)
    return DataSet("tiny", "tiny", train, validation, test, Normalisation.of(train.images), 3, "nowhere")
