// The map of layers and experts on the page Monitor.
"use strict";

strata.heats = new Map(); // canvas -> its last picture

// A layer is a row; where the page is too narrow for its experts, a column.
strata.drawHeat = (picture) => {
  const canvas = document.getElementById(picture.canvas);
  if (!canvas) return;
  if (!strata.heats.has(canvas)) strata.watchHeat(canvas);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  picture.levels = bytes(picture.cells);
  picture.inVram = picture.held === null ? null : bytes(picture.held);
  strata.heats.set(canvas, picture);
  strata.paintHeat(canvas);
};

strata.paintHeat = (canvas) => {
  const picture = strata.heats.get(canvas);
  const layers = picture.layers.length, experts = picture.experts;
  const width = canvas.parentElement.clientWidth;
  const upright = width < experts;
  const columns = upright ? layers : experts, rows = upright ? experts : layers;
  picture.upright = upright;
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.height = `${Math.round(rows * (upright ? 1 : Math.min(Math.max(480 / rows, 6), 22)))}px`;
  const colours = [["--raised", "--accent", "--hot"], ["--held-soft", "--held", "--held-hot"]].map(strata.heatColours);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let layer = 0; layer < layers; layer++)
    for (let expert = 0; expert < experts; expert++) {
      const cell = layer * experts + expert;
      const scale = colours[picture.inVram?.[cell] ?? 0];
      pixels[upright ? expert * layers + layer : cell] = scale[picture.levels[cell]];
    }
  canvas.getContext("2d").putImageData(image, 0, 0);
};

// 256 colours as pixels, from three of the page's own: unused, average, often.
strata.heatColours = (names) => {
  const style = getComputedStyle(document.body);
  const stops = names.map((name) => {
    const value = parseInt(style.getPropertyValue(name).trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  });
  return Uint32Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1), at = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = stops[at].map((from, i) => Math.round(from + (stops[at + 1][i] - from) * (place - at)));
    return (255 << 24) | (b << 16) | (g << 8) | r; // little-endian
  });
};

strata.watchHeat = (canvas) => {
  const repaint = () => strata.heats.has(canvas) && strata.paintHeat(canvas);
  new ResizeObserver(repaint).observe(canvas.parentElement);
  new MutationObserver(repaint).observe(document.body, { attributeFilter: ["class"] }); // light, dark
  canvas.addEventListener("pointermove", (event) => strata.nameCell(canvas, event));
  canvas.addEventListener("pointerleave", () => strata.nameCell(canvas, null));
};

strata.nameCell = (canvas, event) => {
  const picture = strata.heats.get(canvas), label = document.getElementById(picture.cell);
  if (!label) return;
  if (!event) {
    label.textContent = "";
    return;
  }
  const column = Math.floor((event.offsetX / canvas.clientWidth) * canvas.width);
  const row = Math.floor((event.offsetY / canvas.clientHeight) * canvas.height);
  const [layer, expert] = picture.upright ? [column, row] : [row, column];
  const cell = layer * picture.experts + expert, level = picture.levels[cell];
  if (level === undefined) return;
  const place = picture.inVram === null ? "" : picture.inVram[cell] ? ", in VRAM" : ", in RAM alone";
  const times = (picture.full * (level / 255) ** 2).toFixed(1);
  const more = level === 255 ? " or more" : "";
  label.textContent = `layer ${picture.layers[layer]}, expert ${expert}: ${times}${more} × the average${place}`;
};
