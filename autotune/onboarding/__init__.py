"""First specs: a study's spec made from a training script, from a script that launches one, or from
a trainer's present configuration.

Modules, from the parts to the whole:

    first_spec.py             init: of a script, a launch script, a command or a configuration, whichever it is; such a launch as something that can be started
    imported_spec.py          import: the draft of a trainer's present configuration; present_post_training.py: its `rl` and `rollout`
    draft.py                  Draft: a spec as YAML with comments, and what is still to be filled in; the cluster that it names
    configuration_files.py    a file or an exported folder as a `PresentConfiguration`, the trainer that it belongs to, and knobs that files of DeepSpeed and accelerate decide
    script/                   a training script
        reading.py            Script: a Python program's options, and the text that has them, read without running it
        syntax.py, options.py, library_options.py   used by it
        code.py               what a program does whatever its options say
        written_arguments.py  what its own text gives transformers' Trainer
        option_names.py       which knob an option stands for, by its name
        option_matches.py     all options of a script, matched to knobs; the ranks and the batch that they make today
        print_statements.py   what a program prints and how often, and patterns from that
        argv.py               the command of a script's draft
        draft.py              the draft of a script
    launch/                   what starts it
        command_words.py      a command: launchers, program, arguments
        launch_script.py      a launch script: the program that it starts, and how
        manifest.py           what a manifest or a Makefile starts, as a launch script
        given_options.py      what the options of the script are given
        started_program.py    the draft of what a launch script starts
        watched_launch.py     init --run: it runs under the probe for a few optimizer steps
        seen_draft.py         the draft with what was seen in place of what was read
        own_outputs.py        the trial's own folder in place of paths that the run wrote to
    settings/                 programs that take a file of settings
        program.py            LLaMA-Factory, axolotl           draft.py   the draft of such settings
        file.py               the files of settings of a script, DeepSpeed's with placeholders
"""
