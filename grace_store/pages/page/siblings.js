// The traces of one question: a table of them, and their texts side by side.

const MAX_COLUMNS = 12;
let sideBySide = false;

/** Return the traces on this page with the question of a trace, the largest value first. */
function siblings(i, index) {
  const question = index.question[i];
  const traces = question === null ? [] : [...index.question.keys()].filter((other) => index.question[other] === question);
  return traces.sort((one, other) => (index.value[other] ?? -Infinity) - (index.value[one] ?? -Infinity) || one - other);
}

/** Return a table of the traces of the same question, the best first; nothing if there is only one. */
function siblingsCards(i, index) {
  const traces = siblings(i, index);
  if (traces.length < 2) return [];
  const shown = traces.map((other) => [
    other === i ? element("b", {}, index.id[other]) : element("a", { class: "id", href: sampleLink(other) }, index.id[other]),
    signed(index.value[other], 4),
    index.steps[other],
    grouped(index.tokens[other]),
    index.chosen[other] ? "yes" : "no",
    index.flags[other].join(", "),
  ]);
  const head = ["trace", "value", "steps", "tokens", "chosen", "flags"].map((name) => element("th", { scope: "col" }, name));
  const rows = shown.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell))));
  const table = element("table", { class: "data" }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows));
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Traces of this question" }, table);
  const caption = element("p", { class: "caption" }, "Traces on this page, the largest value first.");
  return [element("div", { class: "card", id: "siblings" }, element("h2", {}, `${grouped(traces.length)} traces of this question`), scroll, caption)];
}

/** Return the control that shows the traces of a question side by side; null if the page has only one. */
function sideButton(i) {
  const count = siblings(i, readDocument("trace-index")).length;
  if (count < 2) return null;
  const button = element("button", { type: "button", id: "side-by-side", "aria-pressed": String(sideBySide) }, sideBySide ? "Only this trace" : `Side by side (${grouped(count)})`);
  button.addEventListener("click", () => {
    sideBySide = !sideBySide;
    showTrace(i);
    byId("side-by-side").focus();
  });
  return button;
}

/** Return the texts of the traces of a question in columns: first the trace itself, then the others by value. */
function columnsCard(i, index) {
  const all = siblings(i, index);
  const shown = [i, ...all.filter((other) => other !== i)].slice(0, MAX_COLUMNS);
  const columns = shown.map((other) => {
    const name = other === i ? element("b", {}, index.id[other]) : element("a", { href: sampleLink(other) }, index.id[other]);
    const head = element("header", { class: "trace-head" }, element("h3", { class: "id" }, name), element("div", { class: "name" }, traceBadges(other, index)), traceNumbers(other, index));
    return element("section", { class: "column", "aria-label": `Trace ${index.id[other]}` }, head, stepList(other, index, traceDetail(other), isByToken(traceDetail(i))));
  });
  const some = shown.length < all.length ? ` ${shown.length} of ${grouped(all.length)} traces are shown: this trace and those with the largest values.` : "";
  return element(
    "div",
    { class: "card", id: "columns" },
    legend(i, traceDetail(i)),
    element("div", { class: "columns scroll", tabindex: "0", role: "region", "aria-label": "Traces of this question side by side" }, columns),
    element("p", { class: "caption" }, `This trace first, then the others on this page, the largest value first.${some}`),
  );
}
