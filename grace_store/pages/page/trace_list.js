// The list of traces, which the reader searches, sorts and filters, one page at a time.

const PER_PAGE = 50;
const SORTS = [
  ["value-down", "Value, largest first", (index) => (i) => -orLast(index.value[i], -1)],
  ["value-up", "Value, smallest first", (index) => (i) => orLast(index.value[i], 1)],
  ["length-down", "Longest response", (index) => (i) => -index.tokens[i]],
  ["length-up", "Shortest response", (index) => (i) => index.tokens[i]],
  ["steps-down", "Most steps", (index) => (i) => -index.steps[i]],
  ["steps-up", "Fewest steps", (index) => (i) => index.steps[i]],
  ["position", "Position in the data", (index) => (i) => index.row[i]],
];

const NO_VALUE = "(none)";

/** Return a value of a field as text. */
function fieldText(value) {
  return value === null ? NO_VALUE : String(value);
}

/** Return the shown fields of traces, each with its number, name, kind and values. */
function traceFields() {
  const index = readDocument("trace-index");
  return readDocument("trace-browser").fields.map((field, number) => ({ ...field, number, values: index.fields[number] }));
}

/** Return ways to sort for each field: numbers before texts, and traces without a value last. */
function fieldSorts() {
  return traceFields().flatMap(({ name, number, kind, values }) => {
    const texts = [...new Set(values.filter((value) => typeof value === "string"))].sort();
    const places = new Map(texts.map((text, place) => [text, place]));
    const key = (value, sign) => (value === null ? [2, 0] : typeof value === "string" ? [1, places.get(value)] : [0, sign * Number(value)]);
    const rising = [`field-${number}`, `By ${name}`, () => (i) => key(values[i], 1)];
    return kind === "number" ? [[`field-${number}-down`, `By ${name}, largest first`, () => (i) => key(values[i], -1)], rising] : [rising];
  });
}

/** Return two ways to sort for each measure that SORTS lack: the best traces first, and the worst first. */
function measureSorts() {
  const { measures } = readDocument("trace-browser");
  const index = readDocument("trace-index");
  return Object.entries(index.measures).filter(([name]) => !index[name]).flatMap(([name, values]) => {
    const ends = measures[name].better === "highest" ? ["highest", "lowest"] : ["lowest", "highest"];
    return ends.map((end, place) => {
      const sign = end === "highest" ? -1 : 1;
      return [`${["best", "worst"][place]}-${name}`, `By ${name}, ${["best", "worst"][place]} (${end}) first`, () => (i) => orLast(values[i] === null ? null : sign * values[i], 1)];
    });
  });
}

const allSorts = () => [...SORTS, ...fieldSorts(), ...measureSorts()];

/** Compare two keys for sorting. A key is a number or a pair of numbers. */
function compareKeys(a, b) {
  const [first, second] = [a, b].map((key) => (Array.isArray(key) ? key : [0, key]));
  return first[0] - second[0] || (first[1] < second[1] ? -1 : first[1] > second[1] ? 1 : 0);
}

/** Return a number, or infinity for a missing number, which is sorted last. */
function orLast(value, direction) {
  return value === null ? direction * Infinity : value;
}

const list = { found: [], page: 0, current: -1, search: null };

function traceDetail(i) {
  const size = readDocument("trace-browser").block;
  return readDocument(`traces-${Math.floor(i / size)}`)[i % size];
}

/** Return every trace's id and text in lower case, built at the first search. */
function searchTexts() {
  if (list.search === null) {
    const index = readDocument("trace-index");
    list.search = index.id.map((id, i) => {
      const trace = traceDetail(i);
      const turns = (trace.turns || []).flatMap((turn) => turn.parts.map((part) => (typeof part === "string" ? part : part.name)));
      return [id, ...turns, ...(trace.segments || [])].join("\n").toLowerCase();
    });
  }
  return list.search;
}

