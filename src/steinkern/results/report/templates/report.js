const flow = JSON.parse(document.getElementById("flow").textContent);
const codes = new Uint16Array(Uint8Array.from(atob(flow.codes), (c) => c.charCodeAt(0)).buffer);
const particlesBox = document.getElementById("particles"), canvas = particlesBox.querySelector("canvas");
const hold = document.getElementById("hold"), TRAIL = flow.trail, MOST = 5;
const traces = [...document.querySelectorAll("svg[data-first]")];
let current = flow.steps.length - 1;

/* The value of a coordinate at a frame for one particle; NaN where it is not finite. */
function value(frame, coordinate, particle) {
  const code = codes[(frame * flow.names.length + coordinate) * flow.particles + particle];
  if (code === 65535) return NaN;
  const [low, high] = flow.windows[coordinate];
  return low + code / 65534 * (high - low);
}

/* Checkboxes for the coordinates; names are set as text, never as markup. */
const boxes = flow.names.map((name, i) => {
  const label = document.createElement("label"), box = document.createElement("input"), span = document.createElement("span");
  label.className = "choice"; label.title = name;
  box.type = "checkbox"; box.checked = flow.shown.includes(i); span.textContent = name;
  label.append(box, span);
  document.getElementById("coordinates").append(label);
  box.addEventListener("change", () => { limit(); redraw(); });
  return box;
});
document.getElementById("coordinates").hidden = boxes.length < 2;
function chosen() { return boxes.flatMap((box, i) => box.checked ? [i] : []); }
function limit() {
  const full = chosen().length >= MOST;
  for (const box of boxes) box.disabled = full && !box.checked;
}

/* Where the window holds still it shows the whole way; else it follows the particles down to where they end. */
const size = ([low, high]) => high - low;
hold.checked = flow.names.every((_, i) => size(flow.views[i]) < 4 * size(flow.ends[i]));
function following(frame, coordinate) {
  const values = Array.from({ length: flow.particles }, (_, i) => value(frame, coordinate, i)).filter(Number.isFinite);
  values.sort((a, b) => a - b);
  const [low, high] = flow.ends[coordinate], few = Math.floor(0.02 * values.length);
  if (!values.length) return [low, high];
  const first = values[few], last = values[values.length - 1 - few], pad = 0.1 * (last - first);
  return [Math.min(low, first - pad), Math.max(high, last + pad)];
}

function ticks(low, high, most) {
  const rough = (high - low) / most;
  if (!(rough > 0) || !isFinite(rough)) return [];
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * unit).find((s) => s >= 0.7 * rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && found.length < 12; k += 1) found.push(k * step);
  return found;
}
function short(number) {
  const size = Math.abs(number);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? number.toExponential(0) : String(Number(number.toPrecision(3)));
}
function fitted(context, words, room) {
  if (context.measureText(words).width <= room) return words;
  let kept = words;
  while (kept.length > 1 && context.measureText(kept + "…").width > room) kept = kept.slice(0, -1);
  return kept + "…";
}

/* A Gaussian kernel estimate along the window, by Silverman's rule; null where too few particles are finite. */
function density(values, low, high, places) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return null;
  const mean = finite.reduce((a, b) => a + b, 0) / finite.length;
  const sd = Math.sqrt(finite.reduce((a, b) => a + (b - mean) ** 2, 0) / finite.length);
  const width = Math.max(1.06 * sd * finite.length ** -0.2, (high - low) / 200);
  return Array.from({ length: places }, (_, k) => {
    const x = low + (k + 0.5) / places * (high - low);
    return finite.reduce((sum, v) => sum + Math.exp(-0.5 * ((x - v) / width) ** 2), 0);
  });
}

