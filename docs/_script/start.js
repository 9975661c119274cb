/* ---- start ----------------------------------------------------------------------------------- */

document.querySelectorAll("[data-quiz]").forEach(makeQuiz);
document.querySelectorAll(".course-explorer").forEach((box) => {
  const record = JSON.parse(box.querySelector("script").textContent);
  const steps = box.classList.contains("course-stepper");
  return steps ? new Stepper(box, record) : new Explorer(box, record);
});
document.querySelectorAll("svg.multigpu-picture:has([data-lane])").forEach(makeAnswering);
document.querySelectorAll(".course-open").forEach(offerNotebook);
document.querySelectorAll(".course-messages").forEach(offerToFind);
explainWords(document.querySelectorAll("a.course-word"));
orderSearch();
printInLight();
if (document.querySelector("base")) stayOnPage();
