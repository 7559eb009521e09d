/* Privacy profile of T composed Poisson-subsampled Gaussian releases, computed in the page.
 *
 * Mathematics: one round has the pair A = (1-q) N(0, s^2) + q N(1, s^2), B = N(0, s^2). Its privacy
 * loss is discretised by connect-the-dots (Doroshenko et al., 2022): the mass of each grid cell moves
 * to the cell's two ends so that the hockey-stick curve is exact at the grid points and too large
 * between them. Composition is a power in Fourier space. What is cut off counts as infinite loss, so
 * every epsilon and delta is an upper bound. Both directions of add-or-remove are computed.
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
    { key: 'delta', label: 'Failure probability δ', min: 1e-10, max: 1e-2, start: 1e-6 },
  ];
  const DIRECTIONS = ['remove', 'add'];
  const SIZE = 2 ** 16; // points of the composed grid
  const REACH = 9; // one-round noise beyond 9 standard deviations counts as infinite loss ...
  const BEYOND = 1.13e-19; // ... and this bounds its probability
  const SLACK = 1 + 1e-8; // covers binary64 rounding in quadrature, Fourier transform and power
  const LOWEST_DELTA = 1e-12; // smallest delta answered for
  // Gauss-Legendre nodes and weights on [-1, 1]
  const RULE3 = [[-0.7745966692414834, 5 / 9], [0, 8 / 9], [0.7745966692414834, 5 / 9]];
  const RULE5 = [[-0.906179845938664, 0.23692688505618908], [-0.5384693101056831, 0.47862867049936647],
    [0, 0.5688888888888889], [0.5384693101056831, 0.47862867049936647], [0.906179845938664, 0.23692688505618908]];

  /** Whether a value lies in the range of its control; throws a RangeError that names the range. */
  function check(values) {
    for (const { key, label, min, max, whole } of CONTROLS) {
      const value = values[key];
      if (value === undefined) continue;
      if (!(value >= min && value <= max) || (whole && !Number.isInteger(value))) {
        throw new RangeError(`${label} must be a ${whole ? 'whole ' : ''}number from ${tidy(min)} to ${tidy(max)}.`);
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
    const excess = q > 0.5 && value < -0.7 ? (Math.exp(value) - (1 - q)) / q - 1 : Math.expm1(value) / q;
    if (excess <= -1) return -Infinity;
    const t = q > 0.5 && value < -0.7 ? Math.log((Math.exp(value) - (1 - q)) / q) : Math.log1p(excess);
    return 0.5 + sigma * sigma * t;
  }

  /** One-round privacy loss on the grid {low * step, (low + 1) * step, ...} by connect-the-dots. */
  function oneRound(q, sigma, direction, step) {
    const remove = direction === 'remove';
    const left = -REACH * sigma;
    const right = remove ? 1 + REACH * sigma : REACH * sigma;
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
      if (fc < fd) [b, d, fd, c] = [d, c, fc, d - ratio * (d - a)], fc = f(Math.exp(c));
      else [a, c, fc, d] = [c, d, fd, c + ratio * (b - c)], fd = f(Math.exp(d));
    }
    return Math.exp((a + b) / 2);
  }
