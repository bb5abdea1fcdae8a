"""Writes first specs: from a training script, from a script or command that launches one, or from a
trainer's current configuration.

Modules, from the whole to the parts:

    first_spec.py             init: the draft for a script, a launch script, a command or a configuration; the launch that init --run starts
    imported_spec.py          import: the draft for a trainer's current configuration; present_post_training.py: its `rl` and `rollout`
    draft.py                  Draft: a spec as YAML with comments, and what is still to be filled in; the cluster that it names
    configuration_files.py    a file or an exported folder as a `PresentConfiguration`, the trainer that it belongs to, and knobs that files of DeepSpeed and accelerate set
    script/                   a training script
        reading.py            Script: a Python program's options and code, parsed without running it
        syntax.py, options.py, library_options.py   used by it
        code.py               what a program's code does regardless of its options
        written_arguments.py  arguments that the code itself passes to transformers' Trainer
        option_names.py       the knob that an option sets, by its name
        option_matches.py     all options of a script, matched to knobs; current ranks and batch
        print_statements.py   what a program prints and how often, and log patterns from that
        argv.py               the command of a script's draft
        draft.py              the draft for a script
    launch/                   what starts a training script
        command_words.py      a command: launchers, program, arguments
        launch_script.py      a launch script: the program that it starts, and how
        manifest.py           what a manifest or a Makefile starts, as a launch script
        given_options.py      values that the launch passes to the script's options
        started_program.py    the draft for the program that a launch script starts
        watched_launch.py     init --run: runs the launch under the probe for a few optimizer steps
        seen_draft.py         the draft corrected by what the probe observed
        own_outputs.py        replaces paths that the run wrote to by the trial's own folder
    settings/                 programs that are configured by a settings file
        program.py            LLaMA-Factory, axolotl           draft.py   the draft for such settings
        file.py               settings files of scripts; DeepSpeed's with placeholders
"""
