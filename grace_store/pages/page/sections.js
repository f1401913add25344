// The report's parts: text, facts, tables and figures from the page's document.

const BLOCKS = {
  text: (block) => element("p", { class: "prose" }, prose(block.text)),
  conclusion: (block) => element("p", { class: "conclusion" }, prose(block.text)),
  note: (block) => element("p", { class: "note", role: "note" }, prose(block.text)),
  verdict: verdictBlock,
  counts: countsBlock,
  stats: statsBlock,
  facts: factsBlock,
  table: tableBlock,
  figure: figureBlock,
  matrix: matrixBlock,
};

/** Return a sentence with the text between backticks as code. */
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

const LEVELS = ["bad", "unclear", "good"]; // other sentences of a verdict are no news

/** Return the sentences of the verdict. A word says the level, so that colour is not needed. */
function verdictBlock(block) {
  const items = block.rows.map(([level, sentence]) => {
    const badge = LEVELS.includes(level) ? element("span", { class: `badge ${level}` }, level) : null;
    return element("li", {}, badge, element("span", { dir: "auto" }, prose(sentence)));
  });
  return element("ol", { class: "card verdict", "aria-label": "Verdict" }, items);
}

function statsBlock(block) {
  const rows = block.rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  return element("div", { class: "card stats" }, element("dl", {}, rows));
}

function countsBlock(block) {
  const total = block.parts.reduce((sum, [, count]) => sum + count, 0) || 1;
  const bar = block.parts.map(([name, count], i) =>
    count ? element("span", { class: `swatch-${i}`, style: { flex: String(count / total) }, title: `${name}: ${grouped(count)}` }) : null,
  );
  const list = block.parts.map(([name, count], i) =>
    element("div", {}, element("dt", { class: `swatch-${i}` }, name), element("dd", {}, grouped(count))),
  );
  return element(
    "div",
    { class: "card counts" },
    element("h2", { class: "total" }, block.total),
    element("div", { class: "parts", "aria-hidden": "true" }, bar),
    element("dl", {}, list),
  );
}

function factsBlock(block) {
  const rows = block.rows.flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", { dir: "auto" }, typeof value === "number" ? grouped(value) : value),
  ]);
  return element("div", { class: "card small" }, element("h2", {}, block.title), element("dl", { class: "facts" }, rows));
}

/** Return a cell's text. If one number of a column has decimals, all have. */
function cellText(value, hasDecimals) {
  if (value === null) return "–";
  if (typeof value !== "number") return value;
  return hasDecimals ? value.toFixed(3).replace("-", "−") : grouped(value);
}

/** Return the class of a cell: numbers are aligned right, intervals do not wrap, sentences are wide. */
function cellClass(text, isNumeric) {
  if (isNumeric) return "right";
  if (/^[−\d.]+ (to|\()/.test(text)) return "together";
  return text.length > 36 ? "long" : null;
}

const TALL = 20; // a table with more rows scrolls inside its card
const MANY = 8; // a table with more columns is small on paper

function tableBlock(block) {
  const numeric = block.columns.map((_, i) => block.rows.some((row) => typeof row[i] === "number"));
  const decimals = block.columns.map((_, i) => block.rows.some((row) => typeof row[i] === "number" && !Number.isInteger(row[i])));
  const largest = block.bar === null ? 1 : Math.max(...block.rows.map((row) => row[block.bar]), 1);
  const head = block.columns.map((name, i) => element("th", { scope: "col", class: cellClass(name, numeric[i]) }, name));
  const rows = block.rows.map((row) => {
    const cells = row.map((value, i) => {
      const text = cellText(value, decimals[i]);
      return element("td", { class: cellClass(text, numeric[i]), dir: "auto" }, text);
    });
    if (block.bar !== null) {
      const width = `${(100 * row[block.bar]) / largest}%`;
      cells.push(element("td", { class: "bars", "aria-hidden": "true" }, element("span", { class: "bar", style: { width } })));
    }
    return element("tr", {}, cells);
  });
  if (block.bar !== null) head.push(element("td", { "aria-hidden": "true" }));
  const table = element("table", { class: block.columns.length > MANY ? "data many" : "data" }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows));
  return element(
    "div",
    { class: block.columns.length <= 3 ? "card small" : "card" },
    element("h2", {}, block.title),
    element("div", { class: block.rows.length > TALL ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": block.title }, table),
    block.caption ? element("p", { class: "caption" }, prose(block.caption)) : null,
  );
}

function figureBlock(block) {
  const words = block.caption ? `${block.title}. ${block.caption}` : block.title;
  const place = element("div", { class: "plot", role: "img", "aria-label": words, "data-figure": `figure-${block.figure}`, style: { "min-height": `${block.height}px` } });
  plotWatcher.observe(place);
  return figureCard(block, place);
}

/** Return a table of numbers between -1 and 1. Its names stay visible while the reader scrolls. */
function matrixTable(names, at, { full = (i) => names[i], words = (number) => number.toFixed(3) } = {}) {
  const indices = [...names.keys()];
  const cell = (i, j) => {
    const number = at(i, j);
    const title = `${full(i)} and ${full(j)}: ${number === null ? "unknown" : words(number)}`;
    return element("td", { title, style: { "--shade": shade(number, 1, 0.55) } }, shortNumber(number));
  };
  const head = indices.map((i) => element("th", { scope: "col", "aria-label": full(i) }, element("span", {}, names[i])));
  const rows = indices.map((i) =>
    element("tr", {}, element("th", { scope: "row", "aria-label": full(i) }, names[i]), indices.map((j) => cell(i, j))),
  );
  return element("table", { class: "matrix" }, element("thead", {}, element("tr", {}, element("td", {}), head)), element("tbody", {}, rows));
}

/** Return a matrix of numbers. Its table is filled when it first comes on the screen. */
function matrixBlock(block) {
  const place = element("div", { class: "plot scroll", tabindex: "0", role: "region", "aria-label": block.title, "data-figure": `figure-${block.figure}` });
  place.style.minHeight = `${28 * block.labels.length + 60}px`;
  place.drawTable = () => {
    const [cells] = readDocument(place.dataset.figure).data;
    place.append(matrixTable(block.labels, (i, j) => cells.z[i][j]));
    place.style.minHeight = "";
  };
  plotWatcher.observe(place);
  return figureCard(block, place);
}

function figureCard(block, place) {
  return element(
    "figure",
    { class: block.wide ? "card" : "card half" },
    element("h2", {}, block.title),
    place,
    block.caption ? element("figcaption", { class: "caption" }, prose(block.caption)) : null,
  );
}

function sectionView(section) {
  const title = element("h1", { id: `title-${section.key}` }, section.title);
  const lead = section.lead ? element("p", {}, section.lead) : null;
  const blocks = section.blocks.map((block) => BLOCKS[block.kind](block));
  return element(
    "section",
    { class: "view", id: `view-${section.key}`, "aria-labelledby": `title-${section.key}`, hidden: true },
    element("header", {}, title, lead),
    element("div", { class: "blocks" }, blocks),
  );
}
