"""Style sheet and legend of the accuracy page: light and dark, and nothing from a network."""

STYLE = """
:root{--paper:#fff;--ink:#1c1e21;--faint:#61666d;--grid:#dfe2e6;--fine:#f0f1f3;--bad:#b3261e;--bar:#2a6fbb;
--a15:#2a6fbb;--a8:#c2541d;--q4:#2e7d4f}
@media (prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e7e9ec;--faint:#9aa1aa;--grid:#34383e;--fine:#23262b;
--bad:#ff8a80;--bar:#6aa9f0;--a15:#6aa9f0;--a8:#f19a63;--q4:#6cc493}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:86rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.1rem;margin:2rem 0 .5rem}.lead{font-size:1.05rem;max-width:60rem}.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:100%}
td,th{padding:.32rem .7rem;text-align:right;border-bottom:1px solid var(--grid)}
thead th{color:var(--faint);font-weight:600;border-bottom:2px solid var(--grid)}
th:first-child{text-align:left;font-weight:600}.bad{color:var(--bad);font-weight:700}
.bar{display:inline-block;width:3.5rem;height:.55rem;background:var(--fine);border:1px solid var(--grid)}
.bar{margin-right:.5rem}
.bar i{display:block;height:100%;background:var(--bar)}.bad .bar i{background:var(--bad)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;margin:1.75rem 0 .5rem;color:var(--ink)}
.key{width:24px;height:8px;margin-right:.5rem;vertical-align:middle}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(32rem,100%),1fr));gap:1.25rem 2rem}
figure{margin:0}figcaption{color:var(--faint);margin-bottom:.25rem}figcaption b{color:var(--ink)}
.gap{color:var(--bad);font-size:.85rem;margin:0}
svg{width:100%;height:auto;display:block}svg.key{display:inline-block;width:24px}
svg text{font:12px system-ui,sans-serif;fill:var(--faint)}svg .small{font-size:9px}svg .label{fill:var(--ink)}
.grid{stroke:var(--grid)}.fine{stroke:var(--fine)}.axis,.tick{stroke:var(--faint)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.line:hover{stroke-width:3.5}.line circle{stroke:none}
.base-a15{stroke:var(--a15);color:var(--a15)}.base-a8{stroke:var(--a8);color:var(--a8)}
.base-q4{stroke:var(--q4);color:var(--q4)}.line circle{fill:currentColor}
.extra-s16{stroke-dasharray:7 3}.extra-kv16{stroke-dasharray:2 3}.extra-s16-kv16{stroke-dasharray:8 3 2 3}
.extra-delta{stroke-dasharray:12 4;stroke-width:2.6}.extra-s16-kv16-delta{stroke-dasharray:8 3 1 3 1 3}
.bound{opacity:.4}dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.25rem;max-width:62rem}
dt{font-weight:600}dd{margin:0}footer{color:var(--faint);font-size:.9rem;margin-top:2rem}
footer ul,main>ul{padding-left:1.1rem}figure .legend{margin:0 0 .25rem}
@media (max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.5rem}}
"""

NOTES = """<h2>How to read it</h2><dl>
<dt>rel_L2</dt><dd>Norm of the error of all logits over the norm of the logits, against the model in float64.</dd>
<dt>quantisation</dt><dd>The same of a float64 run on the very codes, half-width states and cache rows that the device
made: what the lane's formats cost. A lane of q4 counts its weights here.</dd>
<dt>arithmetic</dt><dd>The device against that run: what float32 and the order of its sums cost.</dd>
<dt>KL, same top</dt><dd>Divergence of the next token's distribution from float64's, in nats, averaged over positions;
and the share of positions with the same best token.</dd>
<dt>share of bound</dt><dd>Largest error of a logit over its bound, which follows from the size of every rounding of the
lane (oracle/error_bound.py). Above one, a kernel rounds where it should not.</dd>
<dt>golden</dt><dd>Whether the recorded streams hold on this device, or the first step that differs.</dd>
<dt>MB a step</dt><dd>Weights that one decode step reads.</dd>
<dt>tok/s</dt><dd>Decoding speed of this run's device and model, one sequence. Withheld from a lane whose locks did not
pass on this commit.</dd></dl>
"""
