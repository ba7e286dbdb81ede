/* Plots are light or dark as the reader's system is. */
const scheme = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const [paper, ink, line] = scheme.matches ? ["#0d1117", "#e6edf3", "#3d444d"] : ["#ffffff", "#1b1f24", "#d0d7de"];
  const axes = Object.fromEntries(["xaxis", "yaxis"].flatMap((axis) => [[axis + ".gridcolor", line], [axis + ".zerolinecolor", line]]));
  for (const each of document.querySelectorAll(".plotly-graph-div")) {
    Plotly.relayout(each, { paper_bgcolor: paper, plot_bgcolor: paper, "font.color": ink, "hoverlabel.bgcolor": paper, ...axes });
  }
}
scheme.addEventListener("change", paint);
paint();
