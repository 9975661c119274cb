/* ---- quiz: a list of <details> becomes a group of radio buttons ------------------------------ */

function makeQuiz(box) {
  const list = box.querySelector(".course-choices");
  const said = box.querySelector(".course-said");
  list.setAttribute("role", "radiogroup");
  list.setAttribute("aria-labelledby", box.dataset.quiz);
  const choices = [...list.children].map((item) => {
    const choice = document.createElement("div");
    choice.className = "course-choice";
    choice.setAttribute("role", "radio");
    choice.setAttribute("aria-checked", "false");
    choice.append(...item.querySelector("summary").childNodes);
    const answer = item.querySelector("details > p");
    item.setAttribute("role", "presentation");
    item.replaceChildren(choice);
    return { choice, answer, right: item.dataset.right };
  });

  function focus(index) {
    const place = (index + choices.length) % choices.length;
    choices.forEach(({ choice }, i) => {
      choice.tabIndex = i === place ? 0 : -1;
    });
    choices[place].choice.focus();
  }

  function choose(index) {
    choices.forEach(({ choice }, i) => {
      choice.setAttribute("aria-checked", String(i === index));
      choice.tabIndex = i === index ? 0 : -1;
    });
    const { choice, answer, right } = choices[index];
    choice.dataset.tried = right;
    said.dataset.right = right;
    said.replaceChildren(answer.cloneNode(true));
  }

  /* Arrow keys move only: an answer shows when you ask for it, with space or Enter. */
  choices.forEach(({ choice }, index) => {
    choice.tabIndex = index === 0 ? 0 : -1;
    choice.addEventListener("click", () => choose(index));
    choice.addEventListener("keydown", (event) => {
      const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
      if (event.key in moves) focus(index + moves[event.key]);
      else if (event.key === " " || event.key === "Enter") choose(index);
      else return;
      event.preventDefault();
    });
  });
}
