"""Calls a function with rows that Millstream sends, and sends back what it returns.

Needs Python 3.8 or later. Rows as dicts need nothing but the standard library, Arrow batches need pyarrow.

Messages have a kind, a length and so many bytes. Millstream sends one that describes the function (H), then rows (R).
Each R gets one answer (A). A function that cannot be loaded gets the answer F.
"""

import array
import importlib.util
import marshal
import operator
import os
import struct
import sys
import textwrap
import traceback

THIS = "<millstream worker>"
HEAD = struct.Struct("<cQ")

# The largest messages about one exception, in characters.
TEXT, TRACE = 2_000, 8_000

# The forms of a column in an answer.
OBJECTS, INTS, FLOATS, TEXTS = range(4)


class Pipe:
    """The two pipes to Millstream. What the function prints goes to standard error instead."""

    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb", 1 << 20)
        self.answers = os.fdopen(os.dup(1), "wb", 1 << 20)
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

    def send(self, kind, message):
        self.answers.write(HEAD.pack(kind, len(message)))
        self.answers.write(message)
        self.answers.flush()


class Fault(Exception):
    """Something is wrong with the function, or with what it gave. Its text says all there is to say."""


def in_words(error):
    """The text of an exception, and its traceback without the frames of this file."""
    if isinstance(error, Fault):
        return str(error), ""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != THIS]
    frames = [frame for frame in frames if not frame.filename.startswith("<frozen importlib")]
    return text[:TEXT], textwrap.dedent("".join(traceback.format_list(frames)))[-TRACE:]


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

    def nested(value):
        """As JSON has it."""
        if isinstance(value, dict):
            return {nested(key): nested(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [nested(item) for item in value]
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, decimal.Decimal):
            return format(value, "f")
        return plain(value)

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
        "nested": nested,
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


def plain(value):
    """The value as one that marshal knows, if there is one: numpy has ints and floats of its own."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "__float__") and not hasattr(value, "as_tuple"):
        return float(value)
    raise TypeError


class Rows:
    """Rows as dicts, to and from Millstream."""

    def __init__(self, hello):
        self.names = hello["names"]
        self.answered = hello["answers"]
        self.width = len(self.answered)
        simple = ("int", "float", "text", "plain")
        needs = any(hello["conversions"]) or any(kind not in simple for _, kind in self.answered)
        to_python, self.from_python = conversions() if needs else ({}, {})
        self.to_python = [converter(one, to_python) if one else None for one in hello["conversions"]]

    def read(self, columns, count):
        """The values of the rows, as tuples."""
        for place, convert in enumerate(self.to_python):
            if convert is not None:
                columns[place] = [None if value is None else convert(value) for value in columns[place]]
        return zip(*columns) if columns else iter([()] * count)

    def dicts(self, columns, count):
        names = self.names
        return [dict(zip(names, values)) for values in self.read(columns, count)]

    def check(self, row):
        """Raises what is wrong with a row that the function gave."""
        if not isinstance(row, dict):
            raise Fault("the function gave %s; a row is a dict" % shown(row))
        for name, kind in self.answered:
            if name not in row:
                raise Fault("the function gave no `%s`, only %s" % (name, shown(list(row))))
            self.value(name, kind, row[name])
        for name in row:
            if not any(name == known for known, _ in self.answered):
                raise Fault("the function gave `%s`, which is none of `columns`" % (name,))

    def value(self, name, kind, value):
        """The value as marshal knows it."""
        try:
            return None if value is None else self.from_python.get(kind, plain)(value)
        except Exception:
            raise Fault("the function gave %s for `%s`" % (shown(value), name)) from None

    def columns(self, rows):
        """The columns of rows, or an exception if something is wrong with one of them."""
        if rows and max(map(len, rows)) > self.width:
            raise Fault
        return [self.column(kind, [row[name] for row in rows]) for name, kind in self.answered]

    def column(self, kind, values):
        convert = self.from_python.get(kind)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
            kind = {"nested": kind, "decimal": "text"}.get(kind, "int")
        try:
            if kind == "int":
                return INTS, array.array("q", values).tobytes()
            if kind == "float":
                return FLOATS, array.array("d", values).tobytes()
            if kind == "text":
                return TEXTS, "".join(values).encode(), array.array("I", map(len, values)).tobytes()
        except (TypeError, ValueError, OverflowError):
            pass
        return OBJECTS, values

    def answer(self, rows, kept=None, errors=()):
        """The message for `rows`; `kept` are the numbers of the rows that they are of, None if they are of all."""
        return marshal.dumps((kept, len(rows), self.columns(rows), list(errors)), 2)

    def plain(self, row):
        """The row, all of whose values marshal knows."""
        self.check(row)
        return {name: row[name] if kind in self.from_python else plain(row[name]) for name, kind in self.answered}


def shown(value):
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def each_row(rows, function, message):
    """Calls the function with each row."""
    count, columns = marshal.loads(message)
    names, results, errors = rows.names, [], []
    append, values_of_rows = results.append, iter(rows.read(columns, count))
    while True:
        try:
            for values in values_of_rows:
                append(function(dict(zip(names, values))))
            break
        except Exception as error:
            errors.append((len(results), *in_words(error)))
            append(None)
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
        try:
            good.append(rows.plain(next(given)))
            numbers.append(number)
        except Exception as error:
            errors.append((number, *in_words(error)))
    return rows.answer(good, numbers, errors)


def whole_batch(rows, function, message):
    """Calls the function with all rows."""
    try:
        given = function(rows.dicts(*reversed(marshal.loads(message))))
        given = [] if given is None else list(given)
        try:
            return rows.answer(given)
        except Exception:
            return rows.answer([rows.plain(row) for row in given])
    except Exception as error:
        return rows.answer([], None, [(-1, *in_words(error))])


class Batches:
    """Arrow batches, to and from Millstream."""

    def __init__(self, hello):
        import pyarrow

        self.arrow = pyarrow
        self.schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(hello["schema"]))

    def read(self, message):
        return self.arrow.ipc.read_record_batch(self.arrow.py_buffer(message), self.schema)

    def answer(self, given, errors):
        arrow, stream = self.arrow, b""
        if given is not None:
            sink = arrow.BufferOutputStream()
            with arrow.ipc.new_stream(sink, given.schema) as writer:
                writer.write(given)
            stream = sink.getvalue().to_pybytes()
        return marshal.dumps((stream, errors), 2)


def whole_arrow_batch(batches, function, message):
    arrow, given, errors = batches.arrow, None, []
    try:
        given = function(batches.read(message))
        if not isinstance(given, (arrow.RecordBatch, arrow.Table, type(None))):
            raise Fault("the function gave %s; `exchange: arrow` takes a RecordBatch or a Table" % shown(given))
    except Exception as error:
        given, errors = None, [(-1, *in_words(error))]
    return batches.answer(given, errors)


def main():
    pipe = Pipe()
    _, message = pipe.receive()
    hello = marshal.loads(message)
    try:
        function = load(hello["file"], hello["function"])
        if hello["exchange"] == "arrow":
            exchange, call = Batches(hello), whole_arrow_batch
        else:
            exchange, call = Rows(hello), each_row if hello["per"] == "row" else whole_batch
    except Exception as error:
        pipe.send(b"F", marshal.dumps(in_words(error), 2))
        return
    pipe.send(b"H", marshal.dumps(sys.version.split()[0], 2))
    while True:
        _, message = pipe.receive()
        pipe.send(b"A", call(exchange, function, message))


main()
