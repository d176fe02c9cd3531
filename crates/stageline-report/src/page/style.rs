//! The CSS of an HTML page about a run, and of its charts.

/// Number of different colours for lines and bars of charts; charts with more lines reuse them.
pub(super) const COLOURS: usize = 8;

/// The colours of a page or chart, for light and for dark pages. The colours of lines and bars are from Okabe and Ito
/// (2008); people with red-green blindness can tell them apart.
pub(super) const COLOUR_SCHEME: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--faint:#6a737d;--rule:#d8dee4;--paper:#ffffff;\
--k0:#0072b2;--k1:#d55e00;--k2:#009e73;--k3:#cc79a7;--k4:#b58900;--k5:#3a9bd1;--k6:#6a737d;--k7:#7a3e9d}\
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#9aa4af;--rule:#30363d;--paper:#0d1117;\
--k0:#58a6e0;--k1:#ff8c42;--k2:#3fc79a;--k3:#e6a3c6;--k4:#e5c04b;--k5:#8fd0f5;--k6:#9aa4af;--k7:#b99ad8}}";

/// The CSS style of the text, tables and legends of an HTML page.
pub(super) const PAGE: &str = "\
body{margin:2rem auto;padding:0 1rem;max-width:84rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2.5rem 0 .25rem;border-top:1px solid var(--rule);padding-top:1rem}\
p{margin:.25rem 0 1rem;color:var(--faint);max-width:60rem}\
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));gap:1rem}\
figure{margin:0;overflow-x:auto}svg.chart{width:100%;height:auto}\
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;list-style:none;padding:0 0 0 4rem;margin:0;font-size:12px}\
.legend svg{width:24px;height:8px;margin-right:.35rem}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--rule)}th:first-child,td:first-child{text-align:left}";

/// The CSS style of the lines, bars, axes and text inside a chart on a run's page.
pub(super) const CHART: &str = "\
.paper{fill:var(--paper)}.title{font-weight:600;font-size:14px;fill:var(--ink)}.axis{font-size:12px;fill:var(--faint)}\
.tick{font-size:11px;fill:var(--faint)}.grid{stroke:var(--rule)}\
.arrow{stroke:var(--faint);stroke-width:.75;opacity:.6}.label{font-size:12px;fill:var(--paper)}\
.line{fill:none;stroke-width:2}.dot,.bar,.act{stroke:none}\
.line.c0{stroke:var(--k0)}.line.c1{stroke:var(--k1)}.line.c2{stroke:var(--k2)}.line.c3{stroke:var(--k3)}\
.line.c4{stroke:var(--k4)}.line.c5{stroke:var(--k5)}.line.c6{stroke:var(--k6)}.line.c7{stroke:var(--k7)}\
.dot.c0,.bar.c0,.act.c0{fill:var(--k0)}.dot.c1,.bar.c1,.act.c1{fill:var(--k1)}.dot.c2,.bar.c2,.act.c2{fill:var(--k2)}\
.dot.c3,.bar.c3,.act.c3{fill:var(--k3)}.dot.c4,.bar.c4,.act.c4{fill:var(--k4)}.dot.c5,.bar.c5,.act.c5{fill:var(--k5)}\
.dot.c6,.bar.c6,.act.c6{fill:var(--k6)}.dot.c7,.bar.c7,.act.c7{fill:var(--k7)}";
