"""Readers of the current configuration of training programs that are more than a trainer of the catalog holds beside what it writes.

torchtitan_toml.py       torchtitan's job file (0.2)
torchtitan_python.py     torchtitan's Python configuration (0.3)
accelerate_yaml.py       the file of `accelerate config`
megatron_flags.py        Megatron-LM's argument list: a shell script, a text file or a command
program_arguments.py     the arguments of the program that is exported, or of the user's own
shell_words.py           the commands of a shell script; shell_statements.py, shell_folders.py: its statements, and where they run
"""
