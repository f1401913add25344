// Figures, drawn when they are first on the screen, in the colours of the page.

const drawnPlots = new Set();

/** Run plotly, which the page carries as plain text: it takes longer to start than all the rest of the page. */
function startPlotly() {
  if (window.Plotly) return;
  document.head.append(element("script", {}, byId("plotly").textContent));
}

/** Return the colours of the page as a plot takes them. */
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

/** Return a trace whose numbers, if it shows any, are in the page's ink. */
function inked(trace) {
  if (!trace.texttemplate) return trace;
  const color = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  return { ...trace, textfont: { ...trace.textfont, color } };
}

function drawPlot(place) {
  if (drawnPlots.has(place)) return;
  drawnPlots.add(place);
  startPlotly();
  const figure = readDocument(place.dataset.figure);
  const { axis, ...style } = plotStyle();
  const layout = {
    ...figure.layout,
    ...style,
    margin: { l: 56, r: 12, t: 8, b: 48 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, bgcolor: "rgba(0,0,0,0)" },
    hovermode: "closest",
    dragmode: false,
  };
  for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...figure.layout[name] };
  const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
  Plotly.newPlot(place, figure.data.map(inked), layout, config).then(() => {
    place.dataset.drawn = "true";
    place.on("plotly_click", (event) => {
      const trace = event.points[0].customdata;
      if (Number.isInteger(trace) && event.points[0].data.mode === "markers" && trace >= 0) openTrace(trace);
    });
  });
}

function restylePlots() {
  const { axis, ...style } = plotStyle();
  const changes = { ...style };
  for (const name of ["xaxis", "yaxis"])
    for (const [key, value] of Object.entries(axis)) changes[`${name}.${key}`] = value;
  for (const place of drawnPlots) {
    const numbered = place.data.findIndex((trace) => trace.texttemplate);
    const ink = numbered < 0 ? {} : { "textfont.color": inked(place.data[numbered]).textfont.color };
    Plotly.update(place, ink, changes, numbered < 0 ? undefined : [numbered]);
  }
}

const plotWatcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawPlot(entry.target)),
  { rootMargin: "300px" },
);

window.addEventListener("beforeprint", () => document.querySelectorAll(".plot").forEach(drawPlot));
