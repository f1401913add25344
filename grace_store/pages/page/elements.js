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
/** Return a document of the page by its name, parsed at first use; null if the page has no such document. */
function readDocument(name) {
  if (!documents.has(name)) {
    const found = byId(name);
    documents.set(name, found ? JSON.parse(found.textContent) : null);
  }
  return documents.get(name);
}

/** Return a number with its sign. Colour alone never shows the sign. */
function signed(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  const text = Math.abs(number).toFixed(digits);
  return Number(text) === 0 ? text : (number > 0 ? "+" : "−") + text;
}

/** Return a number between -1 and 1 in a few characters, for a small cell: 1, .25, −.03, 0. */
function shortNumber(number) {
  if (number === null) return "–";
  const text = Math.abs(number).toFixed(2);
  if (Number(text) === 0) return "0";
  return (number < 0 ? "−" : "") + (text === "1.00" ? "1" : text.slice(1));
}

const grouped = (number) => number.toLocaleString("en-US");

/** Return the background for a number between -scale and scale: blue above 0, orange below, stronger far from 0. */
function shade(number, scale, strongest = 0.42) {
  if (number === null || number === undefined) return "transparent";
  const share = Math.min(1, Math.abs(number) / scale);
  return `rgba(var(--${number < 0 ? "minus" : "plus"}), ${(strongest * share).toFixed(3)})`;
}
