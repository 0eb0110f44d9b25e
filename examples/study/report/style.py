"""The style of the page: light and dark, from a phone's width upwards."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --text: #1c2126; --soft: #5b6670; --rule: #d9dee3; --wash: #f3f5f7;
  --c0: #0b6db7; --c1: #cf4f00; --c2: #00875f; --c3: #b8479a; --c4: #97690a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --text: #e6eaee; --soft: #9aa6b1; --rule: #343c44;
    --wash: #1d2329;
    --c0: #5cb3f5; --c1: #ff8a4a; --c2: #35c79a; --c3: #ea8ed0; --c4: #dcae4a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
h4 { font-size: 1rem; font-weight: 600; margin: 1.4rem 0 .1rem; }
p, ul, dl { max-width: 46rem; }
code { font-size: .9em; }
.small, figcaption, dl, .notes { color: var(--soft); font-size: .875rem; }
.small { margin: .3rem 0; }
.notes { padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--text); font-weight: 600; }
dd { margin: 0; }
details { margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
.common { grid-template-columns: max-content 1fr max-content 1fr; max-width: none; }
.common dd { overflow-wrap: anywhere; }
@media (max-width: 50rem) { .common { grid-template-columns: max-content 1fr; } }

.scroll { overflow-x: auto; }
.hint { display: none; }
@media (max-width: 50rem) { .hint { display: block; } }
table {
  border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
}
th, td {
  padding: .3rem .7rem; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top;
}
th { font-weight: 600; white-space: nowrap; }
.methods td { white-space: nowrap; }
.methods th:not(:first-child), .methods td:not(:first-child) { text-align: right; }
.methods td:first-child { min-width: 10rem; }
.methods td:first-child, .settings td:first-child {
  position: sticky; left: 0; background: var(--page);
}
.methods td.long { white-space: normal; overflow-wrap: anywhere; }
.settings td { overflow-wrap: anywhere; }
.settings td:first-child { overflow-wrap: normal; color: var(--soft); }
tr.marked td, .methods tr.marked td:first-child {
  background: var(--wash); font-weight: 600;
}

figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
.charts {
  display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr));
}
.panels {
  display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 10rem), 1fr));
}
@media (min-width: 50rem) {
  .panels { grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); }
}
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
@media (max-width: 40rem) { svg text { font-size: 14px; } }
.below { text-anchor: middle; }
.beside { text-anchor: end; }
.grid { stroke: var(--rule); stroke-width: 1; fill: none; }
.line {
  fill: none; stroke: var(--stroke); stroke-width: 1.8; stroke-linejoin: round;
  stroke-linecap: round;
}
.band { fill: var(--stroke); opacity: .16; }
.panels .line { stroke-width: 1.3; }
.line:hover, .panels .line:hover { stroke-width: 4; }
.reference { --stroke: var(--text); stroke-width: 3; }
.other { --stroke: var(--soft); stroke-width: 1; opacity: .45; }
.dashed { stroke-dasharray: 6 4; }
.c0 { --stroke: var(--c0); } .c1 { --stroke: var(--c1); } .c2 { --stroke: var(--c2); }
.c3 { --stroke: var(--c3); } .c4 { --stroke: var(--c4); }
.named { display: flex; align-items: baseline; gap: .5rem; }
.swatch { width: 28px; height: 12px; flex: none; }
.legend {
  list-style: none; padding: 0; margin: .5rem 0 0; max-width: none; font-size: .875rem;
  display: grid; gap: .1rem 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 12rem), 1fr));
}
.legend li { overflow-wrap: anywhere; }
.bar {
  display: inline-block; width: 8rem; height: .6rem; border-radius: .3rem;
  margin: 0 .4rem;
}
"""
