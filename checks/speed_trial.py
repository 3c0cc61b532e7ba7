"""Time small programs with a wheel's own interpreter (Python 3.6 and newer).

    python speed_trial.py trial.json

prints, as the last line, {case: [wall seconds of a call, processor seconds of a call] or why it does not run}.
"""

import json
import sys
import time

SHORTEST_SECONDS = 0.002  # of a loop that is timed: shorter ones are made of more calls
FEWEST_LOOPS = 5


def time_loop(call, number):
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(number):
        call()
    return time.perf_counter() - wall, time.process_time() - cpu


def time_call(call, seconds):
    """Return the least wall time and the least processor time of a call, within so many seconds."""
    call()
    number, took = 1, 0.0
    while took < SHORTEST_SECONDS:
        number, took = number * 2, time_loop(call, number)[0]
    loops = []
    until = time.perf_counter() + seconds
    while len(loops) < FEWEST_LOOPS or time.perf_counter() < until:
        loops.append(time_loop(call, number))
    return [min(loop[measure] for loop in loops) / number for measure in (0, 1)]


def time_case(case, common, seconds):
    names = {}
    try:
        exec("\n".join(common + case["setup"] + ["def call():", "    " + case["run"]]), names)  # noqa: S102 (our own facts)
        return time_call(names["call"], seconds)
    except Exception as error:  # noqa: BLE001 (what a release lacks is told, whatever it raises)
        return "{}: {}".format(type(error).__name__, str(error).split("\n")[0][:200])


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trial = json.load(file)
    times = {
        case["name"]: time_case(case, trial["setup"], trial["seconds"]) for case in trial["cases"]
    }
    sys.stdout.write("\n" + json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
