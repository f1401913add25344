// One trace: its text with colours for steps or tokens, its pictures, its cosines as a heat map, and its neighbours.

/** Numbers of tokens: the words for each, the number that has the strongest colour, and the number without colour. */
const TOKENS_BY = {
  "token-surprisal": { words: "surprisal of tokens (nats)", most: 8, least: 0 },
  "token-entropy": { words: "entropy of tokens (nats)", most: 4, least: 0 },
  "token-rank": { words: "rank of tokens", most: 100, least: 1 },
};
/** Name of the measure that steps are coloured by, or of the numbers of tokens; score is that of the table. */
let colourBy = "score";

function showTrace(i) {
  const index = readDocument("trace-index");
  const trace = traceDetail(i);
  const place = byId("trace");
  place.replaceChildren(
    backButton(),
    traceHead(i, index),
    promptCard(trace),
    sideBySide && siblings(i, index).length > 1 ? columnsCard(i, index) : stepsCard(i, index, trace),
    ...siblingsCards(i, index),
    element("div", { class: "two" }, gramCard(trace), nearCard(trace, index)),
  );
  place.setAttribute("aria-label", `Trace ${index.id[i]}`);
}

function backButton() {
  const button = element("button", { type: "button", id: "back" }, "← All traces");
  button.addEventListener("click", leaveTrace);
  return button;
}

/** Return the subsets, flags and duplicates of a trace as badges. */
function traceBadges(i, index) {
  const { subsets } = readDocument("trace-browser");
  const badges = subsets
    .filter((_, bit) => (index.chosen[i] >> bit) & 1)
    .map((name) => element("span", { class: "badge chosen" }, `in ${name}`));
  if (!badges.length) badges.push(element("span", { class: "badge" }, "not chosen"));
  const { flags } = readDocument("trace-browser");
  badges.push(...index.flags[i].map((flag) => element("span", { class: "badge flag", title: flags[flag] }, flag)));
  if (index.group[i] !== null) badges.push(element("span", { class: "badge" }, `duplicates, group ${index.group[i]}`));
  return badges;
}

