# A keyboard that the kernel takes for one, with a key that does nothing anywhere (F24). Says the name of its device, and then a line
# for each line that it reads, once it has pressed that key. The device is there as long as this is.
import fcntl
import os
import struct
import sys
import time

UI_SET_EVBIT, UI_SET_KEYBIT, UI_DEV_CREATE, UI_GET_SYSNAME = 0x40045564, 0x40045565, 0x5501, 0x8040552C
EV_SYN, EV_KEY, KEY_F24, BUS_USB = 0, 1, 194, 3

device = os.open("/dev/uinput", os.O_WRONLY)
fcntl.ioctl(device, UI_SET_EVBIT, EV_KEY)
fcntl.ioctl(device, UI_SET_KEYBIT, KEY_F24)
os.write(device, struct.pack("80s4HI1024x", b"PC Farm's test", BUS_USB, 1, 1, 1, 0))
fcntl.ioctl(device, UI_DEV_CREATE)
name = fcntl.ioctl(device, UI_GET_SYSNAME, bytes(64)).split(b"\0")[0].decode()
events = [entry for entry in os.listdir(f"/sys/class/input/{name}") if entry.startswith("event")]
# Its node and the node's permissions come a moment later.
deadline = time.monotonic() + 10
while not os.access(f"/dev/input/{events[0]}", os.R_OK) and time.monotonic() < deadline:
    time.sleep(0.05)
print(events[0], flush=True)
for _ in sys.stdin:
    for kind, code, value in ((EV_KEY, KEY_F24, 1), (EV_SYN, 0, 0), (EV_KEY, KEY_F24, 0), (EV_SYN, 0, 0)):
        os.write(device, struct.pack("@llHHi", 0, 0, kind, code, value))
    print("pressed", flush=True)
