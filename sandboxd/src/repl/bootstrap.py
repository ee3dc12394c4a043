# The interpreter's half of the cells, second part; `calls.py` is the first, and both are run as one text.
#
# sandboxd sends one message a line on CONTROL_IN and reads one a line from CONTROL_OUT; everything that a cell prints goes to
# the descriptors 1 and 2, whoever writes it. The code of the cells owns this process: nothing here guards against it, and
# sandboxd checks whatever comes. Runs on every Python from 3.8 on, with nothing but the standard library.

import ast
import importlib
import linecache
import signal
import site
import sys
import traceback

OWN_FILE = "<sandboxd>"
CELL_FILE = "<cell %d>"
# Earlier cells whose source lines can still be shown.
KEPT_SOURCES = 100
CO_COROUTINE = 0x80


def compile_cell(source, file):
    """The code, with the last expression apart: it is shown."""
    flags, once = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dict(dont_inherit=True)
    tree = compile(source, file, "exec", flags | ast.PyCF_ONLY_AST, **once)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    parts = [compile(tree, file, "exec", flags, **once)] if tree.body else []
    if last is not None:
        parts.append(compile(ast.Interactive([last]), file, "single", flags, **once))
    return parts


class Interpreter:
    """Runs cells in the namespace of __main__."""

    def __init__(self):
        self.pid = os.getpid()
        self.namespace = sys.modules["__main__"].__dict__
        self.loop = None
        self.sources = []
        self.installed = {}
        self.variables = {}
        # Copies, for code that closes its own.
        self.streams = [os.dup(number) for number in range(3)]
        try:
            import ctypes

            self.flush_c = ctypes.CDLL(None).fflush
        except Exception:
            self.flush_c = None
        sys.argv = [""]
        sys.path.insert(0, os.getcwd())
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)

    def run(self, message):
        """Runs a cell and returns its exit code."""
        code = 1
        try:
            interrupts.allow()
            try:
                code = self.execute(message)
            finally:
                self.flush()
            interrupts.hold()
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            interrupts.hold()
        if os.getpid() != self.pid:
            # A child of a fork in the cell has come to the end of the code.
            os._exit(code)
        return code

    def execute(self, message):
        try:
            self.prepare(message)
            self.run_parts(compile_cell(message["code"], CELL_FILE % message["number"]))
            return 0
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return (end.code or 0) & 0xFF
            print(end.code, file=sys.stderr)
            return 1
        except BaseException as error:
            show(error)
            return 130 if isinstance(error, KeyboardInterrupt) else 1

    def prepare(self, message):
        """Puts in place what every cell finds, whatever an earlier one did to it."""
        for number, copy in enumerate(self.streams):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(copy, number)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(getattr(sys, name, None), "closed", True):
                mode, errors = ("r", "surrogateescape") if number == 0 else ("w", "backslashreplace")
                stream = open(number, mode, buffering=1, encoding="utf-8", errors=errors, closefd=False)
                setattr(sys, name, stream)
        signal.signal(signal.SIGINT, interrupts.handle)
        variables = message["variables"]
        for name, value in self.variables.items():
            if name not in variables and os.environ.get(name) == value:
                del os.environ[name]
        os.environ.update(variables)
        self.variables = variables
        user = site.getusersitepackages()
        if user not in sys.path and os.path.isdir(user):
            site.addsitedir(user)
        importlib.invalidate_caches()
        self.remember_source(message)
        if self.loop is not None or "asyncio" in message["code"]:
            self.event_loop()

    def remember_source(self, message):
        file, source = CELL_FILE % message["number"], message["code"]
        # Without a time, such an entry is never looked for on the disk.
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        self.sources.append(file)
        if len(self.sources) > KEPT_SOURCES:
            linecache.cache.pop(self.sources.pop(0), None)

    def event_loop(self):
        """The loop of all cells: its tasks live on between them."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop

    def run_parts(self, parts):
        # Without an `await` no loop runs, so that the code can run one itself.
        if any(part.co_flags & CO_COROUTINE for part in parts):
            self.run_in_loop(parts)
        else:
            for part in parts:
                exec(part, self.namespace)

    def run_in_loop(self, parts):
        async def cell():
            for part in parts:
                value = eval(part, self.namespace)
                if part.co_flags & CO_COROUTINE:
                    await value

        loop = self.event_loop()
        task = loop.create_task(cell())
        try:
            loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                try:
                    loop.run_until_complete(task)
                except BaseException:
                    # Usually its cancellation; what led here is what counts.
                    pass
            raise

    def flush(self):
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except Exception:
                # Closed, or none at all.
                pass
        if self.flush_c is not None:
            self.flush_c(None)


def show(error):
    """Prints a traceback as Python does, but of the cell's code only."""
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    if keep_frames(told, set()):
        lines = list(told.format())
    else:
        lines = list(told.format_exception_only())
    stream = sys.stderr if hasattr(sys.stderr, "write") else sys.__stderr__
    stream.write("".join(lines))


def keep_frames(told, done):
    """Leaves out our frames and what leads to the cell's; whether any of the cell's are there."""
    if told is None or id(told) in done:
        return False
    done.add(id(told))
    files = [frame.filename for frame in told.stack]
    first = next((at for at, file in enumerate(files) if file.startswith("<cell ")), None)
    if first is not None:
        told.stack[:] = [frame for frame in told.stack[first:] if frame.filename != OWN_FILE]
    elif OWN_FILE in files:
        told.stack[:] = told.stack[len(files) - files[::-1].index(OWN_FILE) :]
    for other in [told.__cause__, told.__context__] + list(getattr(told, "exceptions", None) or ()):
        keep_frames(other, done)
    return first is not None


def forget_control():
    """In the child of a fork: the control pipe is its parent's alone."""
    for number in (CONTROL_IN, CONTROL_OUT):
        try:
            os.close(number)
        except OSError:
            pass
    calls.lock = threading.RLock()
    calls.cell = None
    calls.reset()


def main():
    interpreter = Interpreter()
    os.register_at_fork(before=interpreter.flush, after_in_child=forget_control)
    wire.write(encode({"ready": {"pid": interpreter.pid}}))
    while True:
        for message in wire.wait():
            cell = message.get("cell")
            # Anything else came too late for its cell.
            if cell is not None:
                tools = cell["tools"]
                define_tools(tools, interpreter.installed, interpreter.namespace)
                calls.begin(cell["number"], {tool["name"] for tool in tools}, cell["limits"])
                code = interpreter.run(cell)
                calls.end(code)


interrupts = Interrupts()
signal.signal(signal.SIGINT, interrupts.handle)
wire = Wire()
calls = Calls(wire, interrupts)
selectors.DefaultSelector = Selector
main()
