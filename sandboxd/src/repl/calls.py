# The interpreter's half of the cells, first part: the control pipe, and the calls of the client's tools.
#
# Both parts are run as one text, see `bootstrap.py`.

import json
import keyword
import os
import re
import select
import selectors
import threading

CONTROL_IN, CONTROL_OUT = 10, 11
# Nesting of a call's argument; readers elsewhere bound theirs.
DEEPEST = 64
# A loop that blocks for no longer than this, in seconds, is at work.
SHORT_WAIT = 0.1

encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
decode = json.JSONDecoder().decode


class Interrupts:
    """SIGINT raises KeyboardInterrupt once, in the code of a cell, and never while a message is half written."""

    def __init__(self):
        self.held = True
        self.missed = False
        self.before = []

    def handle(self, _signal, _frame):
        if self.held:
            self.missed = True
        else:
            self.held = True
            raise KeyboardInterrupt

    def allow(self):
        # One that came between two cells was meant for the first.
        self.missed = False
        self.held = False

    def hold(self):
        self.held = True

    # Only the main thread is interrupted.

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            before, self.held = self.held, True
            self.before.append(before)

    def __exit__(self, *_):
        if threading.current_thread() is threading.main_thread():
            self.held = self.before.pop()
            if self.missed and not self.held:
                self.missed = False
                self.held = True
                raise KeyboardInterrupt


class Wire:
    """The control pipe."""

    def __init__(self):
        self.buffer = bytearray()
        self.searched = 0
        for number in (CONTROL_IN, CONTROL_OUT):
            os.set_inheritable(number, False)
        os.set_blocking(CONTROL_IN, False)

    def write(self, text):
        data = memoryview((text + "\n").encode())
        while data:
            data = data[os.write(CONTROL_OUT, data) :]

    def messages(self):
        """What has come until now."""
        try:
            data = os.read(CONTROL_IN, 65536)
        except BlockingIOError:
            return []
        if not data:
            # sandboxd is gone.
            os._exit(0)
        self.buffer += data
        found = []
        while True:
            at = self.buffer.find(b"\n", self.searched)
            if at < 0:
                self.searched = len(self.buffer)
                return found
            found.append(decode(self.buffer[:at].decode()))
            del self.buffer[: at + 1]
            self.searched = 0

    def wait(self):
        """The next messages, whenever they come."""
        poll = select.poll()
        poll.register(CONTROL_IN, select.POLLIN)
        found = []
        while not found:
            poll.poll()
            found = self.messages()
        return found


class Call:
    """A call of a client's tool."""

    def __init__(self, text, loop):
        self.text = text
        # What it takes in a frame, with its number.
        self.size = len(text.encode()) + 32
        self.loop = loop
        self.future = loop.create_future()
        self.number = None


