/* Privacy profile of T composed Poisson-subsampled Gaussian releases, computed in the page.
 *
 * Mathematics: one round has the pair A = (1-q) N(0, s^2) + q N(1, s^2), B = N(0, s^2). Its privacy
 * loss is discretised by connect-the-dots (Doroshenko et al., 2022): the mass of each grid cell moves
 * to the cell's two ends so that the hockey-stick curve is exact at the grid points and too large
 * between them. Composition is a power in Fourier space. What is cut off counts as infinite loss, so
 * every epsilon and delta is an upper bound. Both directions of add-or-remove are computed. The mass
 * of a cell is integrated, not taken as a difference of hockey-stick values, which would cancel.
 *
 * Use: <div class="privacy-explorer" data-sampling-rate="0.1" data-noise-multiplier="3"
 *           data-rounds="512" data-delta="1e-6">A sentence for readers without JavaScript.</div>
 */
(() => {
  'use strict';

  const CONTROLS = [
    { key: 'samplingRate', label: 'Sampling rate q', min: 1e-4, max: 1, start: 0.1 },
    { key: 'noiseMultiplier', label: 'Noise multiplier σ', min: 0.3, max: 20, start: 3 },
    { key: 'rounds', label: 'Rounds T', min: 1, max: 10000, start: 512, whole: true },
    { key: 'delta', label: 'Delta δ', min: 1e-10, max: 1e-2, start: 1e-6 },
  ];
  const DIRECTIONS = ['remove', 'add'];
  const SIZE = 2 ** 16; // points of the composed grid ...
  const LARGE = 2 ** 18; // ... and where those are too coarse
  const BEYOND = 1e-14; // probability, over all rounds, of one-round losses that count as infinite
  const LOW_REACH = 6; // low losses beyond so many standard deviations are left out, which raises delta
  const UPPER = 1e-11; // tilted mass above the window of the composed loss (counted as infinite loss)
  const LOWER = 1e-9; // and below it (irrelevant to larger epsilon)
  const SLACK = 1 + 1e-8; // covers binary64 rounding in quadrature, Fourier transform and power
  const LOWEST_DELTA = 1e-12; // smallest delta answered for
  const OUT_OF_GRID = 'This combination is beyond what the grid of this page can resolve.';
  // Gauss-Legendre nodes and weights on [-1, 1]
  const RULE3 = [[-0.7745966692414834, 5 / 9], [0, 8 / 9], [0.7745966692414834, 5 / 9]];
  const RULE5 = [[-0.906179845938664, 0.23692688505618908], [-0.5384693101056831, 0.47862867049936647],
    [0, 0.5688888888888889], [0.5384693101056831, 0.47862867049936647], [0.906179845938664, 0.23692688505618908]];

  /** Whether a value lies in the range of its control. */
  function allowed({ min, max, whole }, value) {
    return value >= min && value <= max && (!whole || Number.isInteger(value));
  }

  /** Throws a RangeError that names the allowed range of the first value out of it. */
  function check(values) {
    for (const spec of CONTROLS.filter(({ key }) => key in values)) {
      const kind = spec.whole ? 'whole number' : 'number';
      if (!allowed(spec, values[spec.key])) {
        throw new RangeError(`${spec.label} must be a ${kind} from ${tidy(spec.min)} to ${tidy(spec.max)}.`);
      }
    }
  }

  /** log of the likelihood ratio A(x) / B(x), without cancellation. */
  function logRatio(x, q, sigma) {
    const t = (x - 0.5) / (sigma * sigma);
    return q > 0.5 && t < -0.7 ? Math.log(1 - q + q * Math.exp(t)) : Math.log1p(q * Math.expm1(t));
  }

  /** The x at which the log ratio equals a value; -Infinity below the range of the ratio. */
  function inverseLogRatio(value, q, sigma) {
    const cancels = q > 0.5 && value < -0.7;
    const excess = cancels ? (Math.exp(value) - (1 - q)) / q : Math.expm1(value) / q;
    if (excess <= (cancels ? 0 : -1)) return -Infinity;
    return 0.5 + sigma * sigma * (cancels ? Math.log(excess) : Math.log1p(excess));
  }

  /** The noise [left, right] that is accounted for; what is left out on the side of high loss is beyond. */
  function support(q, sigma, rounds, remove) {
    const tail = (z) => Math.exp((-z * z) / 2) / 2; // bounds the normal tail
    const above = (z) => rounds * (remove ? (1 - q) * tail(z + 1 / sigma) + q * tail(z) : tail(z));
    let z = 3;
    while (above(z) > BEYOND) z += 0.05;
    const [left, right] = remove ? [-LOW_REACH * sigma, 1 + z * sigma] : [-z * sigma, LOW_REACH * sigma];
    return { remove, left, right, range: logRatio(right, q, sigma) - logRatio(left, q, sigma) };
  }

  /** One-round privacy loss on the grid {low * step, (low + 1) * step, ...} by connect-the-dots. */
  function oneRound(q, sigma, { remove, left, right }, step) {
    const first = Math.floor(logRatio(left, q, sigma) / step);
    const last = Math.max(first + 1, Math.ceil(logRatio(right, q, sigma) / step));
    const mass = new Float64Array(last - first + 1);
    const full = Math.expm1(-step);
    let from = left;
    for (let i = first; i < last; i++) {
      const to = i + 1 === last ? right : Math.min(right, inverseLogRatio((i + 1) * step, q, sigma));
      if (to <= from) continue;
      const pieces = Math.ceil((to - from) / (sigma / 8));
      const rule = to - from < sigma / 64 ? RULE3 : RULE5;
      const half = (to - from) / pieces / 2;
      let near = 0; // mass that goes to the lower end of the cell
      let far = 0; // and to the upper end
      for (let piece = 0; piece < pieces; piece++) {
        for (const [node, weight] of rule) {
          const x = from + half * (2 * piece + 1 + node);
          const ratio = logRatio(x, q, sigma);
          const density = weight * half * Math.exp((remove ? ratio : 0) - (x * x) / (2 * sigma * sigma));
          const above = remove ? ratio - i * step : (i + 1) * step - ratio; // loss above the cell's lower end
          const share = Math.min(1, Math.max(0, Math.expm1(-above) / full));
          near += density * (1 - share);
          far += density * share;
        }
      }
      const k = remove ? i - first : last - i - 1;
      mass[k] += near;
      mass[k + 1] += far;
      from = to;
    }
    const total = mass.reduce((a, b) => a + b, 0);
    return { mass: mass.map((m) => m / total), low: remove ? first : -last, step };
  }

  /** log E[exp(order * loss)] of a one-round distribution. */
  function logMoment({ mass, low, step }, order) {
    const top = order > 0 ? mass.length - 1 : 0;
    let sum = 0;
    for (let k = 0; k < mass.length; k++) sum += mass[k] * Math.exp(order * step * (k - top));
    return Math.log(sum) + order * step * (low + top);
  }

  /** Minimiser of a unimodal function of a positive argument, by golden section on a log scale. */
  function minimiser(f, low, high) {
    const ratio = (Math.sqrt(5) - 1) / 2;
    let [a, b] = [Math.log(low), Math.log(high)];
    let [c, d] = [b - ratio * (b - a), a + ratio * (b - a)];
    let [fc, fd] = [f(Math.exp(c)), f(Math.exp(d))];
    for (let i = 0; i < 24; i++) {
      if (fc < fd) {
        [b, d, fd] = [d, c, fc];
        c = b - ratio * (b - a);
        fc = f(Math.exp(c));
      } else {
        [a, c, fc] = [c, d, fd];
        d = a + ratio * (b - a);
        fd = f(Math.exp(d));
      }
    }
    return Math.exp((a + b) / 2);
  }

  /** Edge of the composed loss beyond which the tilted distribution has at most the mass tail (Chernoff). */
  function edge(round, rounds, tilt, moment, shift, tail) {
    return (rounds * (logMoment(round, tilt + shift) - moment) - Math.log(tail)) / shift;
  }

  /** Orders of the Chernoff bounds: a tilt towards small delta, then the window around the tilted loss. */
  function chernoffOrders(round, rounds) {
    const [least, most] = [1e-3, 1e4].map((order) => order / (round.step * round.mass.length));
    const mean = round.mass.reduce((sum, m, k) => sum + m * k, 0);
    const variance = round.mass.reduce((sum, m, k) => sum + m * (k - mean) ** 2, 0);
    const cap = 8 / (round.step * Math.sqrt(rounds * variance));
    const target = Math.min(cap, minimiser((t) => edge(round, rounds, 0, 0, t, 1e-4), least, most));
    const choices = [target, target / 4, target / 16].map((tilt) => {
      const moment = logMoment(round, tilt);
      const up = minimiser((t) => edge(round, rounds, tilt, moment, t, UPPER), least, most);
      const down = minimiser((t) => -edge(round, rounds, tilt, moment, -t, LOWER), least, most);
      return { tilt, up, down, ...windowOf(round, rounds, { tilt, up, down }) };
    });
    // With rare large losses a strong tilt needs a far wider window: then tilt less.
    const narrow = Math.min(...choices.map((choice) => choice.width));
    return choices.find((choice, i) => choice.width <= 1.3 * narrow || (choices[i + 1]?.outside ?? 1) > BEYOND);
  }

  /** Window of the composed loss: the tilted distribution has mass LOWER below and UPPER above it.
   *  `outside` bounds the true probability above. */
  function windowOf(round, rounds, { tilt, up, down }) {
    const moment = logMoment(round, tilt);
    const low = edge(round, rounds, tilt, moment, -down, LOWER);
    const chernoff = edge(round, rounds, tilt, moment, up, UPPER);
    const largest = rounds * round.step * (round.low + round.mass.length - 1);
    const high = Math.min(chernoff, largest);
    const outside = high < largest ? UPPER * Math.exp(rounds * moment - tilt * high) : 0;
    return { moment, low, high, width: high - low, outside };
  }

  const waves = {};
  /** Cosines and sines of the multiples of 1/size turn, computed once. */
  function wave(size) {
    const table = (f) => Float64Array.from({ length: size / 2 }, (_, k) => f((2 * Math.PI * k) / size));
    if (!waves[size]) waves[size] = [table(Math.cos), table(Math.sin)];
    return waves[size];
  }

  /** In-place radix-2 Fourier transform; the inverse is not scaled. */
  function fourier(re, im, inverse) {
    const n = re.length;
    const [cosine, sine] = wave(n);
    for (let i = 1, j = 0; i < n; i++) {
      let bit = n >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) [re[i], re[j], im[i], im[j]] = [re[j], re[i], im[j], im[i]];
    }
    for (let half = 1, stride = n / 2; half < n; half *= 2, stride /= 2) {
      for (let k = 0; k < half; k++) {
        const c = cosine[k * stride];
        const s = inverse ? sine[k * stride] : -sine[k * stride];
        for (let a = k, b = k + half; a < n; a += 2 * half, b += 2 * half) {
          const x = re[b] * c - im[b] * s;
          const y = re[b] * s + im[b] * c;
          re[b] = re[a] - x;
          im[b] = im[a] - y;
          re[a] += x;
          im[a] += y;
        }
      }
    }
  }

  /** Privacy profile of the composition in one direction: delta at the grid points low, low + 1, ... */
  function compose(q, sigma, rounds, direction, size) {
    const noise = support(q, sigma, rounds, direction === 'remove');
    const orders = chernoffOrders(oneRound(q, sigma, noise, noise.range / 1024), rounds);
    let round, box, points;
    let step = noise.range / 1024;
    for (let attempt = 0; attempt < 8; attempt++) {
      round = oneRound(q, sigma, noise, step);
      box = windowOf(round, rounds, orders);
      points = box.width / step + 2;
      const finest = Math.max(box.width / 0.9, noise.range) / (size - 4);
      if (points <= size && step < 1.5 * finest) break;
      step = finest;
    }
    if (!(points <= size)) throw new RangeError(OUT_OF_GRID);
    // Tilting by exp(tilt * loss) before the transform keeps small probabilities above its rounding.
    const re = new Float64Array(size);
    const im = new Float64Array(size);
    round.mass.forEach((m, k) => { re[k % size] += m * Math.exp(orders.tilt * step * (round.low + k) - box.moment); });
    fourier(re, im, false);
    for (let k = 0; k < size; k++) {
      const radius = Math.exp((rounds / 2) * Math.log(re[k] * re[k] + im[k] * im[k]));
      const angle = rounds * Math.atan2(im[k], re[k]);
      re[k] = radius * Math.cos(angle);
      im[k] = radius * Math.sin(angle);
    }
    fourier(re, im, true);
    const low = Math.floor(box.low / step);
    const origin = low - rounds * round.low;
    const moment = rounds * box.moment;
    const infinite = BEYOND + box.outside;
    // delta(low + j) = delta(low + j + 1) + (1 - exp(-step)) * weight[j]: only sums of positive terms
    const deltas = new Float64Array(size).fill(infinite);
    const weight = new Float64Array(size);
    for (let j = size - 2; j >= 0; j--) {
      const index = (((origin + j + 1) % size) + size) % size;
      const mass = (Math.max(0, re[index]) / size) * Math.exp(moment - orders.tilt * step * (low + j + 1));
      weight[j] = SLACK * mass + Math.exp(-step) * weight[j + 1];
      deltas[j] = deltas[j + 1] - Math.expm1(-step) * weight[j];
    }
    return { deltas, weight, low, step };
  }

  /** Smallest epsilon >= 0 that a composed curve certifies at a delta. */
  function epsilonOf({ deltas, weight, low, step }, delta) {
    if (!(deltas[deltas.length - 1] < delta)) throw new RangeError(OUT_OF_GRID);
    if (deltas[0] <= delta) return Math.max(0, low * step);
    let [above, below] = [0, deltas.length - 1]; // deltas[above] > delta >= deltas[below]
    while (below - above > 1) {
      const middle = (above + below) >> 1;
      if (deltas[middle] > delta) above = middle;
      else below = middle;
    }
    const epsilon = (low + below) * step + Math.log1p(-(delta - deltas[below]) / weight[above]);
    return Math.max(0, epsilon);
  }

  /** delta that a composed curve certifies at an epsilon: linear in exp(epsilon) between grid points. */
  function deltaOf({ deltas, weight, low, step }, epsilon) {
    const j = Math.floor(epsilon / step) - low;
    if (j < 0) return 1;
    if (j >= deltas.length - 1) return deltas[deltas.length - 1];
    return Math.min(1, deltas[j + 1] - Math.expm1(epsilon - (low + j + 1) * step) * weight[j]);
  }

  /** Whether the grid may widen the binding direction by about 0.5 % or more (its variance: step^2 / 4 a round). */
  function coarse(curves, direction, rounds) {
    return [1e-2, 1e-4, 1e-6].some((level) => {
      const [own, ...all] = [direction, ...DIRECTIONS].map((d) => epsilonOf(curves[d], level));
      return own > 1e-4 && own >= Math.max(...all) && (rounds * curves[direction].step ** 2) / 4 > 5e-3 * own ** 2;
    });
  }

  let cached = {};
  /** The curves {remove, add} of a configuration; the last one is kept. */
  function profile(samplingRate, noiseMultiplier, rounds) {
    check({ samplingRate, noiseMultiplier, rounds });
    const name = [samplingRate, noiseMultiplier, rounds].join();
    if (cached.name !== name) {
      const curves = {};
      for (const d of DIRECTIONS) curves[d] = compose(samplingRate, noiseMultiplier, rounds, d, SIZE);
      for (const d of DIRECTIONS.filter((direction) => coarse(curves, direction, rounds))) {
        curves[d] = compose(samplingRate, noiseMultiplier, rounds, d, LARGE);
      }
      cached = { name, curves };
    }
    return cached.curves;
  }

  /** Upper bound on epsilon at delta (add-or-remove). */
  function epsilon(samplingRate, noiseMultiplier, rounds, delta) {
    check({ samplingRate, noiseMultiplier, rounds, delta });
    const curves = profile(samplingRate, noiseMultiplier, rounds);
    return Math.max(...DIRECTIONS.map((d) => epsilonOf(curves[d], delta)));
  }

  /** Upper bound on delta at epsilon (add-or-remove), never below the smallest delta answered for. */
  function delta(samplingRate, noiseMultiplier, rounds, at) {
    const curves = profile(samplingRate, noiseMultiplier, rounds);
    return Math.max(LOWEST_DELTA, ...DIRECTIONS.map((d) => deltaOf(curves[d], at)));
  }

  /** A number in at most six digits, as the inputs show it. */
  function tidy(value) {
    const short = Number(value.toPrecision(6));
    return short !== 0 && Math.abs(short) < 1e-4 ? short.toExponential() : String(short);
  }

  /** An epsilon rounded up for display: three decimals, or three digits where it is small. */
  function roundUp(value) {
    if (value === 0) return '0';
    const places = value >= 0.1 ? 3 : 2 - Math.floor(Math.log10(value));
    return (Math.ceil(value * 10 ** places) / 10 ** places).toFixed(places);
  }

  const api = { epsilon, delta, profile, epsilonOf, deltaOf, roundUp };
  if (typeof module !== 'undefined') module.exports = api;
  if (typeof document === 'undefined') return;
  window.privacyExplorer = api;

  // ---- page ----

  const maker = (create) => (name, attributes = {}, ...children) => {
    const node = create(name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.append(...children);
    return node;
  };
  const html = maker((name) => document.createElement(name));
  const svg = maker((name) => document.createElementNS('http://www.w3.org/2000/svg', name));
  let serial = 0;

  /** Values of a slider: about 300 on a log scale, three digits each, whole for rounds. */
  function stopsOf({ min, max, whole }) {
    const values = Array.from({ length: 301 }, (_, i) => Number((min * (max / min) ** (i / 300)).toPrecision(3)));
    return [...new Set(whole ? values.map(Math.round) : values)];
  }

  /** One labelled control: slider and number input tied together; changed() is called on every edit. */
  function control(spec, start, changed) {
    const id = `privacy-explorer-${++serial}`;
    const stops = stopsOf(spec);
    const range = `${tidy(spec.min)} to ${tidy(spec.max)}`;
    const slider = html('input', { type: 'range', id, min: 0, max: stops.length - 1, step: 1 });
    const number = html('input', {
      type: 'number', id: `${id}-number`, min: spec.min, max: spec.max, step: spec.whole ? 1 : 'any',
      inputmode: 'decimal', 'aria-label': `${spec.label}, exact value`, 'aria-describedby': `${id}-hint`,
    });
    const self = { spec, number, value: start };
    self.node = html('div', { class: 'pe-control' }, html('label', { for: id }, spec.label), number, slider,
      html('small', { id: `${id}-hint` }, range));
    self.set = (value, typed = false) => {
      self.value = value;
      const distance = (stop) => Math.abs(Math.log(stop / value));
      const nearest = stops.reduce((best, stop, i) => (distance(stop) < distance(stops[best]) ? i : best), 0);
      slider.value = nearest;
      slider.setAttribute('aria-valuetext', Number.isFinite(value) ? tidy(value) : 'not a number');
      if (!typed) number.value = Number.isFinite(value) ? tidy(value) : '';
      changed();
    };
    slider.addEventListener('input', () => self.set(stops[slider.value]));
    number.addEventListener('input', () => self.set(number.valueAsNumber, true));
    number.addEventListener('keydown', (event) => { // arrows follow the slider: steps of 1 suit no control but rounds
      const move = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      self.set(stops[Math.min(stops.length - 1, Math.max(0, Number(slider.value) + move))]);
    });
    return self;
  }

  /** Round values for about `count` axis ticks in [low, high]. */
  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(8)));
  }

  /** The chart of both directions, with the chosen point. */
  function chart(curves, { epsilon, delta }, summary, width) {
    const id = `privacy-explorer-${++serial}`;
    const [left, right, top, bottom] = [66, 18, 36, 48];
    const height = Math.round(Math.min(400, Math.max(260, width * 0.55)));
    const floor = Math.max(...DIRECTIONS.map((d) => 2 * curves[d].deltas[curves[d].deltas.length - 1]));
    const ends = (level) => Math.max(...DIRECTIONS.map((d) => epsilonOf(curves[d], Math.max(level, floor))));
    const [middle, high] = [ends(0.5), ends(LOWEST_DELTA)];
    const low = middle > high / 2 ? Math.max(0, middle - (high - middle) / 3) : 0;
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const y = (value) => top + (Math.log10(value) / Math.log10(LOWEST_DELTA)) * (height - top - bottom);
    const base = height - bottom;
    const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-labelledby': `${id}-t ${id}-d` },
      svg('title', { id: `${id}-t` }, 'Privacy profile: delta against epsilon'),
      svg('desc', { id: `${id}-d` }, `Two falling curves, remove (solid) and add (dashed), delta on a log scale. ${summary}`));
    for (let power = 0; power >= -12; power -= 2) {
      const at = y(10 ** power);
      root.append(svg('line', { class: 'pe-grid', x1: left, x2: width - right, y1: at, y2: at }),
        svg('text', { x: left - 8, y: at + 4, 'text-anchor': 'end' }, power ? '10' : '1',
          ...(power ? [svg('tspan', { dy: -5, class: 'pe-power' }, `\u2212${-power}`)] : [])));
    }
    for (const tick of ticks(low, high, Math.max(4, width / 110))) {
      root.append(svg('line', { class: 'pe-grid', x1: x(tick), x2: x(tick), y1: top, y2: base }),
        svg('text', { x: x(tick), y: base + 18, 'text-anchor': 'middle' }, String(tick)));
    }
    root.append(svg('path', { class: 'pe-axis', d: `M${left} ${top}V${base}H${width - right}` }),
      svg('text', { x: (left + width - right) / 2, y: height - 8, 'text-anchor': 'middle' }, 'epsilon (ε)'),
      svg('text', { transform: `translate(13 ${(top + base) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, 'delta (δ, log scale)'));
    DIRECTIONS.forEach((direction, i) => {
      const points = [];
      for (let px = left; px <= width - right; px++) {
        const value = deltaOf(curves[direction], low + ((px - left) / (width - left - right)) * (high - low));
        points.push(`${px} ${y(Math.max(value, LOWEST_DELTA)).toFixed(1)}`);
        if (value <= LOWEST_DELTA) break;
      }
      const start = width < 420 ? 4 + (i * width) / 2 : left + i * 170;
      root.append(svg('path', { class: `pe-line pe-${direction}`, d: `M${points.join('L')}` }),
        svg('path', { class: `pe-line pe-${direction}`, d: `M${start} 16h30` }),
        svg('text', { x: start + 37, y: 20 }, width < 420 ? direction : `${direction} a record`));
    });
    const point = [x(epsilon), y(delta)];
    root.append(svg('path', { class: 'pe-guide', d: `M${left} ${point[1]}H${point[0]}V${base}` }),
      svg('circle', { class: 'pe-point', cx: point[0], cy: point[1], r: 6 }));
    return root;
  }

  /** The sentence about epsilon at the chosen delta. */
  function sentence(each, delta) {
    const [remove, add] = each.map(roundUp);
    const largest = each[0] >= each[1] ? remove : add;
    const why = largest === '0' ? 'Both curves start below this δ.'
      : Math.abs(each[0] - each[1]) <= 1e-4 * Math.max(...each) ? 'Both directions bind.'
      : each[0] > each[1] ? `Removing a record binds (adding one: ${add}).` : `Adding a record binds (removing one: ${remove}).`;
    return [`ε ≤ ${largest}`, ` at δ = ${tidy(delta)}. ${why}`];
  }

  /** Builds one explorer inside its <div>. */
  function build(host) {
    let timer;
    let drawn = null; // what the chart shows, for redrawing at another width
    let width = 0; // of the chart
    const starts = CONTROLS.map(({ key, start }) => (key in host.dataset ? Number(host.dataset[key]) : start));
    const later = () => { clearTimeout(timer); timer = setTimeout(update, 80); };
    const controls = CONTROLS.map((spec, i) => control(spec, starts[i], later));
    const output = html('output', { 'aria-live': 'polite', for: controls.map((c) => c.number.id).join(' ') });
    const figure = html('div', { class: 'pe-chart' });
    const reset = html('button', { type: 'button' }, 'Reset');
    const restore = () => controls.forEach((c, i) => c.set(starts[i]));
    const draw = () => {
      width = Math.max(240, figure.clientWidth);
      figure.replaceChildren(...(drawn ? [chart(...drawn, width)] : []));
    };
    function update() {
      const values = Object.fromEntries(controls.map((c) => [c.spec.key, c.value]));
      try {
        for (const { spec, number, value } of controls) number.setAttribute('aria-invalid', !allowed(spec, value));
        check(values);
        const curves = profile(values.samplingRate, values.noiseMultiplier, values.rounds);
        const each = DIRECTIONS.map((d) => epsilonOf(curves[d], values.delta));
        const [bound, rest] = sentence(each, values.delta);
        output.replaceChildren(html('strong', {}, bound), rest);
        output.className = '';
        drawn = [curves, { epsilon: Math.max(...each), delta: values.delta }, bound + rest];
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        output.replaceChildren(error.message);
        output.className = 'pe-invalid';
        drawn = null;
      }
      draw();
    }
    reset.addEventListener('click', restore);
    host.setAttribute('role', 'group');
    host.setAttribute('aria-label', 'Privacy profile explorer');
    host.replaceChildren(html('div', { class: 'pe-controls' }, ...controls.map((c) => c.node)),
      html('div', { class: 'pe-result' }, output, reset), figure);
    restore();
    new ResizeObserver(() => { if (figure.clientWidth !== width) draw(); }).observe(figure);
  }

  const start = () => document.querySelectorAll('div.privacy-explorer').forEach(build);
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', start);
  else start();
})();
