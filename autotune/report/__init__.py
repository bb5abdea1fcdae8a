"""Presentation of studies: figures, a self-contained HTML page, Markdown for a pull request, tables
and bars in a terminal, two studies side by side.

figures/             figures of a study, as values       svg/                drawing: axes, bars,
tiles, lanes page.py              a study as one HTML page            page_frame.py       the frame
of an HTML page, tables markdown_page.py     a study as Markdown                 markdown_text.py
text, tables and bars in Markdown study_facts.py       facts that both reports contain
findings.py         why the winner won, in sentences reward_tables.py     rewards by parts, the
Pareto front  notes.py            notes on trials, shared notes once comparison.py        studies or
trials side by side      history.py          events of a study as text terminal.py          tables
and bars for the terminal    table_layout.py     tables that adapt to the terminal's width
fit_text.py          the answer of `autotune fit`        fit_page.py         the same as one HTML
page with figures memory_over_step.py  memory over a step, as a sketch     target_text.py      a
target's ranking as text cluster_table.py     clusters side by side               deletion_notice.py
the consequences of deleting a study notebook.py          a result in a notebook
"""