function draw(frame) {
  current = frame;
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const shown = chosen(), k = Math.max(shown.length, 1);
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  const left = width < 560 ? 38 : 58, bottom = 38, gap = width < 560 ? 6 : 12;
  const cell = Math.max((Math.min(width, (k === 1 ? 700 : k === 2 ? 760 : 300 * k) + left) - left - gap * (k - 1)) / k, 20);
  const tall = k === 1 ? Math.min(0.55 * cell, 320) : 0.8 * cell;
  const height = k * tall + (k - 1) * gap + bottom;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = (width < 560 ? 10 : 12) + "px system-ui, sans-serif";
  const windows = flow.names.map((_, i) => shown.includes(i) ? (hold.checked ? flow.views[i] : following(frame, i)) : null);
  const everyone = Array.from({ length: flow.particles }, (_, i) => i);
  const radius = Math.min(flow.particles > 150 ? 2.2 : 3.2, Math.max(cell / 60, 1.6));
  shown.forEach((row, r) => shown.slice(0, r + 1).forEach((column, c) => {
    const x0 = left + c * (cell + gap), y0 = r * (tall + gap);
    const [lowX, highX] = windows[column], [lowY, highY] = windows[row];
    const across = (v) => x0 + (v - lowX) / (highX - lowX) * cell;
    const up = (v) => y0 + tall - (v - lowY) / (highY - lowY) * tall;
    context.save();
    context.beginPath(); context.rect(x0, y0, cell, tall); context.clip();
    context.fillStyle = colour("--panel"); context.fillRect(x0, y0, cell, tall);
    if (r === c) {
      const values = everyone.map((i) => value(frame, column, i)), curve = density(values, lowX, highX, 120);
      if (curve) {
        const top = Math.max(...curve) * 1.12 || 1;
        context.beginPath(); context.moveTo(x0, y0 + tall);
        curve.forEach((v, j) => context.lineTo(x0 + (j + 0.5) / curve.length * cell, y0 + tall - v / top * (tall - 8)));
        context.lineTo(x0 + cell, y0 + tall); context.closePath();
        context.globalAlpha = 0.25; context.fillStyle = colour("--accent"); context.fill();
        context.globalAlpha = 1; context.strokeStyle = colour("--accent"); context.lineWidth = 1.6; context.stroke();
        context.strokeStyle = colour("--particle"); context.lineWidth = 1; context.globalAlpha = 0.8;
        for (const v of values) { context.beginPath(); context.moveTo(across(v), y0 + tall); context.lineTo(across(v), y0 + tall - 7); context.stroke(); }
      }
    } else {
      context.strokeStyle = colour("--particle"); context.lineWidth = 1;
      for (let f = Math.max(1, frame - TRAIL); TRAIL && f <= frame; f += 1) {
        context.globalAlpha = 0.08 + 0.3 * (1 - (frame - f) / TRAIL);
        context.beginPath();
        for (const i of everyone) {
          context.moveTo(across(value(f - 1, column, i)), up(value(f - 1, row, i)));
          context.lineTo(across(value(f, column, i)), up(value(f, row, i)));
        }
        context.stroke();
      }
      context.globalAlpha = 1; context.fillStyle = colour("--particle"); context.strokeStyle = colour("--rim");
      for (const i of everyone) {
        const x = across(value(frame, column, i)), y = up(value(frame, row, i));
        if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
        context.beginPath(); context.arc(x, y, radius, 0, 2 * Math.PI); context.fill(); context.stroke();
      }
    }
    context.restore();
    context.fillStyle = colour("--quiet"); context.textAlign = "center";
    if (r === k - 1) {
      for (const v of ticks(lowX, highX, cell < 120 ? 2 : 4)) {
        const words = short(v), half = context.measureText(words).width / 2 - gap / 2;
        if (across(v) - half > x0 && across(v) + half < x0 + cell) context.fillText(words, across(v), y0 + tall + 14);
      }
      context.fillStyle = colour("--ink");
      context.fillText(fitted(context, flow.names[column], cell), x0 + cell / 2, y0 + tall + 31);
    }
    context.fillStyle = colour("--quiet");
    if (c === 0 && r > 0) {
      context.textAlign = "right";
      for (const v of ticks(lowY, highY, 3)) context.fillText(short(v), x0 - 5, up(v) + 4);
      context.save();
      context.translate(10, y0 + tall / 2); context.rotate(-Math.PI / 2); context.textAlign = "center";
      context.fillStyle = colour("--ink"); context.fillText(fitted(context, flow.names[row], tall), 0, 0);
      context.restore();
    }
  }));
  const step = flow.steps[frame], names = shown.map((i) => flow.names[i]).join(", ");
  canvas.setAttribute("aria-label", `${flow.particles} particles after step ${step}: marginals and pairs of ${names || "no coordinate"}`);
  for (const chart of traces) {
    const { first, last, left: from, right: to } = chart.dataset, line = chart.querySelector(".now");
    const share = (step - first) / (last - first), x = Number(from) + share * (to - from);
    line.setAttribute("x1", x); line.setAttribute("x2", x);
    line.setAttribute("visibility", flow.steps.length > 1 && share >= 0 && share <= 1 ? "visible" : "hidden");
  }
  return "step " + step;
}

const show = player(particlesBox, draw);
function redraw() { draw(current); }
hold.addEventListener("change", redraw);
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
limit();
show();

document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll(".numbers tbody tr")) row.hidden = !row.cells[0].textContent.toLowerCase().includes(words);
});
