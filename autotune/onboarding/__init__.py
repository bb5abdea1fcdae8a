"""First specs: a study's spec made from what somebody has already, a trainer's configuration or a script of their own.

Modules, from the parts to the whole:

    draft.py             Draft: a spec as YAML with comments, and what is still to be filled in
    present_files.py     a file or an exported folder as a `Present`, and the trainer whose configuration it is
    present_spec.py      import: the draft of a trainer's present configuration
    script.py            Script: a Python program's options, constants and imports, read without running it
    syntax.py, script_options.py, library_options.py   the parts of reading it
    option_names.py      which knob an option stands for, by its name
    findings.py          what all options of a script came to
    printed_lines.py     patterns from the f-strings that a program prints
    script_spec.py       the draft of a script
    first_spec.py        init: of a script or a configuration, whichever it is
"""
