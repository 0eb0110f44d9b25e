// Guides come first in the results of a search, code and lists of changes last. If the
// title of a guide contains all words of the query (or words that start with them), the
// guide comes before all others.
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\W+/).filter((word) => word);
    const has = (word) => new RegExp("\\b" + word, "i").test(title);
    if (page.startsWith("guides/") && !anchor && words.length && words.every(has))
      return score + 100;
    if (page.startsWith("guides/")) return score + 20;
    if (page.startsWith("gallery/")) return score + 5;
    return page.startsWith("releases") ? score - 5 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
