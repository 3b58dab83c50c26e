"""A fed program that does what its payload says, good or bad."""
import ctypes, json, mmap, os, signal, socket, subprocess, sys, time


def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def start_orphan():
    """A grandchild in a session of its own, whose parent is gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            while True:
                time.sleep(1)
        os._exit(0)
    os.wait()


def read(path):
    try:
        with open(path, "rb") as file:
            return "read %d bytes" % len(file.read())
    except OSError as error:
        return type(error).__name__


answered = 0
for line in sys.stdin:
    question = json.loads(line)
    payload = question["payload"]
    do = payload["do"]
    if do == "add":
        say({"progress": 0.5})
        say({"result": sum(payload["of"])})
    elif do == "echo":
        say({"result": question})
    elif do == "wait":
        time.sleep(payload["seconds"])
        say({"result": "waited"})
    elif do == "count":
        say({"result": {"answered": answered, "pid": os.getpid()}})
    elif do == "mutter":
        os.write(2, payload["bytes"].encode("latin-1"))
        say({"result": 1})
    elif do == "bytes":
        os.write(1, bytes(payload["bytes"]))
    elif do == "deep":
        print("[" * 100000 + "]" * 100000, flush=True)
    elif do == "stop itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif do == "deaf loop":
        for one in range(1, 32):
            if one not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
                signal.signal(one, signal.SIG_IGN)
        while True:
            pass
    elif do == "remove its directories":
        import shutil
        shutil.rmtree(question["directory"], ignore_errors=True)
        shutil.rmtree(os.getcwd(), ignore_errors=True)
        os._exit(4)
    elif do == "leave a child with the pipes":
        start_orphan()
        print('{"result": ', end="", flush=True)
        os._exit(0)
    elif do == "refuse":
        print("a line on standard error", file=sys.stderr)
        say({"error": "no luck"})
    elif do == "exit":
        print("Traceback: it is all over", file=sys.stderr)
        os._exit(payload["code"])
    elif do == "kill itself":
        os.kill(os.getpid(), payload["signal"])
    elif do == "flood stdout":
        while True:
            sys.stdout.write("x" * 65536)
    elif do == "flood stderr":
        while True:
            sys.stderr.write("y" * 65536)
    elif do == "loop":
        while True:
            pass
    elif do == "hog":
        hoard = []
        while True:
            hoard.append(bytearray(b"z" * (8 << 20)))
    elif do == "hog together":
        for _ in range(8):
            if os.fork() == 0:
                hoard = bytearray(b"z" * (64 << 20))
                time.sleep(1000)
        time.sleep(1000)
    elif do == "hog a shared memory":
        # Anonymous mappings that its children fill together.
        for _ in range(3):
            if os.fork() == 0:
                hoard = mmap.mmap(-1, 190 << 20)
                hoard.write(b"z" * (190 << 20))
                time.sleep(1000)
        time.sleep(1000)
    elif do == "hog files in memory":
        # Nobody maps them.
        files = [os.memfd_create(str(n)) for n in range(10)]
        for file in files:
            for _ in range(5):
                os.write(file, b"z" * (8 << 20))
        time.sleep(1000)
    elif do == "share":
        # Much less than its limit, though each has it mapped.
        hoard = mmap.mmap(-1, 90 << 20)
        hoard.write(b"z" * (90 << 20))
        file = os.memfd_create("mapped")
        os.ftruncate(file, 50 << 20)
        both = mmap.mmap(file, 50 << 20)
        both.write(b"z" * (50 << 20))
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                sum(hoard[::4096]) + sum(both[::4096])
                time.sleep(0.5)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        say({"result": "shared"})
    elif do == "hog out of sight":
        # Each has mappings of its own, which are no private memory, and forbids to be looked into: PR_SET_DUMPABLE is 4.
        for _ in range(4):
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
                hoard = mmap.mmap(-1, 100 << 20)
                for _ in range(100):
                    hoard.write(b"z" * (1 << 20))
                time.sleep(1000)
        time.sleep(1000)
    elif do == "share and fill the disk":
        # What all of them have mapped is more than its limit, and what they have together is not.
        hoard = mmap.mmap(-1, 90 << 20)
        hoard.write(b"z" * (90 << 20))
        for _ in range(3):
            if os.fork() == 0:
                sum(hoard[::4096])
                time.sleep(1000)
        for n in range(100):
            with open("%s/%d" % (question["directory"], n), "wb") as file:
                file.write(b"d" * (1 << 20))
        time.sleep(1000)
    elif do == "answer and fill its home":
        say({"result": "answered"})
        for n in range(20):
            with open(str(n), "wb") as file:
                file.write(b"d" * (4 << 20))
        time.sleep(4)
    elif do == "look at its home":
        say({"result": os.listdir()})
    elif do == "fill the disk without names":
        files = []
        for n in range(1000):
            path = "%s/%d" % (question["directory"], n)
            file = open(path, "wb", buffering=0)
            os.unlink(path)
            file.write(b"d" * (4 << 20))
            files.append(file)
            time.sleep(0.01)
    elif do == "fill the disk where no path leads":
        for n in range(20):
            os.mkdir("n" * 250)
            os.chdir("n" * 250)
        for n in range(1000):
            with open(str(n), "wb") as file:
                file.write(b"d" * (4 << 20))
            time.sleep(0.01)
    elif do == "dig":
        # Never mind how deep a path may be.
        while True:
            os.mkdir("d")
            os.chdir("d")
    elif do == "truncate":
        try:
            os.truncate(payload["path"], 0)
            say({"result": "emptied"})
        except OSError as error:
            say({"result": type(error).__name__})
    elif do == "link":
        try:
            os.link(payload["path"], os.path.join(question["directory"], "mine"))
            say({"result": read(os.path.join(question["directory"], "mine"))})
        except OSError as error:
            say({"result": type(error).__name__})
    elif do == "orphan and wait":
        start_orphan()
        time.sleep(1000)
    elif do == "call":
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(20)
            caller.connect(payload["path"])
            try:
                caller.sendall(b"anything\n")
                heard = caller.recv(4096)
            except OSError:
                heard = b""
        say({"result": heard.decode()})
    elif do == "make other problems' directories":
        for n in range(1000):
            try:
                os.mkdir(os.path.join(os.path.dirname(question["directory"]), str(n)))
            except OSError:
                pass
        say({"result": "made"})
    elif do == "orphan and exit":
        start_orphan()
        os._exit(1)
    elif do == "orphan":
        start_orphan()
        say({"result": "left one behind"})
    elif do == "bomb":
        while True:
            try:
                os.fork()
            except OSError:
                pass
    elif do == "fill the disk":
        for n in range(1000):
            with open("%s/%d" % (question["directory"], n), "wb") as file:
                file.write(b"d" * (4 << 20))
            time.sleep(0.01)
    elif do == "no json":
        print("hello world", flush=True)
    elif do == "no answer":
        say({"reslut": 1})
    elif do == "list":
        print("[1]", flush=True)
    elif do == "half":
        sys.stdout.write('{"result": 1')
        sys.stdout.flush()
        os._exit(0)
    elif do == "two lines":
        print('{"result": 1}\n{"result": 2}', flush=True)
    elif do == "late line":
        say({"result": 1})
        time.sleep(0.1)
        say({"result": "of another problem"})
    elif do == "close":
        os.close(1)
        time.sleep(1000)
    elif do == "close stdin":
        os.close(0)
        time.sleep(1000)
    elif do == "id":
        say({"id": payload["id"], "result": 1})
    elif do == "nul":
        say({"result": "\0"})
    elif do == "large":
        say({"result": "x" * payload["bytes"]})
    elif do == "leave a file":
        with open(os.path.join(question["directory"], "file"), "w") as file:
            file.write("left")
        os.chmod(question["directory"], 0)
        say({"result": question["directory"]})
    elif do == "read":
        say({"result": {path: read(path) for path in payload["paths"]}})
    elif do == "look":
        say({"result": {"environment": dict(os.environ), "uid": os.getuid(), "cwd": os.getcwd(),
                        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1]}})
    elif do == "signal":
        outcome = {}
        for pid in payload["pids"]:
            try:
                os.kill(pid, 0)
                outcome[pid] = "allowed"
            except OSError as error:
                outcome[pid] = type(error).__name__
        say({"result": outcome})
    elif do == "enqueue":
        say({"result": None, "enqueue": [{"key": "next", "payload": {"n": 1}}], "info": {"seen": True}})
    elif do == "write":
        try:
            open(payload["path"], "w").close()
            say({"result": "written"})
        except OSError as error:
            say({"result": type(error).__name__})
    answered += 1
