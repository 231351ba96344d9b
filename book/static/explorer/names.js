// The known name that a mistyped one resembles most, as shardlab suggests it: Python's difflib.get_close_matches.
(function (explorer) {
"use strict";

// How many letters agree: those of the longest common part, and so on to its left and to its right.
function agreeing(a, b) {
  let [start, where, length] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    for (let j = 0; j < b.length; j++) {
      let n = 0;
      while (i + n < a.length && a[i + n] === b[j + n]) n++;
      if (n > length) [start, where, length] = [i, j, n];
    }
  }
  return length && length + agreeing(a.slice(0, start), b.slice(0, where)) +
    agreeing(a.slice(start + length), b.slice(where + length));
}

explorer.nearest = (name, known) => {
  const typed = name.slice(0, 40).toLowerCase();
  let [best, score, found] = ["", 0.5, ""];
  for (const one of known) {
    const lower = one.toLowerCase();
    const share = 2 * agreeing(lower, typed) / (lower.length + typed.length);
    if (share > score || (share === score && lower >= best)) [best, score, found] = [lower, share, one];
  }
  return found;
};
})(window.explorer = window.explorer || {});
