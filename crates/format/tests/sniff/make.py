#!/usr/bin/env python3
"""Makes the messy files that the sniffer is tried on, and records what DuckDB's sniffer makes of them.

    pip install duckdb && python3 make.py

Writes files/*.csv and duckdb.json. Everything is derived from fixed seeds: the same script gives the same files.
Rows named geonames_* are from GeoNames (https://www.geonames.org), licensed CC BY 4.0.
"""
import codecs, csv, io, json, pathlib, random

HERE = pathlib.Path(__file__).parent
FILES = HERE / "files"
NAMES = ["Anna", "Björn", "Chloé", "Dmitri", "Émile", "Fatima", "Göran", "Hélène", "Ivan", "Jürgen", "Kateřina", "Łukasz"]
CITIES = ["Berlin", "São Paulo", "Zürich", "New York", "København", "Kraków", "Málaga", "İstanbul", "東京", "Москва"]
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards watch from afar".split()
GEONAMES = """\
3039154\tEl Tarter\tEl Tarter\tEl Tarter\t42.57952\t1.65362\tP\tPPL\tAD\t\t02\t\t\t\t1052\t\t1721\tEurope/Andorra\t2012-11-03
3039163\tSant Julià de Lòria\tSant Julia de Loria\tSan Julia,Sant Julia de Loria\t42.46372\t1.49129\tP\tPPLA\tAD\t\t06\t\t\t\t8022\t\t921\tEurope/Andorra\t2013-11-23
3040051\tles Escaldes\tles Escaldes\tEhskal'des-Ehndzhordani,Escaldes\t42.50729\t1.53414\tP\tPPLA\tAD\t\t08\t\t\t\t15853\t\t1033\tEurope/Andorra\t2024-06-20
3041563\tAndorra la Vella\tAndorra la Vella\tALV,Ando-la-Vyey,Andora\t42.50779\t1.52109\tP\tPPLC\tAD\t\t07\t\t\t\t20430\t\t1037\tEurope/Andorra\t2020-03-03
290594\tUmm Al Quwain City\tUmm Al Quwain City\tOumm al Qaiwain,Um al Kawain\t25.56473\t55.55517\tP\tPPLA\tAE\t\t07\t\t\t\t62747\t\t2\tAsia/Dubai\t2025-01-12
291074\tRas Al Khaimah City\tRas Al Khaimah City\tJulfa,Khaimah,RAK City\t25.78953\t55.9432\tP\tPPLA\tAE\t\t05\t\t\t\t351943\t\t2\tAsia/Dubai\t2019-09-09
"""

random.seed(20240229)
made = {}


def put(name, text, encoding="utf-8", end="\n"):
    data = text if isinstance(text, bytes) else text.replace("\n", end).encode(encoding)
    assert name not in made, name
    made[name] = data


def table(header, rows, delimiter=",", quotechar='"', quoting=csv.QUOTE_MINIMAL, **more):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quotechar=quotechar, quoting=quoting, lineterminator="\n", **more)
    if header:
        writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def people(count=12):
    return [[i + 1, NAMES[i % len(NAMES)], CITIES[i % len(CITIES)], round(random.uniform(1, 999), 2),
             f"20{20 + i % 5}-{1 + i % 12:02}-{1 + i * 2 % 28:02}"] for i in range(count)]


HEAD = ["id", "name", "city", "amount", "day"]

