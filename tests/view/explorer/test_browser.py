"""The page as people use it, in headless Chromium."""

import asyncio
import csv
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from xml.etree import ElementTree

import pytest
import uvicorn
from matplotlib.image import imread
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from tests.browser import needs_browser, open_browser
from tests.view.explorer.fake import NAMES, FakeClient

from polyhead_client import AccessDenied, Encoding, Unavailable
from polyhead_view.explorer.app import configuration, create_page
from polyhead_view.explorer.explorer import Explorer

pytestmark = needs_browser

T = TypeVar("T")


@contextmanager
def serving_page(client: FakeClient) -> Iterator[str]:
    """The page of a client, on a free port; yields its address."""
    app = create_page(Explorer(client.as_client, address="host:1"))
    server = uvicorn.Server(configuration(app))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


class Window:
    """A browser's window with the page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of what may be drawn anew while it is read."""
        return self.until(lambda: [self.find(selector).text])[0]

    def all(self, selector: str) -> list[WebElement]:
        """What is visible."""
        script = "return [...document.querySelectorAll(arguments[0])].filter((one) => one.checkVisibility())"
        return cast(list[WebElement], self.run(script, selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], T]) -> T:
        waiting = WebDriverWait(self.driver, 240, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return waiting.until(lambda _: condition())

    def until_idle(self) -> None:
        """Wait until heads are shown, and nothing is asked for."""
        self.until(lambda: self.all("[role=gridcell]") and not self.all(".busy"))

    def type(self, name: str, text: str) -> None:
        self.run(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input'))",
            name,
            text,
        )

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        return str(self.driver.switch_to.active_element.get_attribute("aria-label"))

    @property
    def focused_text(self) -> str:
        return self.driver.switch_to.active_element.text

    def messages(self) -> list[str]:
        """What the console says, such as blocked or missing files."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def window(driver: webdriver.Chrome, words: FakeClient) -> Iterator[Window]:
    """A window that shows the heads of the first sentence; the console must be empty at the end."""
    with serving_page(words) as address:
        one = Window(driver)
        driver.get(address)
        one.until_idle()
        yield one
        refused = "the server responded with a status of"  # which the page has said itself
        assert [message for message in one.messages() if refused not in message] == []
        driver.get("about:blank")


def test_all_heads_are_shown_with_their_scores(window: Window) -> None:
    labels = [str(cell.get_attribute("aria-label")) for cell in window.all("[role=gridcell]")]

    assert len(labels) == 6
    assert labels[0].startswith("layer 0, head 0, entropy 0.")
    assert labels[5].startswith("layer 1, head 2, entropy 0.")
    assert window.text("#connection") == "connected to host:1"
    options = window.run("return [...document.querySelector('#score')].map((one) => [one.value, one.text])")
    assert [name for name, _ in options] == list(NAMES)
    assert options[0][1] == "previous token"
    assert window.text("#meaning span") == "How widely attention is spread, in nats; 0 is all on one token."

    window.find("#define").click()
    assert window.focused_text == "What the scores mean"
    assert len(window.all("#definitions dt")) == len(NAMES)
    window.find("#score").send_keys("next")

    labels = [str(cell.get_attribute("aria-label")) for cell in window.all("[role=gridcell]")]
    assert labels[0] == "layer 0, head 0, next token not defined"
    colours = {cell.value_of_css_property("border-top-color") for cell in window.all("[role=gridcell]")}
    assert len(colours) == 5, "one of each score, and one of what is not defined"


def test_heads_that_share_keys_say_so(driver: webdriver.Chrome) -> None:
    shared = FakeClient(heads=4)
    shared.kv_heads = 2
    with serving_page(shared) as address:
        window = Window(driver)
        driver.get(address)
        window.until_idle()

        titles = [cell.get_attribute("title") for cell in window.all("[role=gridcell]")]

        first, second = "keys and values 0, of heads 0 to 1", "keys and values 1, of heads 2 to 3"
        assert titles == [first, first, second, second] * 2
        driver.get("about:blank")


def test_the_keyboard_reaches_everything(window: Window) -> None:
    window.run("document.querySelector('[role=gridcell]').focus()")
    window.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert window.focused.startswith("layer 1, head 2")
    assert window.text("#about").startswith("layer 1, head 2, entropy")
    assert len(window.all("[role=gridcell][tabindex='0']")) == 1
    outline = window.driver.switch_to.active_element.value_of_css_property("outline-style")
    assert outline == "solid"

    window.press(Keys.ENTER)
    window.until(lambda: window.all("#detail canvas"))
    assert window.text("#detail-title") == "Layer 1, head 2"
    window.until_idle()
    window.run("document.querySelector('#detail canvas').focus()")
    window.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert window.text("#detail .reading").startswith("cat (2) attends to The (1): 0.")

    window.press(Keys.ESCAPE)
    assert not window.all("#detail")
    assert window.focused.startswith("layer 1, head 2")


def test_the_pointer_reads_weights(window: Window) -> None:
    window.all("[role=gridcell]")[1].click()
    window.until(lambda: window.all("#detail canvas"))
    canvas = window.find("#detail canvas")
    before = window.text("#detail .reading")

    ActionChains(window.driver).move_to_element(canvas).perform()

    reading = window.text("#detail .reading")
    assert reading != before
    assert " attends to " in reading
    tokens = window.all("#detail .strip button")
    assert tokens[0].text == "[CLS]"
    tokens[-1].click()
    assert window.text("#detail .reading").startswith("[SEP]")
    assert len(window.all("#detail li")) == 8


def test_the_scores_of_the_open_head_follow_the_sentence(window: Window) -> None:
    window.all("[role=gridcell]")[4].click()
    window.until_idle()
    before = window.text("#scores")
    assert before.splitlines()[0] == "previous token"

    window.type("text", "another sentence of another length")
    window.until(lambda: "another" in window.text("figcaption"))
    window.until_idle()

    values = window.text("#scores").splitlines()
    assert window.text("#scores") != before
    entropy = values[values.index("entropy") + 1]
    assert str(window.all("[role=gridcell]")[4].get_attribute("aria-label")).endswith(f"entropy {entropy}")


def test_weights_are_fetched_norm_weighted_when_asked_for(window: Window, words: FakeClient) -> None:
    window.all("[role=gridcell]")[0].click()
    window.until_idle()
    before = window.find("[role=gridcell]").get_attribute("aria-label")

    window.find("[value=weighted]").click()
    window.until(lambda: words.calls[-1].get("weighted"))
    window.until_idle()

    assert window.find("[role=gridcell]").get_attribute("aria-label") != before
    assert window.text("#detail .caption").startswith("Norm-weighted attention of: The cat")


def test_maps_of_all_heads_together_are_shown(window: Window, words: FakeClient) -> None:
    window.find("#rollout").click()
    window.until(lambda: window.all("#detail canvas"))

    assert window.text("#detail-title") == "Rollout"
    assert "comes from" in window.text("#detail .reading")
    assert words.calls[-1]["rollout"] is True
    assert window.text("#detail li").startswith("[CLS] (0) ")
    assert not window.all("#contacts")
    words.graphs["words"].append("contacts")
    window.until(lambda: window.all("#contacts"))
    window.find("#contacts").click()
    window.until(lambda: "touches" in window.text("#detail .reading"))
    assert window.text("#detail-title") == "Contacts"
    assert words.calls[-1]["contacts"] is True
    window.until(lambda: "open=contacts" in window.driver.current_url)


def test_markup_in_a_text_stays_text(window: Window) -> None:
    text = "<img/src=x/onerror=document.title='gone'> <b>bold</b> <script>document.title='gone'</script>"
    window.type("text", text)
    window.type("other", text)
    window.all("[role=gridcell]")[0].click()
    window.until(lambda: len(window.all("#detail .panel > canvas")) == 2 and window.all("#similarity canvas"))
    window.until_idle()

    strip = [token.text for token in window.all("#detail .strip button")]
    assert strip[1:3] == text.split()[:2]
    assert not window.all("img, b")
    assert window.run("return document.querySelectorAll('script').length") == 1
    assert window.driver.title == "polyhead explorer"


def test_silenced_heads_show_what_they_changed(window: Window, words: FakeClient) -> None:
    window.run("document.querySelector('[role=gridcell]').focus()")
    window.press("s", Keys.ARROW_RIGHT)
    window.press("s")
    window.until(lambda: len(window.all("#change .strip button")) == 12)
    window.until_idle()

    assert window.text("#silenced") == "Without layer 0 head 0, layer 0 head 1."
    assert "Cosine of the embedding" in window.text("#change .reading")
    assert window.focused.endswith("silenced"), "the focus stays where it is"
    assert window.all("#off-means")
    assert "how far a token's vector moved" in window.text("#change .legend")
    assert not window.all("#off")
    window.press(Keys.ENTER)
    window.until(lambda: window.all("#detail canvas"))
    assert window.text("#off").startswith("This head is silenced")
    window.until_idle()
    assert all(call["head_mask"].sum() == 4 for call in words.calls[-2:] if "head_mask" in call)

    window.find("#restore").click()
    window.until_idle()
    assert not window.all("#change")
    assert "head_mask" not in words.calls[-1]


def test_two_sentences_are_compared(window: Window) -> None:
    window.all("[role=gridcell]")[0].click()
    window.type("other", "A dog ran")
    window.until(lambda: len(window.all("[role=gridcell]")) == 12 and window.all("#similarity canvas"))
    window.until(lambda: len(window.all("#detail .panel")) == 2)
    assert window.text("#cosine").startswith("Cosine of the two sentences: 0.")
    assert " with " in window.text("#similarity .panel .reading")

    window.type("other", "")
    window.until(lambda: len(window.all("[role=gridcell]")) == 6)
    window.until(lambda: len(window.all("#detail .panel")) == 1)
    assert not window.all("#similarity")


def test_places_are_traced_and_patched_by_a_click(window: Window, words: FakeClient) -> None:
    words.graphs["words"].append("stream")
    window.type("text", "I saw the cat")
    window.type("other", "I saw the dog")
    window.until(lambda: window.all("#trace-texts"))
    window.find("#trace-texts").click()
    window.until(lambda: window.all("#trace canvas"))
    window.until_idle()
    assert window.text("#traced").endswith(": 1.0000 for the first sentence, 0.7500 for the second")
    assert window.text("#trace .panel .legend").startswith("−1.000")
    assert not window.all("#patch")

    window.run("document.querySelector('#trace canvas').focus()")
    window.press(Keys.ARROW_DOWN, *[Keys.ARROW_RIGHT] * 4, Keys.ENTER)
    window.until(lambda: window.all("#patch .strip"))
    window.until_idle()
    patched = "Patched: before layer 1 at cat ← dog (4): 0.3750"
    assert window.text("#trace .reading") != ""
    assert window.text("#patch-title") == patched
    assert "of the second sentence without and with the patch" in window.text("#patch .reading")
    assert len(window.all("#patch .strip button")) == 6
    window.until(lambda: "trace=1.4" in window.driver.current_url)

    window.driver.refresh()
    window.until(lambda: window.all("#patch .strip"))
    assert window.text("#patch-title") == patched
    ActionChains(window.driver).move_to_element(window.find("#trace canvas")).click().perform()
    window.until(lambda: window.all("#patch-title") and window.text("#patch-title") != patched)
    window.until_idle()

    window.type("text", "I saw the big cat")
    window.until(lambda: "as many tokens" in window.text("#problem"))
    window.find("#close-trace").click()
    window.until(lambda: not window.all("#problem, #trace"))
    window.until(lambda: "trace=" not in window.driver.current_url)
    window.type("other", "")
    window.until(lambda: not window.all("#trace-texts"))


def test_a_pair_is_one_input_with_a_border(window: Window, words: FakeClient) -> None:
    window.type("text", "the cat")
    window.type("other", "a big dog")
    window.until(lambda: window.all("#two-texts"))
    assert len(window.all("[name=together]:checked")) == 1
    window.until(lambda: len(window.all("[role=gridcell]")) == 12)

    window.find("[value=pair]").click()
    window.until(lambda: len(window.all("[role=gridcell]")) == 6)
    window.until_idle()
    assert "8 tokens" in window.text("figcaption")
    assert window.text("figcaption").endswith("the cat | a big dog")
    assert not window.all("#similarity")
    window.all("[role=gridcell]")[0].click()
    window.until(lambda: window.all("#detail .strip .second"))
    assert window.text("#detail .strip .second") == "a"
    window.find("#code summary").click()
    window.until(lambda: 'text_pair="a big dog"' in window.text("#python"))
    window.until(lambda: all(each in window.driver.current_url for each in ("together=pair", "open=0.0")))
    address = window.driver.current_url

    window.driver.get("about:blank")
    window.driver.get(address)
    window.until(lambda: window.all("#detail .strip .second"))
    assert window.text("figcaption").endswith("the cat | a big dog")
    window.find("[value=apart]").click()
    window.until(lambda: len(window.all("[role=gridcell]")) == 12)
    assert not window.all("#detail .strip .second")


def test_a_reranker_scores_the_pair(driver: webdriver.Chrome, words: FakeClient) -> None:
    words.ranks = True
    window = Window(driver)
    with serving_page(words) as address:
        driver.get(f"{address}#text=the+cat&other=a+dog&silenced=0.0")
        window.until_idle()
        window.until(lambda: window.all("#change .strip button"))
        assert window.find("[value=pair]").is_selected(), "which is what it reads"
        assert [window.text(f"#{name}-label") for name in ("text", "other")] == ["Query", "Passage"]
        assert window.text("figcaption").startswith("score 0.6418, the sigmoid of 0.583; 7 tokens")
        assert "Score with all heads and without these: 0.6682 and 0.6418" in window.text("#change .reading")

        window.find("[value=apart]").click()
        window.until(lambda: window.all("#similarity"))
        window.until_idle()
        assert window.text("#cosine").startswith("words does not pool by the mean")
        assert not window.all("#problem")
        assert window.messages() == []
        driver.get("about:blank")


def test_two_families_are_side_by_side(window: Window, words: FakeClient) -> None:
    words.graphs["others"] = ["attention"]
    window.until(lambda: window.run("return document.querySelector('#against').options.length") == 2)
    window.find("#against").send_keys("others")

    window.until(lambda: len(window.all("[role=gridcell]")) == 12)
    window.until_idle()
    captions = [caption.text for caption in window.all("figcaption")]
    assert [caption.partition(":")[0] for caption in captions] == ["words", "others"]
    window.all("[role=gridcell]")[7].click()
    window.until(lambda: len(window.all("#detail .panel")) == 2)
    window.until_idle()
    assert [call["model"] for call in words.calls[-2:]] == ["words", "others"]
    assert [one.text.partition(":")[0] for one in window.all("#detail .caption")] == ["words", "others"]
    assert window.text("#scores").splitlines()[:2] == ["scores of", "words"], (
        "the others have no insight graph"
    )
    window.type("other", "A dog ran")
    window.until(
        lambda: len(window.all("[role=gridcell]")) == 24 and len(window.all("#similarity .panel")) == 2
    )
    window.until_idle()
    assert window.text("#cosine").startswith("Cosine of the two sentences: words 0.")
    listed = window.text("#scores").splitlines()
    assert listed[1] == "words | words, second sentence"
    assert listed[3].count(" | ") == 1
    window.until(lambda: "against=others" in window.driver.current_url)

    del words.graphs["others"]
    window.until(lambda: window.text("#problem").startswith("others is not served by host:1"))
    window.until(lambda: len(window.all("[role=gridcell]")) == 12)
    words.graphs["others"] = ["attention"]
    window.until(lambda: not window.all("#problem"))
    window.until(lambda: len(window.all("[role=gridcell]")) == 24)


def test_a_family_that_is_not_served_is_named_and_no_other_shown(
    driver: webdriver.Chrome, words: FakeClient
) -> None:
    window = Window(driver)
    with serving_page(words) as address:
        driver.get(f"{address}#family=gone&text=the+cat")
        window.until(lambda: window.text("#problem").startswith("gone is not served by host:1."))
        assert not window.all("[role=gridcell], #text")
        assert (
            window.run("return document.querySelector('#family').selectedOptions[0].text")
            == "gone (not served)"
        )
        assert not words.calls

        words.graphs["gone"] = ["attention"]
        window.until_idle()
        assert not window.all("#problem")
        assert window.text("figcaption").endswith("the cat")
        del words.graphs["gone"]
        window.until(lambda: window.text("#problem").startswith("gone is not served by host:1."))
        window.find("#family").send_keys("words")
        window.until_idle()
        assert not window.all("#problem")
        driver.get("about:blank")


def test_the_page_waits_for_a_server_and_a_model(driver: webdriver.Chrome, words: FakeClient) -> None:
    words.error = Unavailable("host:1 cannot be reached")
    graphs, words.graphs = words.graphs, {}
    window = Window(driver)
    with serving_page(words) as address:
        driver.get(address)
        window.until(lambda: "cannot be reached" in window.text("#problem"))
        assert "not connected" in window.text("#connection")
        words.error = None
        window.until(lambda: "serves no models" in window.text("#problem"))
        words.graphs = graphs
        window.until_idle()
        assert not window.all("#problem")

        words.error = AccessDenied("host:1 wants a token")
        window.type("text", "while it is away")
        window.until(lambda: window.text("#problem") == "host:1 wants a token")
        assert window.all("[role=gridcell]"), "what was shown stays"
        assert window.all(".busy")
        words.error = None
        window.until(lambda: not window.all("#problem"))
        window.until_idle()
        assert "while it is away" in window.text("figcaption")
    window.until(lambda: "polyhead explore" in window.text("#problem"))
    window.messages()


def test_without_an_insight_graph_the_page_says_what_is_missing(window: Window, words: FakeClient) -> None:
    words.graphs["words"] = ["attention"]
    words.head_mask = False

    window.until(lambda: len(window.all("#missing li")) == 2)
    window.until_idle()

    assert "--graphs insight" in window.text("#missing")
    assert window.find("[role=gridcell]").get_attribute("aria-label") == "layer 0, head 0"
    assert not window.all("#score, #rollout")
    assert not window.all("#legend")


def test_families_of_vectors_are_shown(window: Window, words: FakeClient) -> None:
    words.memory = True
    window.until(lambda: window.run("return document.querySelector('#family').options.length") == 2)
    window.find("#family").send_keys("vectors")

    window.until(lambda: "16 tokens" in window.text("figcaption"))
    window.until_idle()
    assert not window.all("textarea")
    window.type("length", "5")
    window.until(lambda: "5 tokens" in window.text("figcaption"))
    window.all("[role=gridcell]")[0].click()
    window.until(lambda: window.all("#detail canvas"))
    assert window.text("#detail .reading").startswith("token 0 attends to token 0: 0.")
    window.until(lambda: window.all("#cross"))
    window.find("#cross").send_keys("the memory")
    window.until(lambda: "cross_attention" in words.calls[-1])
    window.until_idle()


def test_texts_that_are_too_long_are_truncated_on_request(window: Window, words: FakeClient) -> None:
    words.max_tokens = 5
    window.type("text", "one two three four five")
    window.until(lambda: "7 tokens, 2 more than" in window.text("#problem"))

    window.find("#truncate").click()
    window.until(lambda: not window.all("#problem"))
    window.until_idle()
    assert "5 tokens, 2 ms; 2 of 7 tokens were left out" in window.text("figcaption")

    window.type("text", "")
    window.until(lambda: window.text("#about") == "Type a sentence.")


def test_only_the_last_of_many_questions_counts(window: Window, words: FakeClient) -> None:
    words.held = True
    window.type("text", "the first")
    window.until(lambda: words.waiting)
    words.held = False
    window.type("text", "the last one")

    window.until(lambda: "the last one" in window.text("figcaption"))
    window.until_idle()
    window.until(lambda: words.waiting == 0)
    assert not window.all("#problem")


def test_long_texts_and_many_heads_fit(driver: webdriver.Chrome) -> None:
    many = FakeClient(layers=12, heads=12)
    window = Window(driver)
    with serving_page(many) as address:
        driver.get(address)
        window.type("text", " ".join(f"word{at}" for at in range(510)))
        window.until(lambda: "512 tokens" in window.text("figcaption"))
        window.all("[role=gridcell]")[77].click()
        window.until(lambda: window.all("#detail canvas"))
        window.until_idle()

        canvas = window.find("#detail canvas")
        assert canvas.size["width"] >= 512
        assert window.run("return document.body.scrollWidth <= window.innerWidth")
        ActionChains(driver).move_to_element(canvas).perform()
        assert "attends to word" in window.text("#detail .reading")
        assert len(many.calls[-1]["heads"]) == 1
        assert window.text("#detail .legend").endswith("colours follow the square root")
        before = window.run("return arguments[0].toDataURL()", canvas)
        window.run("arguments[0].focus()", canvas)
        window.press("+", "+", "+", Keys.END)
        assert window.run("return arguments[0].toDataURL()", canvas) != before
        assert window.text("#detail .reading").startswith("[SEP] (511) attends to [SEP] (511)")
        window.press("0", Keys.HOME)
        assert window.text("#detail .reading").startswith("[CLS] (0) attends to [CLS] (0)")
        assert window.messages() == []
        driver.get("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system(window: Window, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        colours = [window.find("body").value_of_css_property(name) for name in ("color", "background-color")]
        text, ground = (sum(int(part) for part in one[5:-4].split(",")[:3]) for one in colours)
        assert (text > ground) is (scheme == "dark")
        assert abs(text - ground) > 500
    finally:
        window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_view_survives_a_reload_and_can_be_sent(window: Window, words: FakeClient) -> None:
    window.type("text", "one & two = three")
    window.find("#score").send_keys("confidence")
    window.find("[value=weighted]").click()
    window.find("#truncate").click()
    window.all("[role=gridcell]")[4].click()
    window.until(lambda: window.all("#detail canvas"))
    window.find("#silence").click()
    window.until(lambda: window.all("#change .strip button"))
    window.until_idle()
    window.run("document.querySelector('#detail canvas').focus()")
    window.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    reading, address = window.text("#detail .reading"), window.driver.current_url
    window.until(lambda: "cell=2.1" in window.driver.current_url)
    address = window.driver.current_url

    window.driver.get("about:blank")
    window.driver.get(address)

    window.until(lambda: window.all("#change .strip button") and window.all("#detail canvas"))
    window.until_idle()
    assert window.find("#text").get_attribute("value") == "one & two = three"
    assert window.text("#detail-title") == "Layer 1, head 1"
    assert window.text("#detail .reading") == reading
    assert window.find("#score").get_attribute("value") == "confidence"
    assert window.find("[value=weighted]").is_selected()
    assert window.find("#truncate").is_selected()
    assert window.text("#silenced") == "Without layer 1 head 1."
    window.run("location.hash = 'text=another&open=rollout'")
    window.until(lambda: window.text("#detail-title") == "Rollout")
    window.until_idle()
    assert "another" in window.text("figcaption")
    assert not window.all("#change")


@pytest.mark.parametrize(
    "address",
    ["open=9.9", "open=x&cell=99.99&silenced=,1,a.b", "against=words&score=none&length=no&trace=99.99"],
)
def test_a_bad_address_does_no_harm(window: Window, address: str) -> None:
    window.run("location.hash = arguments[0]", address)
    window.until_idle()
    window.type("text", "still here")
    window.until(lambda: "still here" in window.text("figcaption"))


@pytest.fixture
def downloads(window: Window, tmp_path: Path) -> Path:
    """Where the browser puts files."""
    window.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    return tmp_path


def downloaded(window: Window, folder: Path, name: str) -> Path:
    path = folder / name
    window.until(path.exists)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_pictures_numbers_and_code_can_be_taken_away(window: Window, downloads: Path) -> None:
    window.type("text", 'a "b,c" <d>')
    window.all("[role=gridcell]")[4].click()
    window.until(lambda: window.all("#detail canvas") and '"b,c"' in window.text("#detail .caption"))
    window.until_idle()
    for ending in ("PNG", "SVG", "CSV", "NPZ"):
        window.find(f"#detail [aria-label='Save as {ending}']").click()
    name = "words Layer 1, head 1"

    encoding = Encoding.load(downloaded(window, downloads, f"{name}.npz"))
    rows = rows_of(downloaded(window, downloads, f"{name}.csv"))
    picture = imread(downloaded(window, downloads, f"{name}.png"))
    svg = ElementTree.parse(downloaded(window, downloads, f"{name}.svg")).getroot()

    assert encoding.tokens == ["[CLS]", "a", '"b,c"', "<d>", "[SEP]"]
    weights = encoding.attention[1][0]
    assert [row["key_token"] for row in rows[:5]] == encoding.tokens
    assert float(rows[7]["weight"]) == pytest.approx(weights[1, 2], abs=1e-4)
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "words, Layer 1, head 1"
    assert texts[1:6] == texts[6:11] == encoding.tokens
    assert picture.shape[1] == 2 * float(svg.attrib["width"])
    window.find("#code summary").click()
    window.until(lambda: "attention=[1]" in window.text("#python"))
    window.find("#save-scores").click()
    scores = rows_of(downloaded(window, downloads, "words scores.csv"))
    assert [(row["layer"], row["head"]) for row in scores][4] == ("1", "1")
    assert "entropy" in scores[0]


def test_a_saved_page_works_without_a_server(window: Window, words: FakeClient, downloads: Path) -> None:
    window.type("text", "a </script><b>c</b>")
    window.all("[role=gridcell]")[4].click()
    window.until(lambda: "</script>" in window.text("#detail .caption"))
    window.until_idle()
    window.find("#save-page").click()
    page = downloaded(window, downloads, "words.html")

    reading = window.text("#detail li")
    window.driver.get(page.as_uri())

    window.until(lambda: window.all("#detail canvas"))
    window.until_idle()
    assert window.text("#detail-title") == "Layer 1, head 1"
    assert window.text("#detail li") == reading
    assert window.text("#connection") == "saved: works without a server"
    assert len(window.all("[role=gridcell]")) == 6
    assert "previous token" in window.text("#score")
    assert not window.all("b, .live")
    window.all("[role=gridcell]")[0].click()
    window.until(lambda: window.text("#detail-title") == "Layer 0, head 0")
    window.find("#rollout").click()
    window.until(lambda: window.text("#detail-title") == "Rollout")
    window.find("#detail [aria-label='Save as SVG']").click()
    downloaded(window, downloads, "words Rollout.svg")
    assert not window.all("#other")
    assert window.run("return performance.getEntriesByType('resource').length") == 0


def test_masked_cells_look_masked(window: Window, words: FakeClient, downloads: Path) -> None:
    words.causal = True
    encoding = asyncio.run(words.encode("the cat sat", model="words", attention=[1]))
    encoding.show(layer=1, head=1).save(downloads / "page.html")

    window.driver.get((downloads / "page.html").as_uri())

    window.until(lambda: window.all("#detail canvas"))
    window.until_idle()
    assert window.all("#small-masked")
    assert window.text("#detail .legend").endswith("hatched: masked")
    assert len(window.all("#detail li")) == 1, "the first token sees itself alone"
    window.find("#detail canvas").send_keys(Keys.ARROW_RIGHT)
    window.until(lambda: window.text("#detail .reading").endswith("the (1): masked"))
    for ending in ("SVG", "CSV"):
        window.find(f"#detail [aria-label='Save as {ending}']").click()
    name = "words Layer 1, head 1"
    svg = downloaded(window, downloads, f"{name}.svg").read_text()
    assert "url(#masked)" in svg
    assert "hatched: masked" in svg
    weights = [row["weight"] for row in rows_of(downloaded(window, downloads, f"{name}.csv"))]
    assert [weight == "" for weight in weights[:5]] == [False, True, True, True, True]


def test_a_saved_pair_stays_a_pair(window: Window, downloads: Path) -> None:
    window.type("text", "the cat")
    window.type("other", "a big dog")
    window.until(lambda: window.all("#two-texts"))
    window.find("[value=pair]").click()
    window.all("[role=gridcell]")[4].click()
    window.until(lambda: window.all("#detail .strip .second"))
    window.until_idle()
    window.find("#detail [aria-label='Save as SVG']").click()
    svg = ElementTree.parse(downloaded(window, downloads, "words Layer 1, head 1.svg")).getroot()
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}line"))) == 2
    window.find("#save-page").click()

    window.driver.get(downloaded(window, downloads, "words.html").as_uri())

    window.until(lambda: window.all("#detail .strip .second"))
    window.until_idle()
    assert [window.find(f"#{name}").get_attribute("value") for name in ("text", "other")] == [
        "the cat",
        "a big dog",
    ]
    assert window.text("figcaption").endswith("the cat | a big dog")
    assert not window.all(".live")


def test_a_notebook_shows_all_heads(window: Window, words: FakeClient, tmp_path: Path) -> None:
    encoding = asyncio.run(words.encode("the cat", model="words", attention=[1], heads=[2, 0]))
    shown = encoding.show(layer=1, head=0)._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{shown}</body>")

    window.driver.get((tmp_path / "notebook.html").as_uri())

    window.driver.switch_to.frame(0)
    window.until(lambda: window.all("#detail canvas"))
    window.until_idle()
    labels = [cell.get_attribute("aria-label") for cell in window.all("[role=gridcell]")]
    assert labels == ["layer 1, head 2", "layer 1, head 0"]
    assert window.text("#detail-title") == "Layer 1, head 0"
    weight = encoding.attention[1][1, 0].max()
    assert window.text("#detail li").endswith(f" {weight:.3f}")
    window.driver.switch_to.default_content()
    for wrong in ({"layer": 0}, {"head": 1}):
        with pytest.raises(ValueError, match=r"among layers \[1\] and heads \[2, 0\]"):
            encoding.show(**wrong)


@pytest.mark.parametrize("width", [600, 1280, 1920])
def test_all_of_many_heads_are_within_the_window(driver: webdriver.Chrome, width: int) -> None:
    window = Window(driver)
    with serving_page(FakeClient(layers=24, heads=16)) as address:
        driver.set_window_size(width, 1000)
        try:
            driver.get(f"{address}#open=23.15")
            window.until(lambda: window.all("#detail canvas"))
            window.until_idle()
            inner = window.run("return innerWidth")
            assert window.run("return document.body.scrollWidth") <= inner
            for cell in (window.all("[role=gridcell]")[at] for at in (0, 15, 368, 383)):
                box = cell.rect
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= inner
                assert box["width"] >= 16
        finally:
            driver.set_window_size(1400, 1000)
        assert window.messages() == []
        driver.get("about:blank")