class Calls:
    """The calls of the cell that runs, in whatever loop or thread they are made."""

    def __init__(self, wire, interrupts):
        self.wire = wire
        self.interrupts = interrupts
        self.lock = threading.RLock()
        self.cell = None
        self.reset()

    def reset(self):
        self.offered = ()
        # Those that wait for results; of these, those that were not sent, and those that were.
        self.waiting = []
        self.unsent = []
        self.sent = {}
        self.closed = []
        self.readers = set()
        self.count = 0
        self.bytes = 0
        self.seen = 0
        # The selector that told sandboxd that it blocks.
        self.idle = None

    def begin(self, cell, offered, limits):
        self.reset()
        self.offered = offered
        self.limits = limits
        self.cell = cell

    def end(self, code):
        """Tells the end of the cell. Afterwards nothing more is said of it."""
        with self.interrupts, self.lock:
            cell, self.cell = self.cell, None
            for loop in self.readers:
                in_loop(loop, loop.remove_reader, CONTROL_IN)
            for call in self.waiting:
                later(call.loop, call.future.cancel)
            self.reset()
            self.wire.write(encode({"end": {"cell": cell, "code": code}}))

    async def call(self, name, argument):
        import asyncio

        text = call_text(name, argument)
        loop = asyncio.get_running_loop()
        call = self.add(name, text, loop)
        seconds = self.limits["call_seconds"]
        timer = loop.call_later(seconds, expire, call, name, seconds)
        try:
            return await call.future
        finally:
            timer.cancel()
            self.drop(call)

    def add(self, name, text, loop):
        call = Call(text, loop)
        with self.interrupts, self.lock:
            if self.cell is None or name not in self.offered:
                raise RuntimeError("the tool %r is not offered now" % name)
            self.check_room(call)
            self.bytes += call.size
            self.waiting.append(call)
            self.unsent.append(call)
            if loop not in self.readers:
                loop.add_reader(CONTROL_IN, self.receive)
                self.readers.add(loop)
            if not isinstance(getattr(loop, "_selector", None), Selector):
                # A loop of another make, which does not say when it blocks.
                loop.call_soon(self.before_block, None, None)
        return call

    def check_room(self, call):
        limits = self.limits
        most, room = limits["pending"], limits["pending_bytes"]
        if len(self.waiting) >= most:
            raise RuntimeError("%d tool calls wait for results, and no more may: await some of them first" % most)
        if sum(other.size for other in self.waiting) + call.size > room:
            raise RuntimeError("tool calls at a time may have %d bytes as JSON: make fewer, or pass less" % room)
        if self.count + len(self.unsent) >= limits["calls"] or self.bytes + call.size > limits["bytes"]:
            raise RuntimeError("this cell has made as many tool calls as one may: go on in another cell")

    def drop(self, call):
        """Nobody waits for it any more."""
        with self.interrupts, self.lock:
            if call not in self.waiting:
                return
            self.waiting.remove(call)
            if call in self.unsent:
                self.unsent.remove(call)
            elif self.sent.pop(call.number, None) is not None:
                self.closed.append(call.number)
            if call.loop in self.readers and all(other.loop is not call.loop for other in self.waiting):
                self.readers.remove(call.loop)
                if not call.loop.is_closed():
                    call.loop.remove_reader(CONTROL_IN)

    def before_block(self, selector, timeout):
        """A loop is about to do nothing: sends the calls that were made until now."""
        if not self.waiting:
            return
        with self.interrupts, self.lock:
            ours = selector is None or any(getattr(call.loop, "_selector", None) is selector for call in self.waiting)
            if self.cell is None or not ours:
                return
            blocks = selector if timeout is None or timeout > SHORT_WAIT else None
            if self.unsent or self.closed or blocks is not self.idle:
                self.tell(blocks)

    def after_block(self, selector, events):
        """A loop goes on, for another reason than results."""
        if self.idle is not selector or any(key.fd == CONTROL_IN for key, _ in events):
            return
        with self.interrupts, self.lock:
            if self.cell is not None and self.idle is selector:
                self.tell(None)

    def tell(self, idle):
        new, self.unsent = self.unsent, []
        for call in new:
            call.number = self.count
            self.sent[call.number] = call
            self.count += 1
        closed, self.closed = self.closed, []
        self.idle = idle
        state = encode({"closed": closed, "idle": idle is not None, "seen": self.seen})
        calls = ",".join(call.text for call in new)
        self.wire.write('{"calls":{"cell":%d,"calls":[%s],%s}' % (self.cell, calls, state[1:]))

    def receive(self):
        answered = []
        with self.interrupts, self.lock:
            if self.cell is None:
                # What comes now is the next cell, and not for us.
                return
            for message in self.wire.messages():
                results = message.get("results")
                if results is None or results["cell"] != self.cell:
                    continue
                self.seen += 1
                self.idle = None
                for result in results["results"]:
                    call = self.sent.pop(result["call_id"], None)
                    if call is not None:
                        answered.append((call, result["content"]))
        for call, content in answered:
            in_loop(call.loop, settle, call.future, content)


