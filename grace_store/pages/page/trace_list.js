// The list of traces: an index of all of them, searched, sorted, filtered and shown a page at a time.

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

/** Return a number, or what sorts behind all numbers where there is none. */
function orLast(value, direction) {
  return value === null ? direction * Infinity : value;
}

const list = { found: [], page: 0, current: -1, search: null };

function traceDetail(i) {
  const size = readDocument("page").traces.block;
  return readDocument(`traces-${Math.floor(i / size)}`)[i % size];
}

/** Return every trace's id and text in small letters, made when first searched. */
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
  const { subsets } = readDocument("page").traces;
  const index = readDocument("trace-index");
  const made = [["all", "All", () => true]];
  subsets.forEach((name, bit) => {
    made.push([`in-${bit}`, `In ${name}`, (i) => (index.chosen[i] >> bit) & 1]);
    made.push([`out-${bit}`, `Not in ${name}`, (i) => !((index.chosen[i] >> bit) & 1)]);
  });
  made.push(["flagged", "Flagged", (i) => index.flags[i].length > 0]);
  for (const name of Object.keys(readDocument("page").traces.flags)) {
    if (index.flags.some((names) => names.includes(name))) made.push([`flag-${name}`, `Flagged ${name}`, (i) => index.flags[i].includes(name)]);
  }
  made.push(["duplicates", "Duplicates", (i) => index.group[i] !== null]);
  return made;
}

/** Find again what search, filter and sort ask for, and show its first page. */
function findTraces() {
  const index = readDocument("trace-index");
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const accepts = filters().find(([key]) => key === byId("filter").value)[2];
  const key = SORTS.find(([name]) => name === byId("sort").value)[2](index);
  let found = index.id.map((_, i) => i).filter(accepts);
  if (words.length) {
    const texts = searchTexts();
    found = found.filter((i) => words.every((word) => texts[i].includes(word)));
  }
  const keys = found.map((i) => [key(i), i]);
  keys.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : index.row[a[1]] - index.row[b[1]]));
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
  if (!shown.length) place.append(element("li", { class: "empty" }, "No trace is like that."));
  place.scrollTop = 0;
  byId("count").textContent = `${grouped(list.found.length)} of ${grouped(readDocument("page").traces.num)} traces`;
  byId("page-words").textContent = `Page ${list.page + 1} of ${pages}`;
  byId("previous-page").disabled = list.page === 0;
  byId("next-page").disabled = list.page >= pages - 1;
}

function traceLink(i) {
  const index = readDocument("trace-index");
  const { scale, subsets } = readDocument("page").traces;
  const cells = index.score[i].map((score) => element("i", { style: { background: shade(score, scale, 0.9) } }));
  const badges = [];
  subsets.forEach((name, bit) => {
    if ((index.chosen[i] >> bit) & 1) badges.push(element("span", { class: "badge chosen", title: `In ${name}` }, subsets.length > 1 ? name : "chosen"));
  });
  if (index.flags[i].length) badges.push(element("span", { class: "badge flag", title: index.flags[i].join(", ") }, "flagged"));
  if (index.group[i] !== null) badges.push(element("span", { class: "badge" }, "duplicate"));
  return element(
    "a",
    { href: sampleLink(i), "data-trace": i, "aria-current": i === list.current ? "true" : null },
    element("div", { class: "line" }, element("span", { class: "id" }, index.id[i]), badges, element("span", { class: "value" }, signed(index.value[i]))),
    element("div", { class: "text-line" }, index.text[i] || `row ${index.row[i]}`),
    element("div", { class: "strip", "aria-hidden": "true" }, cells),
    element("div", { class: "quiet number" }, `K ${index.steps[i]} · ${grouped(index.tokens[i])} tokens · row ${grouped(index.row[i])}`),
  );
}

const sampleLink = (i) => `#sample=${encodeURIComponent(readDocument("trace-index").id[i])}`;

/** Show which trace is being read, turning to its page if it is on another. */
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

/** Go so many traces on in the list; onto the next page where this one ends. */
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
  const { shown, notes } = readDocument("page").traces;
  byId("shown-words").textContent = shown;
  byId("trace-notes").append(...notes.map((text) => element("p", { class: "note" }, text)));
  byId("sort").append(...SORTS.map(([key, words]) => element("option", { value: key }, words)));
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
