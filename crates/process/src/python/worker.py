"""Calls a function with rows that Millstream sends, and sends back what it returns.

Needs Python 3.8 or later, and nothing but the standard library.

Messages have a kind, a length and so many bytes. Millstream sends one that describes the function (H), then rows (R).
Each R gets one answer (A). So does a K, which is an R for which the worker says at which row or group it is (M). A
function that cannot be loaded gets the answer F. A stream of rows is sent as a message of its own (S), any number of R
and an end (E), and gets any number of parts (P) and one answer.
"""

import array
import importlib.util
import itertools
import marshal
import operator
import os
import struct
import sys
import textwrap
import traceback

THIS = "<millstream worker>"
HEAD = struct.Struct("<cQ")
NUMBER = struct.Struct("<i")

# The largest messages about one exception, in characters.
TEXT, TRACE = 2_000, 8_000

# The forms of a column in an answer.
OBJECTS, INTS, FLOATS, TEXTS = range(4)


class Pipe:
    """The two pipes to Millstream. What the function prints goes to standard error instead."""

    def __init__(self):
        # What is larger than a buffer is read and written without it.
        self.requests = os.fdopen(os.dup(0), "rb", 1 << 16)
        self.answers = os.fdopen(os.dup(1), "wb", 1 << 16)
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        if sys.stdout is not None:
            sys.stdout.reconfigure(line_buffering=True)

    def receive(self):
        """The next message; ends the process if there is none."""
        head = self.requests.read(HEAD.size)
        if len(head) < HEAD.size:
            raise SystemExit
        kind, length = HEAD.unpack(head)
        message = self.requests.read(length)
        if len(message) < length:
            raise SystemExit
        return kind, message

    def send(self, kind, *parts):
        """Sends a message of some parts."""
        self.answers.write(HEAD.pack(kind, sum(map(len, parts))))
        for part in parts:
            self.answers.write(part)
        self.answers.flush()

    def mark(self, number):
        """Says that the row or group `number` is next, or with -1 that none is."""
        self.send(b"M", NUMBER.pack(number))


class Fault(Exception):
    """Something is wrong with the function, or with what it gave. Its text says all there is to say, but for a hint."""

    def __init__(self, what, hint=""):
        super().__init__(what)
        self.hint = hint


def in_words(error):
    """The text of an exception, and its traceback without the frames of this file."""
    if isinstance(error, Fault):
        return str(error), ""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != THIS]
    frames = [frame for frame in frames if not frame.filename.startswith("<frozen importlib")]
    trace = textwrap.dedent("".join(traceback.format_list(frames)))
    text = text if len(text) <= TEXT else text[:TEXT] + "…"
    return text, trace if len(trace) <= TRACE else "…" + trace[-TRACE:]


