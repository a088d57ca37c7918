// Draws the charts of a page, keeps those over the same axis zoomed alike, follows light, dark and paper, and on a
// live page (body data-live holds the address) asks for news every two seconds.
"use strict";
(() => {
  const config = { displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const zoom = {};  // by axis, the range that is shown; nothing if all is
  let charts = {};
  let printing = false;

  // Figures name colours as CSS variables ("--c1"); the theme gives them their values.
  const resolve = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return typeof value[0] === "object" ? value.map((each) => resolve(each, style)) : value;
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, resolve(each, style)]));
  };

  const themed = (chart, name, width) => {
    const style = getComputedStyle(document.documentElement);
    const axis = {
      gridcolor: "--grid", zerolinecolor: "--grid", linecolor: "--rule", tickcolor: "--rule", automargin: true,
      title: { standoff: 8, font: { size: 12, color: "--muted" } }, tickfont: { color: "--muted" },
    };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified", dragmode: "zoom",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: "--ink" },
      hoverlabel: { bgcolor: "--card", bordercolor: "--rule", font: { color: "--ink" } },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal" },
      margin: { l: 56, r: 12, t: 24, b: 44 }, uirevision: name,
      ...chart.layout,
    };
    for (const key of Object.keys(chart.layout)) {
      if (/^[xy]axis/.test(key)) {
        layout[key] = { ...axis, ...chart.layout[key], title: { ...axis.title, ...chart.layout[key].title } };
      }
    }
    if (zoom[chart.axis]) Object.assign(layout.xaxis, { range: [...zoom[chart.axis]], autorange: false });
    layout.width = width;
    return { data: resolve(chart.data, style), layout: resolve(layout, style) };
  };

  const element = (tag, className, parent) => {
    const made = document.createElement(tag);
    made.className = className;
    return parent.appendChild(made);
  };

  // Return the place of a chart, made when it is first asked for.
  const place = (name) => {
    const known = document.getElementById("chart-" + name);
    if (known) return known;
    const figure = element("figure", "", document.getElementById("charts-body"));
    figure.id = "chart-" + name;
    element("h3", "", figure);
    element("p", "note", figure);
    element("p", "absent", figure);
    element("div", "plot", figure);
    return figure;
  };

  const draw = (name, width) => {
    const chart = charts[name];
    const figure = place(name);
    const [title, note, absent, plot] = figure.children;
    title.textContent = chart.title;
    note.textContent = chart.note;
    absent.textContent = chart.absent;
    plot.hidden = chart.absent !== "";
    absent.hidden = !chart.absent;
    note.hidden = !chart.note;
    if (chart.absent) return Promise.resolve();
    const { data, layout } = themed(chart, name, width || plot.clientWidth);
    const first = !plot.data;
    return Plotly.react(plot, data, layout, config).then(() => {
      if (first) plot.on("plotly_relayout", (change) => follow(name, change));
    });
  };

  // Zooming one chart zooms all over the same axis; what they tell us back is what they already show.
  const follow = (name, change) => {
    if (printing) return;
    const range = change["xaxis.range[0]"] === undefined ? change["xaxis.range"] : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const automatic = change["xaxis.autorange"];
    if (!range && !automatic) return;
    zoom[charts[name].axis] = automatic ? null : [...range];
    for (const [other, chart] of Object.entries(charts)) {
      if (other === name || chart.axis !== charts[name].axis || chart.absent) continue;
      const plot = place(other).querySelector(".plot");
      const shown = plot.layout.xaxis;
      if (automatic ? shown.autorange : shown.range[0] === range[0] && shown.range[1] === range[1]) continue;
      Plotly.relayout(plot, automatic ? { "xaxis.autorange": true } : { "xaxis.range": [...range], "xaxis.autorange": false });
    }
  };

  const drawAll = (width) => {
    Object.keys(charts).forEach(place);  // all of them first: how wide one is depends on how many there are
    return Promise.all(Object.keys(charts).map((name) => draw(name, width)));
  };

  const update = (news) => {
    document.title = news.title + " · Dragoman";
    for (const [name, html] of Object.entries(news.html)) {
      const body = document.getElementById(name + "-body");
      if (!body || body.told === html) continue;
      const open = [...body.querySelectorAll("details")].map((each) => each.open);
      body.innerHTML = html;  // every text of a run in it was escaped where it was written
      body.told = html;
      body.querySelectorAll("details").forEach((each, order) => (each.open = open[order] || false));
    }
    charts = news.charts;
    return drawAll().then(() => (document.body.dataset.drawn = "yes"));
  };

  const poll = async (address, version) => {
    const live = document.getElementById("live");
    let pause = 2000;
    try {
      const answer = await fetch(`${address}?version=${version}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      if (news.version !== version) await update(news);
      version = news.version;
      live.textContent = news.running ? "Live." : "The run has ended.";
    } catch (error) {
      live.textContent = "The server does not answer; trying again.";
      pause = 5000;
    }
    document.body.dataset.version = version;
    setTimeout(() => poll(address, version), pause);
  };

  const data = document.getElementById("data");
  if (data) {
    const found = JSON.parse(data.textContent);
    charts = found.charts;
    drawAll().then(() => (document.body.dataset.drawn = "yes"));
  } else if (document.body.dataset.live) {
    poll(document.body.dataset.live, "");
  }

  dark.addEventListener("change", () => drawAll());
  let frame = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => printing || drawAll());
  });
  const shut = () => document.querySelectorAll("#recipe details:not([open])");
  let opened = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    opened = [...shut()];
    opened.forEach((each) => (each.open = true));
    drawAll(660);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    opened.forEach((each) => (each.open = false));
    drawAll();
  });
})();
