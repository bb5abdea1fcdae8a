"""First specs: a study's spec made from a training script, from a script that launches one, or from a trainer's present configuration.

Modules, from the parts to the whole:

    draft.py                  Draft: a spec as YAML with comments, and what is still to be filled in; the cluster that it names
    configuration_files.py    a file or an exported folder as a `PresentConfiguration`, the trainer that it belongs to, and knobs that files of DeepSpeed and accelerate decide
    imported_spec.py          import: the draft of a trainer's present configuration
    script.py                 Script: a Python program's options, constants and imports, read without running it
    syntax.py, script_options.py, library_options.py   used by `script`
    option_names.py           which knob an option stands for, by its name
    option_matches.py         all options of a script, matched to knobs; how many ranks it is started on
    print_statements.py       what a program prints and how often, and patterns from that
    script_argv.py            the command of a script's draft
    script_spec.py            the draft of a script
    settings_program.py       programs that are told by a file of settings: LLaMA-Factory, axolotl
    settings_draft.py         the draft of such settings
    command_words.py          a command: launchers, program, arguments
    launch_script.py          a launch script: the program that it starts, and how
    settings_file.py          the files of settings of such a program, DeepSpeed's with placeholders
    hub_names.py              the model that a program names
    started_program.py        the draft of what a launch script starts
    first_spec.py             init: of a script, a launch script, a command or a configuration, whichever it is; such a launch as something that can be started
    watched_launch.py         init --run: it runs under the probe for a few optimizer steps
    seen_draft.py             the draft with what was seen in place of what was read
"""