# Delimiters, with and without header, with each line end.
for sign, label in [(",", "comma"), (";", "semicolon"), ("\t", "tab"), ("|", "pipe")]:
    put(f"plain_{label}.csv", table(HEAD, people(), sign))
    put(f"no_header_{label}.csv", table(None, people(), sign))
    put(f"crlf_{label}.csv", table(HEAD, people(), sign), end="\r\n")
    put(f"quoted_{label}.csv", table(HEAD, people(), sign, quoting=csv.QUOTE_ALL))
    put(f"nonnumeric_{label}.csv", table(HEAD, people(), sign, quoting=csv.QUOTE_NONNUMERIC))
    put(f"no_last_newline_{label}.csv", table(HEAD, people(), sign).rstrip("\n"))
    inside = [[i, f"{WORDS[i]}{sign} {WORDS[i + 1]}", f'say "{WORDS[i]}"', i * 1.5] for i in range(10)]
    put(f"delimiter_inside_{label}.csv", table(["n", "phrase", "speech", "half"], inside, sign))
    put(f"empty_cells_{label}.csv", table(["a", "b", "c", "d"], [[i, "" if i % 2 else "x", "", i / 4 if i % 3 else ""] for i in range(12)], sign))
    put(f"two_columns_{label}.csv", table(["key", "value"], [[f"k{i}", i] for i in range(10)], sign))
    put(f"newline_inside_{label}.csv", table(["id", "note", "n"], [[i, f"line one\nline {i}", i * i] for i in range(8)], sign))

put("cr_only.csv", table(HEAD, people()), end="\r")
put("bom_utf8.csv", codecs.BOM_UTF8 + table(HEAD, people()).encode())
put("bom_utf8_semicolon_crlf.csv", codecs.BOM_UTF8 + table(HEAD, people(), ";").replace("\n", "\r\n").encode())

# German, French and Swiss numbers and dates.
def german(value):
    return f"{value:,.2f}".replace(",", "#").replace(".", ",").replace("#", ".")
rows = [[i, f"Filiale {i}", german(random.uniform(0, 100000)), f"{1 + i:02}.{1 + i % 12:02}.2023"] for i in range(14)]
put("german_thousands.csv", table(["Nr", "Name", "Umsatz", "Datum"], rows, ";"))
put("german_plain.csv", table(["Nr", "Wert", "Anteil"], [[i, f"{i},5", f"0,{i}25"] for i in range(10)], ";"))
put("german_crlf_quoted.csv", table(["Nr", "Wert"], [[str(i), f"{i},75"] for i in range(10)], ";", quoting=csv.QUOTE_ALL), end="\r\n")
put("german_negative.csv", table(["Konto", "Saldo"], [[f"DE{i:04}", f"-{i * 37},10"] for i in range(10)], ";"))
put("english_thousands.csv", table(["id", "revenue"], [[i, f"{i * 1234567.89:,.2f}"] for i in range(1, 10)]))
put("swiss_thousands.csv", table(["id", "betrag"], [[i, f"{i * 12345.5:,.2f}".replace(",", "'")] for i in range(1, 10)], ";"))
put("decimal_comma_tab.csv", table(["x", "y"], [[f"{i},{i}", f"{i * 2},0"] for i in range(10)], "\t"))
put("decimal_comma_pipe.csv", table(["x", "y", "z"], [[i, f"{i},{i}", "a"] for i in range(10)], "|"))
put("currency.csv", table(["item", "price"], [[WORDS[i], f"${i}.99"] for i in range(10)]))
put("percent.csv", table(["item", "share"], [[WORDS[i], f"{i * 7}%"] for i in range(10)]))

