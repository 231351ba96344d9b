// Every mesh for a model on a machine, ranked as by shardlab.plan, and why each loses against the first.
//   case: { model, chip, chips, slices, batch, sequence, remat, reserve, and perhaps products and dtypes }
window.explorer.shared(function (explorer) {
"use strict";
const { AXES, divisors, machine, noAdapters, noPeak, notAModel, places, sizesOf, splits, step, unknownHost } = explorer;
const { floor, log, max, min } = Math;

// Every mesh: on several nodes of GPUs with pipeline and context axes too, for long sequences with a context axis, and with
// tensor axes within a node. Between slices of TPUs are only data and pipeline axes, if they can.
const isSeveral = ({ chip, slices }) => !chip.torus.length && slices > 1;
function meshes({ chip, near, chips, slices }, model, sequence, several) {
  const { pipeline, context, long } = explorer.data.most;
  const every = divisors(chips);
  const allowed = {
    tensor: every.filter((n) => n <= (chip.torus.length ? chips : near) && splits(model, n)),
    pipeline: every.filter((n) => n <= (several ? min(model.layers, pipeline) : 1)),
    context: every.filter((n) => n <= (several || sequence >= long ? context : 1) && sequence % n === 0),
    expert: every.filter((n) => n === 1 || (model.experts && model.experts % n === 0)),
    fsdp: every,
  };
  let found = [{ data: chips }];
  for (const [axis, sizes] of Object.entries(allowed)) {
    found = found.flatMap((mesh) => sizes.filter((size) => mesh.data % size === 0).map((size) =>
      ({ ...mesh, [axis]: size, data: mesh.data / size })));
  }
  const apart = chip.torus.length && slices > 1 ? found.filter((mesh) => mesh.data * mesh.pipeline % slices === 0) : [];
  return apart.length ? apart : found;
}

// Whether a way to compute a step fits where another does not, takes less than a share of its time, or needs less.
const better = (one, other, share = 1) => one.fits > other.fits ||
  (one.fits === other.fits && one.worth < (one.fits ? share : 1) * other.worth);

// What it costs on each of the meshes, with the micro-batches, stages and gathers that are best for it. Interleaving, and
// keeping what is gathered, must be faster by more than one per cent.
function priced(made, some, given) {
  const [counted, sequences] = [sizesOf(given.model), given.batch / given.sequence];
  const { stages: most, faster, microbatches } = explorer.data.most;
  const choices = some.map((mesh) => {
    const [where, each] = [places(made, mesh), sequences / (mesh.data * mesh.fsdp * mesh.expert)];
    // Powers of two, and those that leave a power of two of sequences in each micro-batch.
    const dividing = microbatches.filter((n) => each % n === 0);
    const numbers = [...new Set(dividing.flatMap((n) => [n, each / n]))].filter((n) => n <= microbatches.at(-1))
      .sort((p, q) => p - q);
    const able = most.filter((n) => n === 1 || (mesh.pipeline > 1 && mesh.pipeline * n <= given.model.layers));
    const ways = able.flatMap((stages) => (mesh.fsdp * mesh.context > 1 ? [2, 1] : [2]).map((gathers) => ({ stages, gathers })));
    const bests = ways.map(({ stages, gathers }) => {
      let best = null;
      for (const micro of numbers) {
        if (stages > 1 && micro % mesh.pipeline) continue;
        const how = { microbatches: micro, stages, gathers };
        const cost = step(given.model, counted, made, where, { ...given, ...mesh, ...how });
        const one = { ...cost, worth: cost.fits ? cost.expected_seconds : cost.total_bytes, mesh, ...how };
        if (!best || better(one, best)) best = one;
      }
      return best;
    });
    const best = bests.filter((one) => one).reduce((before, one) => (better(one, before, faster) ? one : before));
    best.axes = max(AXES.filter((axis) => mesh[axis] > 1).length, 1);
    best.rank = best.fits ? floor(100 * log(best.expected_seconds)) : best.total_bytes;
    return best;
  });
  // A context axis must gain what interleaving must.
  const shorter = {};
  const earning = [...choices].sort((p, q) => p.mesh.context - q.mesh.context).filter((one) => {
    const { data, tensor, pipeline, expert } = one.mesh;
    const alike = shorter[[data, tensor, pipeline, expert]] ??= [];
    return alike.every((other) => better(one, other, faster)) && alike.push(one);
  });
  // Of those within one per cent of each other, fewer axes first.
  return earning.sort((p, q) => q.fits - p.fits || p.rank - q.rank || p.axes - q.axes ||
    p.expected_seconds - q.expected_seconds || p.serial_seconds - q.serial_seconds);
}

const shared = (made, { model, batch, sequence }, several) => {
  const all = meshes(made, model, sequence, several);
  return [all, all.filter(({ data, fsdp, expert }) => batch / sequence % (data * fsdp * expert) === 0)];
};

// If nothing fits: the smallest changes with which something does: [words, best choice].
function* remedies(made, given) {
  const kinds = explorer.data.most.remat; // without policies that have other names
  const more = kinds.slice(max(kinds.indexOf(given.remat), 0) + 1)
    .filter((remat) => explorer.data.remat[remat].recomputes.includes("mlp"));
  const tries = more.filter((remat) => !unknownHost({ ...given, remat })).map(
    (remat) => ["remat", `remat ${remat}`, made, remat]);
  for (const by of [2, 4, 8, 16]) {
    const larger = machine(given.chip, made.chips * by, made.chip.torus.length && made.slices > 1 ? made.slices * by : 1);
    if (!larger.error) tries.push(["chips", `${made.chips * by} chips`, larger, given.remat]);
  }
  const seen = new Set();
  for (const [kind, what, on, remat] of tries) {
    const [, even] = seen.has(kind) ? [] : shared(on, given, isSeveral(on));
    const [best] = even?.length ? priced(on, even, { ...given, remat }) : [];
    if (best?.fits) {
      seen.add(kind);
      yield [what, best];
    }
  }
}

function plan(given, helps = true) {
  const { model, chip, chips, slices, batch, sequence } = given;
  const made = machine(chip, chips, slices);
  if (made.error) return made;
  const wrong = (words) => ({ error: { words } });
  if (notAModel(model)) return notAModel(model);
  if (batch % sequence) {
    const below = batch - batch % sequence;
    return wrong(`a batch of ${batch} tokens is not a whole number of sequences of ${sequence} tokens; use ` +
      `${below ? `${below} or ` : ""}${below + sequence}`);
  }
  const error = noPeak(chip, given.products) || unknownHost(given) || noAdapters(model, given);
  if (error) return error;
  const [all, even] = shared(made, given, isSeveral(made));
  if (!even.length) {
    const enough = all.reduce((least, { data, fsdp, expert }) =>
      min(least, Math.ceil(batch / sequence / (data * fsdp * expert)) * data * fsdp * expert), Infinity);
    return wrong(`${batch / sequence} sequences cannot be shared evenly by ${chips} chips in any mesh whose tensor axis ` +
      `fits ${model.heads} heads; use ${enough} sequences (${enough * sequence} tokens), or fewer chips`);
  }
  const choices = priced(made, even, given);
  const fitting = choices.filter(({ fits }) => fits).length;
  return { choices, fitting, uneven: all.length - even.length, remedies: fitting || !helps ? [] : [...remedies(made, given)] };
}

// --- In words ---
const sizeText = (n) => (n < 1e8 ? `${Number((n / 1e6).toPrecision(2))} MB` : `${Number((n / 1e9).toPrecision(2))} GB`);
const percent = (share) => `${share >= 0.1 ? Math.round(100 * share) : Number((100 * share).toPrecision(1))} %`;

// Why a choice comes after the first: what adds most to the time to expect.
function why(choice, first, usable) {
  if (choice === first && choice.fits) return "the first";
  if (!choice.fits) return `does not fit: ${sizeText(choice.total_bytes - usable)} too much`;
  const slower = choice.expected_seconds / first.expected_seconds - 1;
  if (slower < 0) return `${percent(-slower)} faster, but has ${choice.axes} axes instead of ${first.axes}`;
  const more = (of) => of(choice) - of(first);
  const reasons = [
    [more((c) => c.work_seconds), "its products are smaller, and so slower"],
    [more((c) => c.bubble * (c.work_seconds + c.exposed_seconds)), `waits ${percent(choice.bubble)} in the bubble`],
    [more((c) => c.update_seconds), `updates ${sizeText(more((c) => c.state_bytes))} more of state`],
    [more((c) => c.exposed.host), "waits longer for the host's memory"],
    ...AXES.map((axis) => {
      const bytes = more((c) => c.sent_bytes[axis]);
      return [more((c) => c.exposed[axis]), bytes > 0 ? `sends ${sizeText(bytes)} more along ${axis}`
        : `hides less of what it sends along ${axis}`];
    }),
  ];
  const [seconds, words] = reasons.reduce((most, one) => (one[0] > most[0] ? one : most));
  if (seconds <= 0) return "as fast";
  return `${percent(slower)} slower: ${words}`;
}

Object.assign(explorer, { plan, why });
});