/** Return the value, the size and the fields of a trace. */
function traceNumbers(i, index) {
  const { [colourBy]: values } = index.measures;
  const numbers = [
    ["value", signed(index.value[i], 4)],
    ...(values && !index[colourBy] ? [[colourBy, fieldText(values[i])]] : []),
    ["steps", index.steps[i]],
    ["tokens", grouped(index.tokens[i])],
    ["row", grouped(index.row[i])],
    ...traceFields().map(({ name, values }) => [name, fieldText(values[i])]),
  ];
  return element("dl", { class: "numbers" }, numbers.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function traceHead(i, index) {
  const name = element("h2", { id: "trace-name" }, index.id[i]);
  return element("header", { class: "trace-head" }, element("div", { class: "name" }, name, traceBadges(i, index)), traceNumbers(i, index));
}

function promptCard(trace) {
  if (!trace.turns) return element("div", { class: "card quiet" }, "The text of this trace is not available. The numbers come from the store.");
  const turns = trace.turns.map((turn) =>
    element("div", { class: "turn", dir: "auto" }, element("span", { class: "role" }, turn.role), turn.parts.map(partView)),
  );
  return element("div", { class: "card" }, turns);
}

function partView(part) {
  if (typeof part === "string") return part;
  if (part.problem) return element("p", { class: "note" }, `${part.name}: ${part.problem}`);
  const source = readDocument(`pictures-${part.block}`)[part.key];
  // Show only pictures that the report itself encoded.
  if (!/^data:image\/(png|webp);base64,[A-Za-z0-9+/=]+$/.test(source)) return element("p", { class: "note" }, part.name);
  return element("img", { class: "picture", src: source, alt: `Image ${part.name}` });
}

/** Return what a trace's steps are coloured by: the chosen measure, or else the step score, or else its first measure. */
function colouredBy(trace) {
  if (trace.measures?.[colourBy]) return colourBy;
  return readDocument("trace-browser").scored ? "score" : (Object.keys(trace.measures ?? {})[0] ?? "score");
}

/** Return what the page says of the measure of the colours. Step scores of the table are better if they are higher. */
function colours(trace) {
  const { scale, measures } = readDocument("trace-browser");
  return measures[colouredBy(trace)] ?? { scale, better: "highest", from_zero: false };
}

/** Return whether higher or lower numbers are better, in words. */
const betterWords = ({ better }) => (better === "highest" ? "higher is better" : "lower is better");

/** Return the background for a number: blue for good numbers, orange for bad ones. */
const shadeBy = (value, { scale, better }) => shade(better === "highest" || value === null ? value : -value, scale);

function stepsCard(i, index, trace) {
  return element("div", { class: "card" }, legend(i, trace), stepList(i, index, trace, isByToken(trace)));
}

/** Return whether the tokens of a trace are coloured, instead of its steps. */
const isByToken = (trace) => colourBy in TOKENS_BY && tokenPieces(trace) !== null;

function stepList(i, index, trace, byToken) {
  const values = trace.measures?.[colouredBy(trace)] ?? index.score[i];
  const num = index.steps[i];
  const items = [];
  const pieces = byToken ? tokenPieces(trace) : null;
  const shown = byToken ? { ...colours(trace), scale: Infinity } : colours(trace); // beside tokens, steps have no colours
  for (let k = 0; k <= num; k++) items.push(stepItem(k, num, trace, values, shown, pieces));
  return element("ol", { class: "steps", "aria-label": "Steps and answer" }, items);
}

/** Return the name of the numbers of tokens in the page's data. */
const tokenNumber = () => colourBy.replace("token-", "");

/** Return for each segment its tokens, each with its text and its number; null if the page lacks them. */
function tokenPieces(trace) {
  if (!trace.token || !trace.segments) return null;
  const letters = trace.segments.map((text) => [...text]); // characters, not UTF-16 units
  const { characters } = trace.token;
  // A segment that the page shortened has no tokens.
  if (letters.flat().length !== characters.reduce((sum, count) => sum + count, 0)) return null;
  let token = 0;
  let left = characters[0];
  return letters.map((segment) => {
    const pieces = [];
    for (let start = 0; start < segment.length; ) {
      while (left === 0) left = characters[++token];
      const stop = Math.min(segment.length, start + left);
      pieces.push({ text: segment.slice(start, stop).join(""), value: trace.token[tokenNumber()][token] });
      left -= stop - start;
      start = stop;
    }
    return pieces;
  });
}

function tokenSpan({ text, value }) {
  const { most, least } = TOKENS_BY[colourBy];
  const share = tokenNumber() === "rank" ? Math.log(value) / Math.log(most) : (value - least) / most;
  return element("span", { class: "token", title: `${tokenNumber()} ${value}`, style: { background: shade(-share, 1) } }, text);
}

function stepItem(k, num, trace, values, colour, pieces) {
  const isAnswer = k === num;
  const value = values[k] ?? null; // an answer has a loss and an entropy, but no step score
  const shown = colour.from_zero && value !== null ? String(value) : signed(value);
  const known = (name) => trace.measures?.[name]?.[k] ?? null;
  const facts = [];
  for (const name of ["answer", "history"]) if (known(`${name}_alignment`) !== null) facts.push(`${name} ${signed(known(`${name}_alignment`))}`);
  if (known("tokens") !== null) facts.push(`${grouped(known("tokens"))} tokens`);
  for (const name of ["loss", "entropy"]) if (known(name) !== null) facts.push(`${name} ${known(name)}`);
  return element(
    "li",
    { class: isAnswer ? "step answer" : "step", style: { "--shade": shadeBy(value, colour) } },
    element("div", { class: "gutter" }, element("b", {}, isAnswer && value === null ? "answer" : shown), element("small", {}, !isAnswer ? `step ${k + 1}` : value === null ? "target" : "answer")),
    element(
      "div",
      { class: "words", dir: "auto" },
      pieces ? pieces[k].map(tokenSpan) : trace.segments ? trace.segments[k].trim() : null,
      element("div", { class: "more", dir: "ltr" }, facts.join(" · ")),
    ),
  );
}

function legend(i, trace) {
  const colour = colours(trace);
  const { scale, from_zero: fromZero } = colour;
  const steps = fromZero ? [0, 0.25, 0.5, 0.75, 1] : [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1];
  const [from, to] = fromZero ? ["0", String(scale)] : [signed(-scale, 2), signed(scale, 2)];
  const [low, high] = colour.better === "highest" ? ["orange", "blue"] : ["blue", "orange"];
  const words = `Colours from ${fromZero ? "none at 0" : `${low} at ${from} over none at 0`} to ${high} at ${to}: ${betterWords(colour)}`;
  const ramp = element(
    "div",
    { class: "ramp", role: "img", "aria-label": words },
    from,
    element("span", {}, steps.map((step) => element("i", { style: { background: shadeBy(step * scale, colour) } }))),
    to,
  );
  const { scored, measures } = readDocument("trace-browser");
  const known = Object.keys(measures).filter((name) => trace.measures?.[name]).map((name) => [name, `${name}, ${betterWords(measures[name])}`, measures[name].about]);
  if (scored) known.unshift(["score", `step score (${scored}), higher is better`]);
  const byToken = trace.token ? Object.entries(TOKENS_BY).map(([key, { words }]) => [key, words]) : [];
  const chosen = isByToken(trace) ? colourBy : colouredBy(trace);
  const select = element("select", { id: "colour-by" }, [...known, ...byToken].map(([key, words, title]) => element("option", { value: key, title, selected: key === chosen }, words)));
  select.addEventListener("change", () => {
    colourBy = select.value;
    showTrace(i);
    byId("colour-by").focus();
  });
  const shown = isByToken(trace) ? tokenRamp() : ramp;
  return element("div", { class: "legend" }, element("h3", {}, "Steps"), shown, sideButton(i), element("label", {}, "Colour by ", select));
}

function tokenRamp() {
  const { most, least } = TOKENS_BY[colourBy];
  const parts = [0, 0.25, 0.5, 0.75, 1].map((share) => element("i", { style: { background: shade(-share, 1) } }));
  const words = `Colours from none at ${least} to orange at ${most} or more`;
  return element("div", { class: "ramp", role: "img", "aria-label": words }, String(least), element("span", {}, parts), `${most}+`);
}

function gramCard(trace) {
  const card = element("div", { class: "card" }, element("h2", {}, "Cosines of the segments"));
  if (!trace.cosines) {
    card.append(element("p", { class: "quiet" }, "The signal has no cosines of this trace."));
    return card;
  }
  const size = trace.cosines.length;
  const full = (k) => (k === size - 1 ? "answer" : `step ${k + 1}`);
  const at = (row, column) => (column <= row ? trace.cosines[row][column] : trace.cosines[column][row]);
  const names = trace.cosines.map((_, k) => (k === size - 1 ? "ans" : String(k + 1)));
  const table = matrixTable(names, at, { full, words: signed });
  table.classList.add("gram");
  card.append(
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Cosines of the segments" }, table),
    element("p", { class: "caption" }, `Signal ${readDocument("trace-browser").signal}. Blue: the same direction. Orange: the opposite direction.`),
  );
  return card;
}

function nearCard(trace, index) {
  const card = element("div", { class: "card" }, element("h2", {}, "Nearest traces"));
  if (!trace.near.length) {
    card.append(element("p", { class: "quiet" }, "No neighbours are known."));
    return card;
  }
  const items = trace.near.map(([other, cosine]) =>
    element(
      "li",
      {},
      element("div", { class: "line" }, element("a", { class: "id", href: sampleLink(other) }, index.id[other]), element("span", { class: "value" }, signed(cosine))),
      element("div", { class: "text-line" }, index.text[other]),
    ),
  );
  card.append(element("ol", { class: "near" }, items), element("p", { class: "caption" }, "Among the traces on this page, by the cosine of their descriptors."));
  return card;
}