# Dates and times of many shapes.
shapes = {
    "iso": "{y}-{m:02}-{d:02}", "dots": "{d:02}.{m:02}.{y}", "slashes_day_first": "{d:02}/{m:02}/{y}",
    "slashes_month_first": "{m:02}/{d:02}/{y}", "slashes_year_first": "{y}/{m:02}/{d:02}", "dashes_day_first": "{d:02}-{m:02}-{y}",
    "compact": "{y}{m:02}{d:02}", "iso_time": "{y}-{m:02}-{d:02} {h:02}:{n:02}:00", "iso_t": "{y}-{m:02}-{d:02}T{h:02}:{n:02}:00",
    "iso_zulu": "{y}-{m:02}-{d:02}T{h:02}:{n:02}:00Z", "iso_offset": "{y}-{m:02}-{d:02}T{h:02}:{n:02}:00+02:00",
    "iso_fraction": "{y}-{m:02}-{d:02} {h:02}:{n:02}:00.{n:03}", "dots_time": "{d:02}.{m:02}.{y} {h:02}:{n:02}:00",
    "slashes_time": "{m:02}/{d:02}/{y} {h:02}:{n:02}:00", "clock": "{h:02}:{n:02}:00", "month_name": "{d:02} {b} {y}",
    "month_name_dashes": "{d:02}-{b}-{y}", "epoch": "17{d:02}00{m:02}{n:02}",
}
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
for shape, pattern in shapes.items():
    rows = []
    for i in range(15):
        parts = dict(y=2015 + i % 9, m=1 + i % 12, d=13 + i, h=i, n=3 * i, b=MONTHS[i % 12])
        rows.append([i, pattern.format(**parts), WORDS[i]])
    put(f"date_{shape}.csv", table(["id", "when", "word"], rows))
put("date_ambiguous.csv", table(["id", "when"], [[i, f"{1 + i:02}/{1 + i:02}/2023"] for i in range(9)]))
put("date_mixed.csv", table(["id", "when"], [[i, f"2023-01-{10 + i}" if i % 2 else f"{10 + i}.01.2023"] for i in range(9)]))
put("date_no_header.csv", table(None, [[f"2023-01-{10 + i}", i, WORDS[i]] for i in range(9)]))

# Before, between and behind the table.
put("preamble_one.csv", "Sales report 2023\n" + table(HEAD, people()))
put("preamble_three.csv", "Sales report\nCreated by Anna\n\n" + table(HEAD, people()))
put("preamble_excel.csv", "Bericht;;;;\n;;;;\n" + table(HEAD, people(), ";"))
put("preamble_with_comma.csv", "Report, confidential\nCreated: Monday\n" + table(HEAD, people()))
put("preamble_metadata.csv", "Station: 4711\nUnit: mm\nPeriod: 2023\n" + table(["time", "rain", "flag"], [[f"{i:02}:00:00", i / 10, "ok"] for i in range(12)], "\t"))
put("comment_top.csv", "# made by a machine\n# on Monday\n" + table(HEAD, people()))
put("comment_between.csv", "a,b,c\n1,2,3\n# not data\n4,5,6\n7,8,9\n# nor this\n10,11,12\n13,14,15\n")
put("comment_header.csv", "#id,name,value\n1,a,2.5\n2,b,3.5\n3,c,4.5\n4,d,5.5\n")
put("comment_long.csv", "".join(f"# line {i}, of many\n" for i in range(10)) + table(["x", "y"], [[i, i * i] for i in range(12)]))
put("blank_lines.csv", "a,b\n\n1,x\n\n2,y\n3,z\n\n4,w\n")
put("blank_top.csv", "\n\na,b\n1,x\n2,y\n3,z\n")
put("footer.csv", table(HEAD, people()) + "Total: 12 rows\n")
put("ragged_short.csv", "a,b,c\n" + "".join(f"{i},{i}\n" if i == 5 else f"{i},{i},{i}\n" for i in range(20)))
put("ragged_long.csv", "a,b,c\n" + "".join(f"{i},{i},{i},extra\n" if i == 5 else f"{i},{i},{i}\n" for i in range(20)))
put("trailing_delimiter.csv", "a,b,c,\n" + "".join(f"{i},{i * 2},{WORDS[i]},\n" for i in range(10)))

