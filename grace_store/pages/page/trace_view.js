// One trace: its text with colours for steps or tokens, its pictures, its cosines as a heat map, and its neighbours.

const COLOUR_BY = [
  ["score", "step score"],
  ["answer", "alignment with the answer"],
  ["history", "alignment with the history"],
  ["loss", "loss of steps"],
  ["mean_entropy", "entropy of steps"],
];
/** Numbers of tokens: the words for each, the number that has the strongest colour, and the number without colour. */
const TOKENS_BY = {
  surprisal: { words: "surprisal of tokens (nats)", most: 8, least: 0 },
  entropy: { words: "entropy of tokens (nats)", most: 4, least: 0 },
  rank: { words: "rank of tokens", most: 100, least: 1 },
};
/** Numbers of segments that begin at 0. Large numbers are orange. */
const FROM_ZERO = ["loss", "mean_entropy"];
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
  const numbers = [
    ["value", signed(index.value[i], 4)],
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

/** Return what a trace's steps are coloured by: the chosen number, or the step score if the trace does not have it. */
const colouredBy = (trace) => (trace[colourBy] ? colourBy : "score");

/** Return the number that has the full colour. */
function fullColour(trace) {
  const { scale, scales } = readDocument("trace-browser");
  return scales[colouredBy(trace)] ?? scale;
}

function stepsCard(i, index, trace) {
  return element("div", { class: "card" }, legend(i, fullColour(trace), trace), stepList(i, index, trace, isByToken(trace)));
}

/** Return whether the tokens of a trace are coloured, instead of its steps. */
const isByToken = (trace) => colourBy in TOKENS_BY && tokenPieces(trace) !== null;

function stepList(i, index, trace, byToken) {
  const values = trace[colouredBy(trace)] ?? index.score[i];
  const num = index.steps[i];
  const items = [];
  const pieces = byToken ? tokenPieces(trace) : null;
  const scale = byToken ? Infinity : fullColour(trace); // beside a legend of tokens, a trace without them has no colours
  for (let k = 0; k <= num; k++) items.push(stepItem(k, num, trace, values, scale, pieces));
  return element("ol", { class: "steps", "aria-label": "Steps and answer" }, items);
}

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
      pieces.push({ text: segment.slice(start, stop).join(""), value: trace.token[colourBy][token] });
      left -= stop - start;
      start = stop;
    }
    return pieces;
  });
}

function tokenSpan({ text, value }) {
  const { most, least } = TOKENS_BY[colourBy];
  const share = colourBy === "rank" ? Math.log(value) / Math.log(most) : (value - least) / most;
  return element("span", { class: "token", title: `${colourBy} ${value}`, style: { background: shade(-share, 1) } }, text);
}

function stepItem(k, num, trace, values, scale, pieces) {
  const isAnswer = k === num;
  const value = values[k] ?? null; // an answer has a loss and an entropy, but no step score
  const fromZero = FROM_ZERO.includes(colouredBy(trace));
  const shown = fromZero && value !== null ? value.toFixed(3) : signed(value);
  const facts = [];
  if (!isAnswer && trace.answer) facts.push(`answer ${signed(trace.answer[k])}`);
  if (!isAnswer && trace.history && trace.history[k] !== null) facts.push(`history ${signed(trace.history[k])}`);
  if (trace.tokens) facts.push(`${grouped(trace.tokens[k])} tokens`);
  if (trace.loss && trace.loss[k] !== null) facts.push(`loss ${trace.loss[k].toFixed(3)}`);
  if (trace.mean_entropy && trace.mean_entropy[k] !== null) facts.push(`entropy ${trace.mean_entropy[k].toFixed(3)}`);
  return element(
    "li",
    { class: isAnswer ? "step answer" : "step", style: { "--shade": shade(fromZero && value !== null ? -value : value, scale) } },
    element("div", { class: "gutter" }, element("b", {}, isAnswer && value === null ? "answer" : shown), element("small", {}, !isAnswer ? `step ${k + 1}` : value === null ? "target" : "answer")),
    element(
      "div",
      { class: "words", dir: "auto" },
      pieces ? pieces[k].map(tokenSpan) : trace.segments ? trace.segments[k].trim() : null,
      element("div", { class: "more", dir: "ltr" }, facts.join(" · ")),
    ),
  );
}

function legend(i, scale, trace) {
  const fromZero = FROM_ZERO.includes(colouredBy(trace));
  const steps = fromZero ? [0, -0.25, -0.5, -0.75, -1] : [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1];
  const [from, to] = fromZero ? ["0", scale.toFixed(2)] : [signed(-scale, 2), signed(scale, 2)];
  const words = fromZero ? `Colours from none at 0 to orange at ${to}` : `Colours from orange at ${from} over none at 0 to blue at ${to}`;
  const ramp = element(
    "div",
    { class: "ramp", role: "img", "aria-label": words },
    from,
    element("span", {}, steps.map((step) => element("i", { style: { background: shade(step * scale, scale) } }))),
    to,
  );
  const { scored } = readDocument("trace-browser");
  const known = COLOUR_BY.filter(([key]) => key === "score" || trace[key]).map(([key, words]) => [key, key === "score" ? `${words} (${scored})` : words]);
  const byToken = trace.token ? Object.entries(TOKENS_BY).map(([key, { words }]) => [key, words]) : [];
  const chosen = isByToken(trace) ? colourBy : colouredBy(trace);
  const select = element("select", { id: "colour-by" }, [...known, ...byToken].map(([key, words]) => element("option", { value: key, selected: key === chosen }, words)));
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