def in_loop(loop, function, *arguments):
    """Calls it in the thread of the loop: now when that is this one."""
    import asyncio

    if loop.is_running() and asyncio._get_running_loop() is not loop:
        later(loop, function, *arguments)
    elif not loop.is_closed():
        function(*arguments)


def later(loop, function, *arguments):
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        # It was closed.
        pass


def settle(future, content):
    if not future.done():
        future.set_result(content)


def expire(call, name, seconds):
    if not call.future.done():
        text = "Calling tool %r timed out (no response after %gs)." % ([name], seconds)
        call.future.set_exception(TimeoutError(text))


def call_text(name, argument):
    """The call as JSON, which every reader of it can read."""
    try:
        text = encode(argument)
        text.encode()
        decode_checked(text)
        if nesting(text) > DEEPEST:
            raise ValueError("it is nested deeper than %d" % DEEPEST)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError("the argument of %s cannot be sent as JSON: %s" % (name, error)) from None
    return '{"name":%s,"input":%s}' % (encode(name), text)


def check_integer(digits):
    if len(digits) > 300:
        raise ValueError("a number is too large")
    return 0


decode_checked = json.JSONDecoder(parse_int=check_integer).decode


def nesting(text):
    depth = deepest = 0
    for found in re.findall(r'"(?:[^"\\]|\\.)*"|[][{}]', text):
        if found in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found in "]}":
            depth -= 1
    return deepest


class Selector(selectors.DefaultSelector):
    """Notices when a loop has nothing to do but wait."""

    def select(self, timeout=None):
        blocks = timeout is None or timeout > 0
        if blocks:
            calls.before_block(self, timeout)
        events = super().select(timeout)
        if blocks:
            calls.after_block(self, events)
        return events


def identifier(name, taken):
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not text or text[0].isdigit():
        text = "_" + text
    while keyword.iskeyword(text) or text in taken:
        text += "_"
    return text


def check_argument(name, parameters, positional, keywords):
    """The one dict of a call, checked against the tool's schema as far as its keys go."""
    if len(positional) > 1 or not all(isinstance(value, dict) for value in positional):
        raise TypeError("%s takes one dict, or keyword arguments" % name)
    argument = {}
    for part in positional + (keywords,):
        argument.update(part)
    if not all(isinstance(key, str) for key in argument):
        raise TypeError("the keys of the argument of %s have to be strings" % name)
    if not isinstance(parameters, dict):
        return argument
    known = parameters.get("properties")
    known = known if isinstance(known, dict) else {}
    required = parameters.get("required")
    required = required if isinstance(required, list) else []
    missing = [key for key in required if isinstance(key, str) and key not in argument]
    if missing:
        raise TypeError("%s needs %s" % (name, listed(missing)))
    if parameters.get("additionalProperties") is False and not parameters.get("patternProperties"):
        unknown = [key for key in argument if key not in known]
        if unknown:
            raise TypeError("%s does not know %s; it knows %s" % (name, listed(unknown), listed(known) or "nothing"))
    return argument


def listed(names):
    return ", ".join(repr(name) for name in names)


def make_tool(shown, name, parameters):
    async def tool(*positional, **keywords):
        return await calls.call(name, check_argument(shown + "()", parameters, positional, keywords))

    tool.__name__ = tool.__qualname__ = shown
    tool.__module__ = "__main__"
    return tool


def define_tools(tools, installed, namespace):
    """Defines the functions of this cell, and takes away ours of an earlier one."""
    for shown, tool in installed.items():
        if namespace.get(shown) is tool:
            del namespace[shown]
    installed.clear()
    # Names that can stay as they are come first.
    for tool in sorted(tools, key=lambda tool: tool["name"] != identifier(tool["name"], ())):
        shown = identifier(tool["name"], installed)
        installed[shown] = make_tool(shown, tool["name"], tool.get("parameters"))
    namespace.update(installed)