# Names.
put("all_text_header.csv", table(["name", "city"], [[NAMES[i], CITIES[i]] for i in range(10)]))
put("all_text_no_header.csv", table(None, [[NAMES[i % 4], CITIES[i % 3]] for i in range(12)]))
put("header_years.csv", table(["country", "2019", "2020", "2021"], [[CITIES[i], i * 11, i * 12, i * 13] for i in range(10)]))
put("header_numbers.csv", table(["1", "2", "3"], [[NAMES[i], WORDS[i], CITIES[i]] for i in range(10)]))
put("header_spaces.csv", table(["first name", "last name", "post code"], [[NAMES[i], WORDS[i], 10000 + i] for i in range(10)]))
put("header_unicode.csv", table(["naïve", "größe", "价格"], [[WORDS[i], i, i * 1.5] for i in range(10)]))
put("header_missing_one.csv", table(["", "a", "b"], [[i, i * 2, WORDS[i]] for i in range(10)]))
put("header_duplicate.csv", table(["a", "a", "b"], [[i, i * 2, WORDS[i]] for i in range(10)]))
put("header_quoted_comma.csv", table(["name, first", "size (cm, net)"], [[NAMES[i], i * 1.5] for i in range(10)]))
put("header_only.csv", "id,name,city\n")
put("one_row_no_header.csv", "1,Anna,Berlin\n")
put("numbers_only.csv", table(None, [[i, i * 2, i * 3] for i in range(10)]))

# One column.
put("single_int.csv", "n\n" + "".join(f"{i}\n" for i in range(10)))
put("single_text.csv", "word\n" + "".join(f"{word}\n" for word in WORDS))
put("single_no_header.csv", "".join(f"{i * 3}\n" for i in range(10)))
put("single_mail.csv", "mail\n" + "".join(f"{word}@example.org\n" for word in WORDS))

# Values.
put("null_na.csv", table(["id", "value"], [[i, "NA" if i % 3 == 0 else i * 1.5] for i in range(12)]))
put("null_null.csv", table(["id", "value"], [[i, "NULL" if i % 3 == 0 else i] for i in range(12)]))
put("null_backslash.csv", table(["id", "value"], [[i, "\\N" if i % 3 == 0 else i] for i in range(12)], "\t"))
put("null_dash.csv", table(["id", "value", "t"], [[i, "-" if i % 3 == 0 else i, "x"] for i in range(12)]))
put("empty_column.csv", table(["id", "nothing", "word"], [[i, "", WORDS[i]] for i in range(10)]))
put("bool_true_false.csv", table(["id", "ok"], [[i, "true" if i % 2 else "false"] for i in range(10)]))
put("bool_capitals.csv", table(["id", "ok"], [[i, "TRUE" if i % 2 else "FALSE"] for i in range(10)]))
put("bool_yes_no.csv", table(["id", "ok"], [[i, "yes" if i % 2 else "no"] for i in range(10)]))
put("leading_zeros.csv", table(["plz", "ort"], [[f"0{1000 + i * 7}", CITIES[i]] for i in range(10)]))
put("big_integers.csv", table(["id", "n"], [[i, 10 ** 25 + i] for i in range(10)]))
put("large_integers.csv", table(["id", "n"], [[i, 9007199254740993 + i] for i in range(10)]))
put("scientific.csv", table(["id", "x"], [[i, f"{i}.5e-{i}"] for i in range(10)]))
put("negative.csv", table(["a", "b"], [[-i, -i / 3] for i in range(10)]))
put("plus_signs.csv", table(["a", "phone"], [[i, f"+49 30 {i}12345"] for i in range(10)]))
put("spaces_around.csv", "id , name , value\n" + "".join(f"{i} , {WORDS[i]} , {i}.5\n" for i in range(10)))
put("spaces_after.csv", "id, name, value\n" + "".join(f"{i}, {WORDS[i]}, {i}.5\n" for i in range(10)))
put("spaces_before_quotes.csv", 'id, name\n' + "".join(f'{i}, "{WORDS[i]}, {WORDS[i + 1]}"\n' for i in range(10)))
put("uuid.csv", table(["id", "n"], [[f"{i:08x}-0000-4000-8000-{i * 99:012x}", i] for i in range(10)]))
put("urls.csv", table(["url", "hits"], [[f"https://example.org/{WORDS[i]}?a={i}&b=1", i] for i in range(10)]))
put("json_inside.csv", table(["id", "data"], [[i, json.dumps({"a": i, "b": [1, 2]})] for i in range(10)]))
put("json_inside_unquoted.csv", "id\tdata\n" + "".join(f'{i}\t{{"a": {i}}}\n' for i in range(10)))
put("html_inside.csv", table(["id", "html"], [[i, f'<a href="x,{i}">it\'s</a>'] for i in range(10)], ";"))
put("long_field.csv", table(["id", "text"], [[i, " ".join(random.choices(WORDS, k=400))] for i in range(6)]))
put("many_columns.csv", table([f"c{i}" for i in range(120)], [[i * j for i in range(120)] for j in range(5)]))
put("latitude.csv", table(["lat", "lon", "name"], [[52.5 + i / 10, -13.4 - i / 10, CITIES[i]] for i in range(10)]))
put("times.csv", table(["start", "end"], [[f"{i:02}:15:00", f"{i + 1:02}:45:30"] for i in range(10)]))
put("apostrophes.csv", table(["id", "text"], [[i, f"it's {WORDS[i]}"] for i in range(10)]))
put("mixed_types.csv", table(["id", "v"], [[i, [1, "x", 2.5, "2023-01-01"][i % 4]] for i in range(12)]))
put("text_in_row_eleven.csv", table(["id", "v"], [[i, "n.a." if i == 10 else i] for i in range(20)]))

