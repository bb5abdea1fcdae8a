"""The probe: observes a trial's program from inside, without changing the program.

injected/             copied into a folder on the program's PYTHONPATH; uses only the standard library until the program imports torch
    sitecustomize.py  run by Python at startup; also runs the user's `sitecustomize`
    channel.py        writes reports: lines of JSON in a file per process
    written_files.py  records files written or removed outside of the trial's folder, and backs up existing ones
    training.py       optimizer steps with micro-batches, sequences, times and memory, by torch's public hooks
    model_facts.py    facts about the model: parameters, types, wrappers, optimizers, libraries
    own_files.py      the user's files that the program runs: imported modules, and files that its command names
    parsed_options.py the options of the program's parser, on request; `parsers.py`: the supported parsers
probe_folder.py       the keeper's side: creates the folder, reads the reports, restores files, removes the folder

The probe never raises into the program; an error is reported once and ends the observation.
Processes without optimizer steps (launchers, data-loader workers, compilers) report only files.

    torch     {"pid", "rank", "version"}                                this process imported torch
    step      {"pid", "rank", "steps": [...], "peak": ..., "reserved"}  completed steps, see `training.Steps`
    facts     {"pid", "rank", ...}                                      after the first and the third step, see `model_facts`
    options   {"pid", "program", "options": [...]}                      before the first step, on rank 0 if requested, see `parsed_options`
    files     {"pid", "files": [[PATH, HOW, EXISTED, KEPT], ...]}       HOW: written or removed
    unkept    {"pid", "files": [PATH, ...], "why": TEXT}                these cannot be backed up; the process waits to be ended before it changes them
    lost      {"files": [TEXT, ...]}                                    from the keeper: files that could not be restored, and where they are
    out_of_memory {"pid", "where", "error"}                             memory ran out there, whether or not the program caught it
    trouble   {"pid", "error"}                                          an error ended the observation
"""
