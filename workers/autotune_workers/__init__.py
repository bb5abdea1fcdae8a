"""What executes trials: runners, gangs of warm rank processes, and the native training loop.

    runners/     the registered runners: local, ray, simulated
    gang/        one attempt on several ranks: state machine, deadlines, kill ladder, failure kinds, messages
    process/     rank processes and other programs on this machine: fork server, keepers, memory, signals
    ray/         rank pools on a Ray cluster: connection, placement, actors, adoption
    training/    the native training loop: model, parallelism, step, measurement
    calibrate.py    measures this machine for the cost model
    speed_variables.py    environment variables that may change the speed
    launch.py       trains an exported config outside any study, under torchrun
    text/           the text that trials train on when no data is given

`autotune` finds runners and calibrators by their entry points and imports nothing from here.
"""
