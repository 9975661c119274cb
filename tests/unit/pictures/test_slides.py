"""A stepper without script: radio buttons, one rule per step, ids of its own."""

import re

from bs4 import BeautifulSoup

from multigpu.pictures import Slide, Slides, memory

PICTURE = memory([("cuda:0", 5, None)])
SLIDES = Slides("Two <steps>", [Slide("one", PICTURE, "a < b"), Slide("two", PICTURE)])


def test_each_step_has_a_button_and_a_rule_that_shows_it():
    page = BeautifulSoup(SLIDES.html(), "html.parser")
    (group,) = page.select("fieldset")
    buttons = group.select("input[type=radio]")
    assert [label.text for label in group.select("label")] == ["one", "two"]
    assert [label["for"] for label in group.select("label")] == [b["id"] for b in buttons]
    assert len({button["name"] for button in buttons}) == 1
    assert [button.has_attr("checked") for button in buttons] == [True, False]
    # JupyterLab looks for it on the element that has the focus.
    assert all(button["data-lm-suppress-shortcuts"] == "true" for button in buttons)
    style = page.select_one("style").text
    assert re.findall(r"nth-of-type\((\d)\):checked", style) == ["1", "2"]
    assert f"#{group['id']} " in style
    assert "#ID" not in style


def test_words_are_no_markup():
    html = SLIDES.html()
    assert "Two &lt;steps&gt;" in html
    assert "a &lt; b" in html


def test_two_on_one_page_do_not_disturb_each_other():
    ids = [set(re.findall(r'id="(steps-[\w-]+)"', SLIDES.html())) for _ in range(2)]
    assert not ids[0] & ids[1]


def test_in_letters_all_steps_stand_below_each_other():
    assert re.findall(r"^(one|two)$", SLIDES.text(), re.MULTILINE) == ["one", "two"]
