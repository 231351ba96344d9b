// The sizes of the model that a config.json describes, for some of its types: shardlab.models.from_config.
(function (explorer) {
"use strict";
const { nearest, plain } = explorer;

explorer.fromConfig = (text) => {
  const wrong = (words) => ({ error: { words } });
  let config;
  try {
    config = JSON.parse(text);
  } catch (error) {
    return wrong(`this is no JSON: ${error.message}`);
  }
  config = config?.text_config ?? config; // of a model that sees pictures too
  if (typeof config !== "object" || !config || Array.isArray(config)) return wrong("this is no table of sizes, as a config.json is");
  const { types, keys } = explorer.data;
  const type = String(config.model_type ?? "");
  const local = types[type]; // which layers have a window: "all", "upper" or ""
  if (local === undefined) {
    const known = Object.keys(types), near = nearest(type, known);
    return wrong(`model_type is “${type}”; this page reads ${known.join(", ")}${near ? `; did you mean “${near}”?` : ""}; shardlab plan ` +
      "with the path of a config.json may know more");
  }
  const sizes = { gated: true, tied: config.tie_word_embeddings === true };
  for (const [size, names] of Object.entries(keys)) {
    const key = names.find((name) => (config[name] ?? null) !== null);
    if (key === undefined) continue;
    const value = config[key];
    if (!Number.isInteger(value) || value < 0 || value > 1e9) {
      return wrong(`${key} is ${JSON.stringify(value).slice(0, 40)}; it should be a whole number of at most ${plain(1e9)}`);
    }
    sizes[size] = value;
  }
  if (sizes.d_model && sizes.heads) sizes.head_dim ??= Math.floor(sizes.d_model / sizes.heads);
  const required = Object.keys(keys).slice(0, 7);
  const missing = required.find((size) => !sizes[size]);
  if (missing) return wrong(`the configuration has no ${missing}: ${keys[missing].join(" or ")}`);
  for (const size of Object.keys(keys)) sizes[size] ??= 0;
  const { layers, window } = sizes, kinds = config.layer_types ?? null;
  sizes.local_layers = 0;
  if (window && local && (local !== "upper" || config.use_sliding_window === true)) {
    if (kinds !== null && !(Array.isArray(kinds) && kinds.length === layers)) {
      return wrong(`layer_types is ${JSON.stringify(kinds).slice(0, 40)}; write a list of ${layers} types`);
    }
    const first = local === "upper" ? Math.min(config.max_window_layers ?? 28, layers) : 0;
    sizes.local_layers = kinds ? kinds.filter((kind) => kind === "sliding_attention").length : layers - first;
  }
  if (!sizes.local_layers) sizes.window = 0;
  return sizes;
};
})(window.explorer = window.explorer || {});