# Quotes.
put("single_quotes.csv", table(["id", "text"], [[i, f"{WORDS[i]}, {WORDS[i + 1]}"] for i in range(10)], quotechar="'"))
put("single_quotes_all.csv", table(["id", "text"], [[str(i), f"{WORDS[i]}, {WORDS[i + 1]}"] for i in range(10)], quotechar="'", quoting=csv.QUOTE_ALL))
put("backslash_escape.csv", "id,text\n" + "".join(f'{i},"say \\"{WORDS[i]}\\", twice"\n' for i in range(10)))
put("inches.csv", "id|size\n" + "".join(f'{i}|{i}" pipe\n' for i in range(10)))
put("quotes_in_text_tab.csv", "id\ttext\n" + "".join(f'{i}\tthe "{WORDS[i]}" one\n' for i in range(10)))
put("doubled_quotes.csv", table(["a", "b"], [[f'"{w}"', f'{w} "x" {w}'] for w in WORDS]))
put("empty_quotes.csv", 'a,b,c\n' + "".join(f'{i},"","x"\n' for i in range(10)))

# Other signs and encodings.
put("caret.csv", table(HEAD, people(), "^"))
put("tilde.csv", table(HEAD, people(), "~"))
put("colon.csv", table(["user", "id", "group"], [[w, i, i % 3] for i, w in enumerate(WORDS)], ":"))
put("space.csv", table(["a", "b", "c"], [[i, i * 2, i * 3] for i in range(10)], " "))
put("control_a.csv", table(HEAD, people(), "\x01"))
put("log_like.csv", "".join(f"2023-01-01 00:00:{i:02} INFO {WORDS[i]} {WORDS[i + 1]}\n" for i in range(12)))
put("pipes_and_commas.csv", table(["id", "list"], [[i, "a,b,c"] for i in range(10)], "|"))
put("semicolons_and_commas.csv", table(["id", "list", "x"], [[i, "a,b", f"{i},5"] for i in range(10)], ";"))
put("latin1.csv", table(["id", "name"], [[i, n] for i, n in enumerate(["Müller", "Öztürk", "Grün", "Bäcker", "Weiß"])], ";"), encoding="latin-1")
put("utf16_le_bom.csv", codecs.BOM_UTF16_LE + table(HEAD, people()).encode("utf-16-le"))
put("utf16_be_bom.csv", codecs.BOM_UTF16_BE + table(HEAD, people()).encode("utf-16-be"))
put("utf16_le_tab.csv", codecs.BOM_UTF16_LE + table(["a", "b"], [[i, WORDS[i]] for i in range(10)], "\t").replace("\n", "\r\n").encode("utf-16-le"))
put("emoji.csv", table(["id", "text"], [[i, "🦀" * (i + 1)] for i in range(10)]))