function filters() {
  const { subsets } = readDocument("trace-browser");
  const index = readDocument("trace-index");
  const made = [["all", "All", () => true]];
  subsets.forEach((name, bit) => {
    made.push([`in-${bit}`, `In ${name}`, (i) => (index.chosen[i] >> bit) & 1]);
    made.push([`out-${bit}`, `Not in ${name}`, (i) => !((index.chosen[i] >> bit) & 1)]);
  });
  made.push(["flagged", "Flagged", (i) => index.flags[i].length > 0]);
  for (const name of Object.keys(readDocument("trace-browser").flags)) {
    if (index.flags.some((names) => names.includes(name))) made.push([`flag-${name}`, `Flagged ${name}`, (i) => index.flags[i].includes(name)]);
  }
  made.push(["duplicates", "Duplicates", (i) => index.group[i] !== null]);
  return made;
}

/** Return the filter control of one field. A change of the control starts a new search. */
function fieldFilter({ name, number, kind, values }) {
  const known = { id: `field-${number}`, "aria-label": name };
  let controls;
  if (kind === "number") {
    controls = ["from", "to"].map((end) => element("input", { ...known, id: `field-${number}-${end}`, type: "number", step: "any", placeholder: end, "aria-label": `${name}, ${end}` }));
  } else if (kind === "text") controls = [element("input", { ...known, type: "text", placeholder: "contains", autocomplete: "off", spellcheck: "false" })];
  else {
    const counts = new Map();
    for (const value of values) counts.set(fieldText(value), (counts.get(fieldText(value)) || 0) + 1);
    const options = [...counts].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map(([text, count]) => element("option", { value: `=${text}` }, `${text} (${grouped(count)})`));
    controls = [element("select", known, element("option", { value: "" }, "any"), options)];
  }
  for (const each of controls) each.addEventListener(kind === "choice" ? "change" : "input", findTraces);
  return element("label", { title: name }, element("span", { class: "field" }, name), controls);
}

/** Return a function that tests whether a trace passes the filters of all fields. */
function fieldsAccept() {
  const tests = traceFields().map(({ number, kind, values }) => {
    if (kind === "number") {
      const [from, to] = ["from", "to"].map((end) => byId(`field-${number}-${end}`).value);
      if (from === "" && to === "") return null;
      return (i) => values[i] !== null && (from === "" || values[i] >= Number(from)) && (to === "" || values[i] <= Number(to));
    }
    const wanted = byId(`field-${number}`).value;
    if (wanted === "") return null;
    if (kind === "text") return (i) => values[i] !== null && String(values[i]).toLowerCase().includes(wanted.toLowerCase());
    return (i) => `=${fieldText(values[i])}` === wanted;
  }).filter((test) => test !== null);
  return (i) => tests.every((test) => test(i));
}

/** Find the traces for the current search, filter and order, and show the first page. */
function findTraces() {
  const index = readDocument("trace-index");
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const accepts = filters().find(([key]) => key === byId("filter").value)[2];
  const key = allSorts().find(([name]) => name === byId("sort").value)[2](index);
  let found = index.id.map((_, i) => i).filter(accepts).filter(fieldsAccept());
  if (words.length) {
    const texts = searchTexts();
    found = found.filter((i) => words.every((word) => texts[i].includes(word)));
  }
  const keys = found.map((i) => [key(i), i]);
  keys.sort((a, b) => compareKeys(a[0], b[0]) || index.row[a[1]] - index.row[b[1]]);
  list.found = keys.map(([, i]) => i);
  list.page = 0;
  showPage();
}

function showPage() {
  const pages = Math.max(1, Math.ceil(list.found.length / PER_PAGE));
  list.page = Math.min(Math.max(0, list.page), pages - 1);
  const shown = list.found.slice(list.page * PER_PAGE, (list.page + 1) * PER_PAGE);
  const place = byId("trace-list");
  place.replaceChildren(...shown.map((i) => element("li", {}, traceLink(i))));
  if (!shown.length) place.append(element("li", { class: "empty" }, "No trace matches."));
  place.scrollTop = 0;
  byId("count").textContent = `${grouped(list.found.length)} of ${grouped(readDocument("trace-browser").num)} traces`;
  byId("page-words").textContent = `Page ${list.page + 1} of ${pages}`;
  byId("previous-page").disabled = list.page === 0;
  byId("next-page").disabled = list.page >= pages - 1;
}