def load(path, name):
    """The function `name` of the file `path`."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module_name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            import difflib

            near = difflib.get_close_matches(part, [other for other in dir(found) if not other.startswith("_")], 1)
            meant = "; did you mean `%s`?" % near[0] if near else ""
            raise Fault("there is no function `%s`%s" % (name, meant))
        found = getattr(found, part)
    if not callable(found):
        raise Fault("`%s` is no function" % name)
    return found


# Of a function with `async def`, and of one that is a generator, too.
COROUTINE, ASYNC_GENERATOR = 0x80, 0x200


def check_plain(function):
    """Raises a fault if the function is `async`: a call would give a coroutine, and no rows."""
    while type(function).__name__ == "partial":
        function = function.func
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "__call__", None), "__code__", None)
    if isinstance(code, type(load.__code__)) and code.co_flags & (COROUTINE | ASYNC_GENERATOR):
        what = "the function is `async`, line %d: a call gives a coroutine, and no rows" % code.co_firstlineno
        raise Fault(what, "write a plain `def`; what it awaits can be done by `asyncio.run`")


def check_call(function, count):
    """Raises a fault if the function cannot be called with so many values."""
    code, defaults = getattr(function, "__code__", None), getattr(function, "__defaults__", None) or ()
    if code is not None and code.co_kwonlyargcount == 0 and not hasattr(function, "__self__"):
        if code.co_argcount - len(defaults) <= count <= code.co_argcount:
            return
    import inspect

    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*range(count))
    except TypeError:
        place = "" if code is None else ", line %d" % code.co_firstlineno
        given = "1 argument" if count == 1 else "%d arguments" % count
        raise Fault("the function takes %s, and is called with %s%s" % (signature, given, place)) from None


def conversions():
    """How values are made of what marshal knows, and the other way round: by the names of types."""
    import datetime
    import decimal

    midnight, day = datetime.datetime(1970, 1, 1), datetime.date(1970, 1, 1).toordinal()
    microsecond = datetime.timedelta(microseconds=1)

    def after_midnight(value):
        return midnight + datetime.timedelta(microseconds=value)

    def from_date(value):
        if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
            raise TypeError
        return value.toordinal() - day

    def from_time(value):
        if not isinstance(value, datetime.time) or value.tzinfo is not None:
            raise TypeError
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond

    def from_timestamp(value):
        if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
            raise TypeError
        return (value - midnight) // microsecond

    def from_timestamptz(value):
        if not isinstance(value, datetime.datetime) or value.tzinfo is None:
            raise TypeError
        return (value.astimezone(datetime.timezone.utc).replace(tzinfo=None) - midnight) // microsecond

    def from_decimal(value):
        if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal)):
            raise TypeError
        return format(decimal.Decimal(value), "f")

    to_python = {
        "date": lambda value: datetime.date.fromordinal(value + day),
        "time": lambda value: after_midnight(value).time(),
        "timestamp": after_midnight,
        "timestamptz": lambda value: after_midnight(value).replace(tzinfo=datetime.timezone.utc),
        "decimal": decimal.Decimal,
    }
    from_python = {
        "date": from_date,
        "time": from_time,
        "timestamp": from_timestamp,
        "timestamptz": from_timestamptz,
        "decimal": from_decimal,
    }
    return to_python, from_python


def converter(conversion, to_python):
    """The function for values of a column, by what Millstream says of it."""
    if isinstance(conversion, str):
        return to_python[conversion]
    if "list" in conversion:
        of_item = converter(conversion["list"], to_python)
        return lambda value: [None if item is None else of_item(item) for item in value]
    of_members = [(name, converter(of_member, to_python)) for name, of_member in conversion["struct"] if of_member]

    def of_struct(value):
        for name, of_member in of_members:
            if value[name] is not None:
                value[name] = of_member(value[name])
        return value

    return of_struct


# What marshal knows. It takes any object with a buffer, such as a number of numpy, for bytes.
KNOWN = {type(None), bool, int, float, str, bytes}


def plain(value):
    """The value as one that marshal knows, if there is one: numpy has ints and floats of its own."""
    if type(value) in KNOWN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if hasattr(value, "__index__"):
        return int(operator.index(value))
    if hasattr(value, "__float__") and not hasattr(value, "as_tuple"):
        return float(value)
    raise TypeError


def answering(conversion, from_python):
    """The function that makes what marshal knows of values of a column, by what Millstream says of it."""
    if conversion is None:
        return plain
    if isinstance(conversion, str):
        return from_python[conversion]
    if "list" in conversion:
        of_item = answering(conversion["list"], from_python)

        def of_list(value):
            if not isinstance(value, (list, tuple)):
                raise TypeError
            return [None if item is None else of_item(item) for item in value]

        return of_list
    of_members = [(name, answering(of_member, from_python)) for name, of_member in conversion["struct"]]

    def of_struct(value):
        if not isinstance(value, dict) or len(value) != len(of_members):
            raise TypeError
        return [None if value[name] is None else of_member(value[name]) for name, of_member in of_members]

    return of_struct


class Rows:
    """Rows as dicts, to and from Millstream."""

    def __init__(self, hello):
        self.per, self.names = hello["per"], hello["names"]
        self.answered = [name for name, _, _ in hello["answers"]]
        self.kinds = [kind for _, kind, _ in hello["answers"]]
        self.width = len(self.answered)
        self.get = operator.itemgetter(*self.answered) if self.width > 1 else lambda row: (row[self.answered[0]],)
        conversions_out = [conversion for _, _, conversion in hello["answers"]]
        to_python, from_python = conversions() if any(hello["conversions"]) or any(conversions_out) else ({}, {})
        self.to_python = [converter(one, to_python) if one else None for one in hello["conversions"]]
        self.from_python = [answering(one, from_python) if one else None for one in conversions_out]

    def message(self, message):
        """How many rows a message has, their columns, and where groups end."""
        return marshal.loads(message)

    def read(self, count, columns):
        """The values of the rows, as tuples, and what is wrong with some of them, by number."""
        faults = {}
        for place, convert in enumerate(self.to_python):
            if convert is None:
                continue
            values = columns[place]
            try:
                columns[place] = [None if value is None else convert(value) for value in values]
            except Exception:
                columns[place] = [self.converted(place, number, values[number], faults) for number in range(count)]
        return (zip(*columns) if columns else iter([()] * count)), faults

    def converted(self, place, number, value, faults):
        try:
            return None if value is None else self.to_python[place](value)
        except Exception as error:
            faults.setdefault(number, "Python has no such value of column `%s`: %s" % (self.names[place], error))
            return None

    def taken(self, count, columns):
        """The rows as the function takes them."""
        names = self.names
        rows, faults = self.read(count, columns)
        if faults:
            raise Fault(next(iter(faults.values())))
        return [dict(zip(names, values)) for values in rows]

    def parts(self, rows, ends):
        """The rows of each group."""
        return [iter(rows[start:end]) for start, end in zip((0, *ends), ends)]

    def one_by_one(self, rows):
        return rows

    def given(self, given):
        """The values of each row that the function gave, one after the other."""
        if given is None:
            raise Fault("the function gave None; it gives a list or a generator of dicts, an empty one for no rows")
        if isinstance(given, dict) and self.per == "batch":
            raise Fault("the function gave one dict for a batch; it gives a list or a generator of dicts")
        return map(self.values, (given,) if isinstance(given, dict) else given)

    def values(self, row):
        """The values of a row that the function gave, in order. The row may change from now on."""
        if type(row) is dict and len(row) == self.width:
            try:
                return self.get(row)
            except KeyError:
                pass
        if not isinstance(row, dict):
            raise Fault("the function gave %s; a row is a dict" % shown(row))
        for name in self.answered:
            if name not in row:
                raise Fault("the function gave no `%s`, only %s" % (name, shown(list(row))))
        for name in row:
            if name not in self.answered:
                raise Fault("the function gave `%s`, which is none of `columns`" % (name,))
        return tuple(row[name] for name in self.answered)

    def columns(self, rows):
        """The columns of rows, or an exception if something is wrong with one of them."""
        columns = zip(*rows) if rows else [()] * self.width
        return [self.column(place, values) for place, values in enumerate(columns)]

    def column(self, place, values):
        kind, convert = self.kinds[place], self.from_python[place]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        # `array` takes a bool as an int, and whatever has `__float__` as a float.
        types = set(map(type, values))
        if convert is None and not types <= KNOWN:
            values = list(map(plain, values))
            types = set(map(type, values))
        try:
            if kind == "int" and types == {int}:
                return INTS, array.array("q", values).tobytes()
            if kind == "float" and types and types <= {int, float}:
                return FLOATS, array.array("d", values).tobytes()
            if kind == "text" and types == {str}:
                return TEXTS, "".join(values).encode(), array.array("I", map(len, values)).tobytes()
        except (ValueError, OverflowError):
            pass
        return OBJECTS, list(values)

    def answer(self, rows, kept=None, errors=()):
        """The message for `rows`; `kept` are the numbers of the rows that they are of, None if they are of all."""
        return (marshal.dumps((kept, len(rows), self.columns(rows), list(errors)), 2),)

    def check(self, values):
        """Raises what is wrong with the values of a row."""
        for name, convert, value in zip(self.answered, self.from_python, values):
            try:
                (convert or plain)(value) if value is not None else None
            except Exception:
                raise Fault("the function gave %s for `%s`" % (shown(value), name)) from None


def shown(value):
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def each_row(rows, function, message, mark=None):
    """Calls the function with each row."""
    count, columns, _ = rows.message(message)
    values_of_rows, faults = rows.read(count, columns)
    if faults:
        function = unless_at_fault(function, faults)
    if mark:
        function = marked(function, mark)
    names, results, errors, values_of = rows.names, [], [], rows.values
    append = results.append
    while True:
        try:
            for values in values_of_rows:
                row = function(dict(zip(names, values)))
                append(None if row is None else values_of(row))
            break
        except Exception as error:
            errors.append((len(results), *in_words(error)))
            append(None)
    if mark:
        mark(-1)
    given = [row for row in results if row is not None]
    kept = None
    if len(given) < len(results):
        kept = [number for number, row in enumerate(results) if row is not None]
    try:
        return rows.answer(given, kept, errors)
    except Exception:
        kept, given = range(count) if kept is None else kept, iter(given)
    good, numbers = [], []
    for number in kept:
        values = next(given)
        try:
            rows.check(values)
            good.append(values)
            numbers.append(number)
        except Exception as error:
            errors.append((number, *in_words(error)))
    return rows.answer(good, numbers, errors)


def of_values(function, name):
    """The function, which takes arguments and gives a value, as one that takes and gives rows."""
    return lambda row: {name: function(*row.values())}


def unless_at_fault(function, faults):
    """The function, which is called with one row after the other, but for those that are at fault."""
    numbers = itertools.count()

    def call(row):
        number = next(numbers)
        if number in faults:
            raise Fault(faults[number])
        return function(row)

    return call


def marked(function, mark):
    """The function, before each call of which `mark` gets the number of the call."""
    numbers = itertools.count()

    def call(taken):
        mark(next(numbers))
        return function(taken)

    return call


# Where the values of Arrow's columns may lie in memory.
ALIGNMENT = 64


class Batches:
    """Rows as batches of pyarrow, to and from Millstream: a stream of Arrow IPC at the end of a message."""

    def __init__(self, hello):
        try:
            import pyarrow
        except ImportError as error:
            raise Fault("`exchange: arrow` needs pyarrow in %s: %s" % (sys.executable, error)) from None
        self.pyarrow = pyarrow

    def message(self, message):
        count, place, ends = marshal.loads(message)
        return count, memoryview(message)[place:], ends

    def taken(self, count, stream):
        with self.pyarrow.ipc.open_stream(stream) as reader:
            return reader.read_next_batch()

    def parts(self, rows, ends):
        return [rows.slice(start, end - start) for start, end in zip((0, *ends), ends)]

    def one_by_one(self, rows):
        return (rows,)

    def given(self, given):
        """The batches that the function gave, one after the other."""
        if given is None:
            raise Fault("the function gave None; it gives a pyarrow.RecordBatch or Table, or an empty list for no rows")
        if isinstance(given, (self.pyarrow.RecordBatch, self.pyarrow.Table)):
            given = (given,)
        for rows in given:
            if isinstance(rows, self.pyarrow.Table):
                yield from rows.to_batches()
            elif isinstance(rows, self.pyarrow.RecordBatch):
                yield rows
            else:
                raise Fault("the function gave %s; rows are a pyarrow.RecordBatch or Table" % shown(rows))

    def check(self, rows):
        pass

    def answer(self, batches, kept=None, errors=()):
        for batch in batches:
            if batch.schema != batches[0].schema:
                raise Fault("the function gave batches with different columns: %s" % shown(batch.schema.names))
        stream = self.stream(batches) if batches else []
        rows, length = sum(batch.num_rows for batch in batches), sum(map(len, stream))
        about = marshal.dumps((kept, rows, length, list(errors)), 2)
        return (about + bytes(-len(about) % ALIGNMENT), *stream)

    def stream(self, batches):
        """Batches of the same columns as parts of a stream."""
        schema = batches[0].schema
        # Each part has the size that it needs. Dictionaries are in none of them.
        if "dictionary" not in str(schema.types):
            return [schema.serialize(), *(batch.serialize() for batch in batches)]
        output = self.pyarrow.BufferOutputStream()
        with self.pyarrow.ipc.new_stream(output, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return [output.getvalue()]


def whole_batch(rows, function, message, mark=None):
    """Calls the function with all rows."""
    try:
        count, columns, _ = rows.message(message)
        given = list(rows.given(function(rows.taken(count, columns))))
        try:
            return rows.answer(given)
        except Exception:
            for values in given:
                rows.check(values)
            raise
    except Exception as error:
        return rows.answer([], None, [(-1, *in_words(error))])


def each_group(rows, function, message, mark=None):
    """Calls the function with the rows of each group."""
    results, errors = [], []
    if mark:
        function = marked(function, mark)
    try:
        count, columns, ends = rows.message(message)
        for number, group in enumerate(rows.parts(rows.taken(count, columns), ends)):
            try:
                results.append((number, list(rows.given(function(group)))))
            except Exception as error:
                errors.append((number, *in_words(error)))
        if mark:
            mark(-1)
        try:
            return rows.answer([values for _, given in results for values in given], None, errors)
        except Exception:
            good = []
            for number, given in results:
                try:
                    for values in given:
                        rows.check(values)
                    good.extend(given)
                except Exception as error:
                    errors.append((number, *in_words(error)))
            return rows.answer(good, None, errors)
    except Exception as error:
        return rows.answer([], None, [(-1, *in_words(error))])


# Rows of a stream that are sent together.
PART_ROWS = 4096


def stream(rows, function, pipe, takes_all):
    """Calls the function with the rows of a stream, and sends what it gives."""
    at_end, fault = False, None

    def taken():
        nonlocal at_end, fault
        while not at_end:
            kind, message = pipe.receive()
            if kind == b"E":
                at_end = True
                continue
            try:
                count, columns, _ = rows.message(message)
                together = rows.taken(count, columns)
            except Exception as error:
                # The function may catch it, and the rows are missing all the same.
                fault = error
                raise
            yield from rows.one_by_one(together)

    def whole():
        """All rows of a group, which takes a batch."""
        batches = rows.pyarrow.Table.from_batches(list(source)).combine_chunks().to_batches()
        if len(batches) != 1:
            raise Fault("a group is too large for one batch of pyarrow")
        return batches[0]

    source = taken()
    part, errors = [], []
    try:
        for values in rows.given(function(source if takes_all or isinstance(rows, Rows) else whole())):
            part.append(values)
            if len(part) >= PART_ROWS or isinstance(rows, Batches):
                pipe.send(b"P", *rows.answer(part))
                part = []
        if fault is not None:
            raise fault
        if takes_all:
            for _ in source:
                raise Fault("the function returned before it had taken all rows")
            if not at_end:
                raise Fault("the function closed its rows before it had taken all")
        last = rows.answer(part)
    except Exception as error:
        last = None
        for values in part:
            try:
                rows.check(values)
            except Exception as fault:
                error = fault
                break
        errors.append((-1, *in_words(error)))
    while not at_end:
        at_end = pipe.receive()[0] == b"E"
    return last if last is not None else rows.answer([], None, errors)


CALLS = {"row": each_row, "batch": whole_batch, "group": each_group, "stream": None}


def main():
    pipe = Pipe()
    _, message = pipe.receive()
    hello = marshal.loads(message)
    try:
        function = load(hello["file"], hello["function"])
        check_plain(function)
        check_call(function, len(hello["names"]) if hello["values"] else 1)
        if hello["values"]:
            function = of_values(function, hello["answers"][0][0])
        rows, call = (Batches if hello["form"] == "arrow" else Rows)(hello), CALLS[hello["per"]]
    except Exception as error:
        hint = error.hint if isinstance(error, Fault) else ""
        pipe.send(b"F", marshal.dumps((*in_words(error), hint), 2))
        return
    pipe.send(b"H", marshal.dumps(sys.version.split()[0], 2))
    while True:
        kind, message = pipe.receive()
        if kind == b"S":
            pipe.send(b"A", *stream(rows, function, pipe, hello["per"] == "stream"))
        else:
            pipe.send(b"A", *call(rows, function, message, pipe.mark if kind == b"K" else None))


main()
