/* ---- search: a lesson before its notebook, what is read before what is looked up ----------------- */

function orderSearch() {
  if (typeof Scorer === "undefined") return;
  const later = { troubleshooting: 0.2, exercises: 0.5, _notebooks: 1, reference: 4, 404: 99 };
  const exact = Scorer.objNameMatch + Scorer.objPrio[1];
  Scorer.score = ([page, , , about, score]) => {
    const partOfAnId = about?.startsWith("message of the checker") && score < exact;
    return score - (later[page.split("/")[0]] ?? 0) - (partOfAnId ? exact : 0);
  };
}
