"""What people see of studies: figures, a self-contained HTML page, Markdown for a pull request,
tables and bars in a terminal, two studies side by side.

figures/          figures of a study, as values      svg/              drawing: axes, bars, tiles, lanes
page.py           a study as one HTML page           page_frame.py     a whole HTML page, tables
markdown_page.py  a study as Markdown                markdown_text.py  text, tables and bars in Markdown
study_facts.py    what both say of a study           findings.py       why it won, in sentences
reward_tables.py  rewards by parts, the Pareto front  notes.py         notes of trials, shared ones once
comparison.py     studies or trials side by side     history.py        events of a study in words
terminal.py       tables and bars for the terminal   table_layout.py   a table that suits the terminal's width
fit_text.py       "will it fit?" as words and rows   fit_page.py       the same as one HTML page with its figure
memory_over_step.py  memory over a step, as a sketch
"""