# From life.
put("geonames_no_header.csv", GEONAMES)
put("geonames_header.csv", table(["geonameid", "name", "latitude", "longitude", "country", "population", "day"],
    [[f[0], f[1], f[4], f[5], f[8], f[14], f[18]] for f in (line.split("\t") for line in GEONAMES.splitlines())]))
put("bank_statement.csv", "Kontonummer;DE12 3456;\nZeitraum;01.01.2023 - 31.01.2023;\n\n" + table(
    ["Buchungstag", "Verwendungszweck", "Betrag", "Währung"],
    [[f"{1 + i:02}.01.2023", f"Rechnung {i}; Kunde \"{i}\"", f"{(-1) ** i * i * 11},{i}0", "EUR"] for i in range(14)], ";"))
put("pandas_index.csv", table(["", "a", "b"], [[i, i / 3, f"r{i}"] for i in range(10)]))
put("r_export.csv", '"id","x","g"\n' + "".join(f'"{i}",{i * 0.1:.1f},"g{i % 2}"\n' if i != 4 else f'"{i}",NA,"g0"\n' for i in range(1, 12)))
put("mysql_export.csv", "".join(f'"{i}","name {i}",\\N,"2023-01-0{i} 10:00:00"\n' for i in range(1, 10)))
put("postgres_copy.csv", "".join(f"{i}\tname {i}\t\\N\tt\n" for i in range(1, 10)))
put("sensor.csv", "timestamp;temperature;humidity;status\n" + "".join(f"2023-06-01T00:{i:02}:00Z;{20 + i / 10};{50 - i};OK\n" for i in range(30)))
put("weather_fixed.csv", "STATION,DATE,TMAX,TMIN,PRCP\n" + "".join(f"USW{i:05},2023{1 + i % 12:02}01,{i * 3},{-i},{i / 10}\n" for i in range(12)))
put("stock.csv", "Date,Open,High,Low,Close,Volume\n" + "".join(f"2023-01-{i + 10},{100 + i}.12,{101 + i}.5,{99 + i},{100 + i}.75,{1000000 + i * 1234}\n" for i in range(15)))
put("apache.csv", "".join(f'10.0.0.{i} - - [01/Jan/2023:00:00:0{i % 10} +0000] "GET /{WORDS[i]} HTTP/1.1" 200 {i * 100}\n' for i in range(12)))


def main():
    FILES.mkdir(exist_ok=True)
    for old in FILES.iterdir():
        old.unlink()
    for name, data in made.items():
        (FILES / name).write_bytes(data)
    import duckdb
    answers = {}
    for name in sorted(made):
        path = str(FILES / name)
        try:
            row = duckdb.sql(f"SELECT Delimiter, Quote, Escape, Comment, SkipRows, HasHeader, Columns, DateFormat, TimestampFormat FROM sniff_csv('{path}')").limit(1).fetchall()[0]
            answers[name] = {
                "delimiter": row[0], "quote": row[1], "escape": row[2], "comment": row[3], "skip": row[4],
                "header": row[5], "columns": {column["name"]: column["type"] for column in row[6]},
                "date_format": row[7], "timestamp_format": row[8],
            }
        except duckdb.Error as error:
            answers[name] = {"error": str(error).split("\n")[0].replace(path, name)}
    text = json.dumps({"duckdb": duckdb.__version__, "files": answers}, indent=1, ensure_ascii=False)
    (HERE / "duckdb.json").write_text(text + "\n")
    print(len(made), "files,", sum(map(len, made.values())), "bytes")


if __name__ == "__main__":
    main()
