"use strict";
// Elements of the page. Text of traces becomes text nodes and attributes, never markup.

/** Make an element: attributes by name, children as elements or text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, part] of Object.entries(value)) made.style.setProperty(key, part);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

const byId = (id) => document.getElementById(id);

const documents = new Map();
/** Return one of the page's documents, parsed when first asked for; null if there is none of that name. */
function readDocument(name) {
  if (!documents.has(name)) {
    const found = byId(name);
    documents.set(name, found ? JSON.parse(found.textContent) : null);
  }
  return documents.get(name);
}

/** Return a number with its sign, so that colour never says alone which way it goes. */
function signed(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  const text = Math.abs(number).toFixed(digits);
  return Number(text) === 0 ? text : (number > 0 ? "+" : "−") + text;
}

/** Return a number between -1 and 1 in the few characters that a cell has room for: 1, .25, −.03, 0. */
function shortNumber(number) {
  if (number === null) return "–";
  const text = Math.abs(number).toFixed(2);
  if (Number(text) === 0) return "0";
  return (number < 0 ? "−" : "") + (text === "1.00" ? "1" : text.slice(1));
}

const grouped = (number) => number.toLocaleString("en-US");

/** Return the background for a number between -scale and scale: blue above 0, orange below, stronger further off. */
function shade(number, scale, strongest = 0.42) {
  if (number === null || number === undefined) return "transparent";
  const share = Math.min(1, Math.abs(number) / scale);
  return `rgba(var(--${number < 0 ? "minus" : "plus"}), ${(strongest * share).toFixed(3)})`;
}
