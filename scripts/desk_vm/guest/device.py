"""An input device made with uinput: `device.py keyboard|mouse|joystick NAME`, then one command per line of standard input.

    key              presses and releases a key
    move DX DY       moves the mouse
    axis VALUE       moves the joystick's first axis
    jitter N PAUSE   moves the mouse by one count to and fro, N times, every PAUSE seconds
    drift N PAUSE    moves the axis between 0 and 1, N times, every PAUSE seconds

Answers each command with `done`. The device disappears when standard input ends.
"""

import sys
import time

from evdev import AbsInfo, UInput, ecodes

KINDS = {
    "keyboard": {ecodes.EV_KEY: list(range(ecodes.KEY_ESC, ecodes.KEY_F10))},
    "mouse": {ecodes.EV_KEY: [ecodes.BTN_LEFT, ecodes.BTN_RIGHT], ecodes.EV_REL: [ecodes.REL_X, ecodes.REL_Y]},
    "joystick": {
        ecodes.EV_KEY: [ecodes.BTN_TRIGGER, ecodes.BTN_THUMB],
        ecodes.EV_ABS: [(axis, AbsInfo(0, -32767, 32767, 0, 0, 0)) for axis in (ecodes.ABS_X, ecodes.ABS_Y)],
    },
}


def main():
    kind, name = sys.argv[1:]
    with UInput(KINDS[kind], name=name) as device:
        print("ready", device.device.path, flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            COMMANDS[command](device, *map(float, arguments))
            print("done", flush=True)


def key(device):
    for value in (1, 0):
        device.write(ecodes.EV_KEY, ecodes.KEY_A, value)
        device.syn()


def move(device, dx, dy):
    device.write(ecodes.EV_REL, ecodes.REL_X, int(dx))
    device.write(ecodes.EV_REL, ecodes.REL_Y, int(dy))
    device.syn()


def axis(device, value):
    device.write(ecodes.EV_ABS, ecodes.ABS_X, int(value))
    device.syn()


def jitter(device, count, pause):
    for number in range(int(count)):
        device.write(ecodes.EV_REL, ecodes.REL_X, 1 if number % 2 == 0 else -1)
        device.syn()
        time.sleep(pause)


def drift(device, count, pause):
    for number in range(int(count)):
        axis(device, number % 2)
        time.sleep(pause)


COMMANDS = {"key": key, "move": move, "axis": axis, "jitter": jitter, "drift": drift}

if __name__ == "__main__":
    main()
