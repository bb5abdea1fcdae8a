"""The style sheet of the report: light and dark, with no font or image from elsewhere."""

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee6;--page:#fff;--card:#f6f8fa;--accent:#2f6fde;--bad:#c4314b;--good:#1f8a4c}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b4;--line:#39424e;--page:#14181d;--card:#1d232a;--accent:#6ea3ff;--bad:#ff7b8e;--good:#58c98a}}
*{box-sizing:border-box}body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
main{max-width:1080px;margin:0 auto;padding:24px 20px 64px}h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:19px;margin:36px 0 10px}
p{margin:6px 0}.soft{color:var(--soft)}.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px;margin:18px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:13px}.answer{background:var(--card);border-left:4px solid var(--accent);border-radius:6px;padding:12px 16px;margin:16px 0}
.answer code{font-size:15px}.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:20px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}figcaption{color:var(--soft);font-size:13px;margin-top:6px}
figure h3{font-size:15px;margin:0 0 6px}svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}
.tick,.row{fill:var(--soft)!important;font-size:11px}.row{fill:var(--ink)!important}.name{font-size:12px}.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.dot{fill:var(--accent);fill-opacity:.75}.best{fill:var(--good);stroke:var(--page);stroke-width:2}.base{fill:none;stroke:var(--ink);stroke-width:2}
.fail{stroke:var(--bad);stroke-width:2;fill:none}.line{fill:none;stroke:var(--good);stroke-width:2}.dashed{fill:none;stroke:var(--soft);stroke-dasharray:5 4}
.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:6 3}.mark{stroke:var(--ink);stroke-width:3}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--soft);font-weight:600;white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}tr.won td{background:color-mix(in srgb,var(--good) 12%,transparent)}
code,pre{font-family:ui-monospace,monospace;font-size:13px}pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px 12px;overflow-x:auto;margin:8px 0}
.COMPLETED{color:var(--good)}.FAILED{color:var(--bad)}details{margin:4px 0}summary{cursor:pointer}td.why{max-width:360px;overflow-wrap:anywhere}
@media print{main{max-width:none}figure,.card{break-inside:avoid}}
"""
