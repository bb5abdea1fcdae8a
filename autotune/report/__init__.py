"""What people see of studies: `terminal` for tables and bars in a terminal.

terminal.py   labels, sizes, times; tables and stacked bars as rich renderables, with a plain-character fallback
"""
