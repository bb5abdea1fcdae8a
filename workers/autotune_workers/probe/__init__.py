"""The probe: what a trial's program does, seen from inside of it, without a change of the program.

injected/             what is copied into a folder on PYTHONPATH of the program: the standard library until the program itself imports torch
    sitecustomize.py  Python runs it when it starts; goes on to a `sitecustomize` of the user's own
    channel.py        the reports: lines of JSON in a file for each process
    written_files.py  files that are written or removed outside of the trial's folder; keeps what was there before
    training.py       optimizer steps, their micro-batches, sequences, times and memory, by public hooks of torch
    model_facts.py    what is trained: parameters, types, wrappers, optimizers, libraries
    own_files.py      your files that the program runs: imported modules, and files that its command names
    parsed_options.py the options that the program's parser has, where they are asked for; `parsers.py`: the libraries of parsers
probe_folder.py       the keeper's side: makes the folder, reads the reports, puts files back, removes the folder

Nothing of it ever raises into the program; whatever goes wrong is reported once and ends the
watching. Processes that take no optimizer step (launchers, workers of data loaders, compilers)
report files alone.

    torch     {"pid", "rank", "version"}                                torch was imported by this process
    step      {"pid", "rank", "steps": [...], "peak": ..., "reserved"}  steps that are done, see `training.Steps`
    facts     {"pid", "rank", ...}                                      after the first and the third step, see `model_facts`
    options   {"pid", "program", "options": [...]}                      before the first step, on rank 0 and where asked for, see `parsed_options`
    files     {"pid", "files": [[PATH, HOW, EXISTED, KEPT], ...]}       HOW: written or removed
    unkept    {"pid", "files": [PATH, ...], "why": TEXT}                these cannot be kept; the process waits, before it changes them, to be ended
    lost      {"files": [TEXT, ...]}                                    of the keeper itself: these could not be put back, and where they are
    out_of_memory {"pid", "where", "error"}                             memory ran out there, whether or not the program catches it
    trouble   {"pid", "error"}                                          the watching ended
"""
