// The visible part of the page, by the fragment of the address, and the keyboard.

const TRACES = "traces";

/** Return whether the page has traces. A page may have only figures and tables. */
const hasTraces = () => readDocument("trace-browser") !== null;

function viewKeys() {
  return [...readDocument("page").sections.map((section) => section.key), ...(hasTraces() ? [TRACES] : [])];
}

function showView(key) {
  for (const each of viewKeys()) byId(`view-${each}`).hidden = each !== key;
  for (const link of byId("views").children) {
    if (link.getAttribute("href") === `#${key}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  fitPlots();
}

/** Go to a fragment and show it at once, without waiting for the browser's event. */
function goTo(fragment) {
  window.location.hash = fragment;
  follow();
}

function openTrace(i) {
  goTo(sampleLink(i));
}

function leaveTrace() {
  goTo(`#${TRACES}`);
  byId("trace-list").querySelector('[aria-current="true"]')?.focus();
}

/** Show the part of the report that the fragment names, or the trace of #sample=ID. */
function follow() {
  const fragment = window.location.hash.slice(1);
  const isSample = hasTraces() && fragment.startsWith("sample=");
  const before = document.body.dataset.view;
  if (isSample) {
    let id = "";
    try {
      id = decodeURIComponent(fragment.slice(7));
    } catch {
      id = fragment.slice(7);
    }
    const i = readDocument("trace-index").id.indexOf(id);
    showView(TRACES);
    byId("view-traces").classList.add("reading");
    if (i >= 0) {
      showTrace(i);
      markCurrent(i);
    } else byId("trace").replaceChildren(backButton(), element("p", { class: "empty" }, `There is no trace ${id} on this page.`));
    if (before !== "sample") window.scrollTo(0, 0);
  } else {
    const key = viewKeys().includes(fragment) ? fragment : viewKeys()[0];
    showView(key);
    byId("view-traces").classList.remove("reading");
    if (key === TRACES && list.current < 0 && list.found.length) {
      showTrace(list.found[0]);
      markCurrent(list.found[0]);
    }
    window.scrollTo(0, 0);
  }
  document.body.dataset.view = isSample ? "sample" : fragment;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const inTraces = !byId("view-traces").hidden;
  const onList = event.target.closest?.("#trace-list") || event.target === document.body || event.target.id === "main" || event.target.id === "trace";
  const does = {
    t: toggleTheme,
    "?": () => byId("help").showModal(),
  };
  if (hasTraces()) {
    does["/"] = () => {
      if (!inTraces || byId("search").offsetParent === null) goTo(`#${TRACES}`);
      byId("search").focus();
    };
  }
  if (/^[1-9]$/.test(event.key) && viewKeys()[Number(event.key) - 1]) does[event.key] = () => goTo(`#${viewKeys()[Number(event.key) - 1]}`);
  if (inTraces) {
    does.j = () => moveInList(1);
    does.k = () => moveInList(-1);
    if (onList) { does.ArrowDown = does.j; does.ArrowUp = does.k; }
    does["["] = () => turnPage(-1);
    does["]"] = () => turnPage(1);
    does.Escape = leaveTrace;
  }
  if (does[event.key]) {
    event.preventDefault();
    does[event.key]();
  }
}

function start() {
  const page = readDocument("page");
  byId("store-name").textContent = page.title;
  byId("made-by").textContent = `Made by ${page.made_by}. This file is complete: it loads nothing and sends nothing.`;
  byId("sections").append(...page.sections.map(sectionView));
  const links = page.sections.map(({ key, title }) => [key, title]);
  if (hasTraces()) links.push([TRACES, "Traces"]);
  byId("views").append(...links.map(([key, title]) => element("a", { href: `#${key}` }, title)));
  startTheme();
  if (hasTraces()) {
    startList();
    findTraces();
  }
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("trace-list").addEventListener("click", (event) => {
    // On a narrow screen, a click on the current link must open the trace again.
    const link = event.target.closest("a");
    if (link && link.getAttribute("href") === window.location.hash) follow();
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", follow);
  follow();
  document.documentElement.dataset.ready = "true";
}

start();
