// Figures in the colours of the page. A figure is drawn when it first comes on the screen.

const drawnPlots = new Set();
/** Return the figures that plotly drew. The others are tables. */
const plotlyPlots = () => [...drawnPlots].filter((place) => !place.drawTable);

/** Run plotly, which is plain text in the page, because plotly starts more slowly than the rest of the page. */
function startPlotly() {
  if (window.Plotly) return;
  document.head.append(element("script", {}, byId("plotly").textContent));
}

/** Return the colours of the page in the form of a plotly layout. */
function plotStyle() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
  return {
    font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--soft") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    axis,
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--soft"), font: { color: colour("--ink"), family: colour("--sans") } },
  };
}

/** Width in pixels below which a plot has fewer ticks, and titles of axes in several lines. */
const NARROW = 480;

function narrowed(axis) {
  const words = (axis.title?.text || "").split(" ");
  const lines = [""];
  for (const word of words) {
    const line = `${lines.at(-1)} ${word}`.trim();
    if (line.length > 22 && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = line;
  }
  const ticks = axis.tickvals || axis.dtick || axis.type === "category" ? {} : { nticks: 5 };
  return { ...ticks, ...axis, title: { ...axis.title, text: lines.join("<br>") } };
}

/** Return the labels in a plot with the background of the card, so that no line crosses their text. */
function onCard(layout) {
  const bgcolor = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  return (layout.annotations || []).map((words) => ({ ...words, bgcolor }));
}

const axesOf = (layout) => Object.keys(layout).filter((name) => /^[xy]axis/.test(name));

function drawPlot(place) {
  if (drawnPlots.has(place)) return;
  drawnPlots.add(place);
  if (place.drawTable) {
    place.drawTable();
    place.dataset.drawn = "true";
    return;
  }
  startPlotly();
  const figure = readDocument(place.dataset.figure);
  const { axis, ...style } = plotStyle();
  const layout = {
    ...figure.layout,
    ...style,
    margin: { l: 56, r: 12, t: 8, b: 48, ...figure.layout.margin },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, bgcolor: "rgba(0,0,0,0)" },
    hovermode: "closest",
    dragmode: false,
  };
  const isNarrow = place.clientWidth < NARROW;
  for (const name of axesOf(figure.layout)) layout[name] = { ...axis, ...(isNarrow ? narrowed(figure.layout[name]) : figure.layout[name]) };
  layout.annotations = onCard(layout);
  const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
  Plotly.newPlot(place, figure.data, layout, config).then(() => {
    place.dataset.drawn = "true";
    place.on("plotly_click", (event) => {
      const trace = event.points[0].customdata;
      if (Number.isInteger(trace) && event.points[0].data.mode === "markers" && trace >= 0) openTrace(trace);
    });
  });
}

/** Return the changes that fit a plot to its place. The width may have changed while the plot was hidden. */
function widthOf(place) {
  if (!place.checkVisibility() || Math.abs(place._fullLayout.width - place.clientWidth) < 2) return {};
  delete place.layout.width;
  return { autosize: true };
}

function restylePlots() {
  const { axis, ...style } = plotStyle();
  for (const place of plotlyPlots()) {
    const changes = { ...style, annotations: onCard(place.layout), ...widthOf(place) };
    for (const name of axesOf(place.layout))
      for (const [key, value] of Object.entries(axis)) changes[`${name}.${key}`] = value;
    Plotly.relayout(place, changes);
  }
}

function fitPlots() {
  for (const place of plotlyPlots()) {
    const width = widthOf(place);
    if (width.autosize) Plotly.relayout(place, width);
  }
}

const plotWatcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawPlot(entry.target)),
  { rootMargin: "300px" },
);

/** Change the layout for paper or for the screen. Paper shows all parts, so all plots are drawn. */
function setPrinting(isPrinting) {
  const root = document.documentElement;
  if (root.hasAttribute("data-print") === isPrinting) return;
  root.toggleAttribute("data-print", isPrinting);
  if (root.dataset.theme === "dark") restylePlots(); // paper is light
  else fitPlots();
  if (isPrinting) document.querySelectorAll(".plot").forEach(drawPlot);
}

window.addEventListener("beforeprint", () => setPrinting(true));
window.addEventListener("afterprint", () => setPrinting(false));
const onPaper = window.matchMedia("print");
onPaper.addEventListener("change", () => setPrinting(onPaper.matches));
