"use strict";
const setup = JSON.parse(document.getElementById("setup").textContent);
const form = document.getElementById("inputs");
const rows = [...form.querySelectorAll(".input")];
const byId = id => document.getElementById(id);
const short = v => Math.abs(v) >= 1e6 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2) : Number(v.toPrecision(4)).toLocaleString("en");
const percent = p => (100 * p).toFixed(1) + " %";
const toDay = text => Date.parse(text + "T00:00:00Z") / 864e5;
const fromDay = number => new Date(Math.floor(number) * 864e5).toISOString().slice(0, 10);
let moved = setup.first, axis = setup.axis, waiting = null, count = 0;

function value(row) {
  if (row.querySelector(".unknown input")?.checked) return null;
  const field = row.querySelector("select, input");
  if (row.dataset.kind === "category") return field.value === setup.missing ? null : field.value;
  if (field.value === "") return null;
  return row.dataset.kind === "date" ? field.value : Number(field.value);
}
function draw(inside, height) {
  return `<svg viewBox="0 0 600 ${height}" role="img">${inside}</svg>`;
}
function density(p) {
  const [low, high] = axis = [Math.min(axis[0], p.density[0][0]), Math.max(axis[1], p.density.at(-1)[0])];
  const x = v => 20 + 560 * (v - low) / (high - low || 1), top = Math.max(...p.density.map(d => d[1]));
  const points = p.density.map(([v, d]) => `${x(v)},${150 - 130 * d / top}`);
  const inside = p.density.filter(([v]) => v >= p.low && v <= p.high).map(([v, d]) => `${x(v)},${150 - 130 * d / top}`);
  const ticks = [0, 1, 2, 3, 4].map(i => low + (high - low) * i / 4);
  return draw(
    `<polygon points="${x(p.low)},150 ${inside.join(" ")} ${x(p.high)},150" fill="var(--accent)" opacity=".25"/>` +
    `<polyline points="${points.join(" ")}" fill="none" stroke="var(--accent)" stroke-width="2"/>` +
    `<line x1="${x(p.mean)}" x2="${x(p.mean)}" y1="15" y2="150" stroke="var(--second)" stroke-width="2"/>` +
    `<line x1="20" x2="580" y1="150" y2="150" stroke="var(--line)"/>` +
    ticks.map(t => `<text x="${x(t)}" y="168" text-anchor="middle">${short(t)}</text>`).join(""), 175);
}
function bars(classes) {
  const box = document.createElement("div");
  box.className = "bars";
  for (const [name, p] of Object.entries(classes).sort((a, b) => b[1] - a[1]).slice(0, 12)) {
    const [label, bar, number] = ["span", "i", "b"].map(kind => box.appendChild(document.createElement(kind)));
    label.textContent = label.title = name;
    number.textContent = percent(p);
    bar.style.width = `${100 * p}%`;
  }
  return box;
}
function curve(s, here) {
  if (s.at.length < 2) return "";
  const words = typeof s.at[0] === "string", at = words ? s.at.map((_, i) => i) : s.at;
  const lines = s.low ? [s.mean] : s.lines, all = s.low ? [...s.low, ...s.high] : [0, 1];
  const [low, high] = [Math.min(...all), Math.max(...all)], [first, last] = [at[0], at.at(-1)];
  const x = v => 84 + 496 * (v - first) / (last - first || 1), y = v => 170 - 150 * (v - low) / (high - low || 1);
  const colours = ["accent", "second", "good", "muted"];
  let inside = "";
  if (s.low && !words) inside += `<polygon points="${at.map((v, i) => `${x(v)},${y(s.high[i])}`).join(" ")} ${
    at.map((v, i) => `${x(v)},${y(s.low[i])}`).reverse().join(" ")}" fill="var(--accent)" opacity=".2"/>`;
  if (s.low && words) inside += at.map((v, i) =>
    `<line x1="${x(v)}" x2="${x(v)}" y1="${y(s.low[i])}" y2="${y(s.high[i])}" stroke="var(--accent)" stroke-width="3" opacity=".4"/>`).join("");
  lines.forEach((line, k) => {
    inside += words
      ? at.map((v, i) => `<circle cx="${x(v)}" cy="${y(line[i])}" r="4" fill="var(--${colours[k % 4]})"/>`).join("")
      : `<polyline points="${at.map((v, i) => `${x(v)},${y(line[i])}`).join(" ")}" fill="none" stroke="var(--${colours[k % 4]})" stroke-width="2"/>`;
  });
  const place = words ? s.at.indexOf(here) : typeof here === "string" ? toDay(here) : here;
  if (place !== null && place !== -1) inside += `<line x1="${x(place)}" x2="${x(place)}" y1="15" y2="170" stroke="var(--muted)" stroke-dasharray="3 3"/>`;
  const shown = v => s.kind === "date" ? fromDay(v) : words ? "" : short(v);
  inside += [0, 0.5, 1].map(t => first + (last - first) * t).map(v => `<text x="${x(v)}" y="188" text-anchor="middle">${shown(v)}</text>`).join("");
  inside += [low, (low + high) / 2, high].map(v => `<text x="76" y="${y(v) + 4}" text-anchor="end">${short(v)}</text>`).join("");
  const labels = words ? at.map(v => [x(v), s.at[v]]) : [];
  const picture = document.createElement("div");
  picture.innerHTML = draw(inside, 195);
  const svg = picture.firstChild;
  for (const [left, text] of labels.slice(0, 8)) {
    const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
    label.setAttribute("x", left); label.setAttribute("y", 188); label.setAttribute("text-anchor", "middle");
    label.textContent = text.length > 10 ? text.slice(0, 9) + "…" : text;
    svg.append(label);
  }
  return svg;
}
function show(answer, row) {
  const p = answer.prediction;
  byId("said").textContent = "";
  const strong = byId("said").appendChild(document.createElement("strong"));
  if (p.classes) {
    const [name, probability] = Object.entries(p.classes).sort((a, b) => b[1] - a[1])[0];
    strong.textContent = name;
    byId("said").append(`, ${percent(probability)}`);
    byId("drawn").replaceChildren(bars(p.classes));
    byId("parts").textContent = `Entropy ${short(p.entropy)} nats, of which ${short(p.epistemic)} is what the model does not know.`;
  } else {
    strong.textContent = short(p.mean);
    byId("said").append(`, 90 % between ${short(p.low)} and ${short(p.high)}`);
    byId("drawn").innerHTML = density(p);
    byId("parts").textContent = `Standard deviation ${short(p.std)}: what the model does not know ${short(p.epistemic_std)}, noise ${short(p.aleatoric_std)}.`;
  }
  byId("swept-title").textContent = `Along ${answer.sweep.column}`;
  byId("swept").replaceChildren(curve(answer.sweep, row[answer.sweep.column]) || "");
  byId("swept-note").textContent = answer.sweep.at.length < 2 ? "Its range is not in the model file."
    : answer.sweep.low ? "Mean and 90 % interval, the other inputs as they are." : `Probabilities of ${answer.sweep.classes.join(", ")}.`;
  trouble(p.notes.join(" "));
}
function trouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}
async function ask() {
  const row = Object.fromEntries(rows.map(r => [r.dataset.column, value(r)])), number = ++count;
  try {
    const response = await fetch("predict", {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({row, column: moved}),
    });
    const answer = await response.json();
    if (number === count) response.ok ? show(answer, row) : trouble(answer.error);
  } catch {
    trouble("The server does not answer; has it ended?");
  }
}
form.addEventListener("input", event => {
  const row = event.target.closest(".input"), slider = row.querySelector("[type=range]"), field = row.querySelector("select, input");
  const dated = row.dataset.kind === "date";
  if (event.target === slider) field.value = dated ? fromDay(Number(slider.value)) : Number(Number(slider.value).toPrecision(6));
  else if (slider && event.target === field && field.value !== "") slider.value = dated ? toDay(field.value) : field.value;
  row.classList.toggle("off", row.querySelector(".unknown input")?.checked ?? false);
  moved = row.dataset.column;
  clearTimeout(waiting);
  waiting = setTimeout(ask, 60);
});
form.addEventListener("reset", () => setTimeout(() => { rows.forEach(r => r.classList.remove("off")); ask(); }));
form.addEventListener("submit", event => event.preventDefault());
ask();