function traceLink(i) {
  const index = readDocument("trace-index");
  const { scale, subsets } = readDocument("trace-browser");
  const cells = index.score[i].map((score) => element("i", { style: { background: shade(score, scale, 0.9) } }));
  const badges = [];
  const sorted = byId("sort").value.match(/^(?:best|worst)-(.*)/)?.[1]; // a measure, whose values then replace the table's
  const value = sorted ? fieldText(index.measures[sorted][i]) : signed(index.value[i]);
  subsets.forEach((name, bit) => {
    if ((index.chosen[i] >> bit) & 1) badges.push(element("span", { class: "badge chosen", title: `In ${name}` }, subsets.length > 1 ? name : "chosen"));
  });
  if (index.flags[i].length) badges.push(element("span", { class: "badge flag", title: index.flags[i].join(", ") }, "flagged"));
  if (index.group[i] !== null) badges.push(element("span", { class: "badge" }, "duplicate"));
  return element(
    "a",
    { href: sampleLink(i), "data-trace": i, "aria-current": i === list.current ? "true" : null },
    element("div", { class: "line" }, element("span", { class: "id" }, index.id[i]), badges, element("span", { class: "value", title: sorted }, value)),
    fieldCells(i),
    element("div", { class: "text-line" }, index.text[i] || `row ${index.row[i]}`),
    element("div", { class: "strip", "aria-hidden": "true" }, cells),
    element("div", { class: "quiet number" }, `K ${index.steps[i]} · ${grouped(index.tokens[i])} tokens · row ${grouped(index.row[i])}`),
  );
}

/** Return a trace's fields in columns. The names are above the list. */
function fieldCells(i) {
  const fields = traceFields();
  if (!fields.length) return null;
  return element("div", { class: "cells" }, fields.map(({ name, values }) => {
    const text = fieldText(values[i]);
    return element("span", { title: `${name}: ${text}`, class: values[i] === null ? "quiet" : null }, element("span", { class: "unseen" }, `${name}: `), text);
  }));
}

const sampleLink = (i) => `#sample=${encodeURIComponent(readDocument("trace-index").id[i])}`;

/** Mark the current trace in the list, and show the page of the list that has it. */
function markCurrent(i) {
  list.current = i;
  const at = list.found.indexOf(i);
  if (at >= 0 && Math.floor(at / PER_PAGE) !== list.page) {
    list.page = Math.floor(at / PER_PAGE);
    showPage();
  }
  for (const link of byId("trace-list").querySelectorAll("a")) {
    const is = Number(link.dataset.trace) === i;
    if (is) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    if (is) link.scrollIntoView({ block: "nearest" });
  }
}

/** Move by a number of traces in the list, also to the next or previous page. */
function moveInList(by) {
  const at = list.found.indexOf(list.current);
  const next = at < 0 ? list.page * PER_PAGE : at + by;
  if (next >= 0 && next < list.found.length) openTrace(list.found[next]);
}

function turnPage(by) {
  list.page += by;
  showPage();
  byId("trace-list").querySelector("a")?.focus();
}

function startList() {
  const { shown, notes } = readDocument("trace-browser");
  byId("shown-words").textContent = shown;
  byId("trace-notes").append(...notes.map((text) => element("p", { class: "note" }, text)));
  byId("field-filters").append(...traceFields().map(fieldFilter));
  byId("field-names").append(...traceFields().map(({ name }) => element("span", { title: name }, name)));
  byId("field-names").hidden = !traceFields().length;
  byId("sort").append(...allSorts().map(([key, words]) => element("option", { value: key }, words)));
  byId("filter").append(...filters().map(([key, words]) => element("option", { value: key }, words)));
  let waiting = 0;
  byId("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(findTraces, 120);
  });
  byId("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(waiting);
    findTraces();
    byId("trace-list").querySelector("a")?.focus();
  });
  for (const name of ["sort", "filter"]) byId(name).addEventListener("change", findTraces);
  byId("previous-page").addEventListener("click", () => turnPage(-1));
  byId("next-page").addEventListener("click", () => turnPage(1));
}
