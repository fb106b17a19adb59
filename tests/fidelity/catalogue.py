"""Lists every type of the five servers, with its declaration, corner values, and form in the lake. The matrix and docs/fidelity.md are
made from the list. If a type that a column may have is missing here, `test_fidelity_document` fails.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.charsets.collations import CHARSETS
from tests.fidelity.pipeline import SERVERS

MYSQL57, MYSQL80, MYSQL9, MARIADB1011, MARIADB114 = SERVERS
MYSQL, MARIADB = (MYSQL57, MYSQL80, MYSQL9), (MARIADB1011, MARIADB114)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A type of a column.

    - `declared`: the text in CREATE TABLE.
    - `delta`: the Delta type.
    - `values`: the corner values, as SQL.
    - `select`: an expression that prints the value exactly. `{}` in it is the column.
    - `note`: what a reader has to know.
    - `by_value`: JSON is compared by value, because the server prints the same number in another form.
    """

    declared: str
    delta: str
    values: tuple[str, ...]
    servers: tuple[str, ...] = SERVERS
    select: str = "{}"
    note: str = ""
    by_value: bool = False


def _integers() -> list[Kind]:
    deltas = {
        "tinyint": ("tinyint", "smallint"),
        "smallint": ("smallint", "int"),
        "mediumint": ("int", "int"),
        "int": ("int", "bigint"),
    }
    kinds = []
    for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)):
        signed, unsigned = deltas.get(name, ("bigint", "decimal(20,0)"))
        half = 1 << bits - 1
        kinds.append(Kind(declared=name, delta=signed, values=(str(-half), str(half - 1), "0", "-1")))
        kinds.append(Kind(declared=f"{name} unsigned", delta=unsigned, values=(str(2 * half - 1), str(half), "0")))
    return [
        *kinds,
        Kind(
            declared="tinyint(1)",
            delta="tinyint",
            values=("0", "1", "2", "-128"),
            note="never a boolean: values above 1 exist",
        ),
        Kind(declared="int(5) unsigned zerofill", delta="bigint", values=("7", "4294967295"), select="{} + 0"),
        Kind(declared="boolean", delta="tinyint", values=("true", "false", "17")),
    ]


def _numbers() -> list[Kind]:
    # MySQL stores decimals in groups of nine digits. These types have an incomplete group after the point, of each length.
    remainders = tuple((9 + digits, digits) for digits in range(1, 9))
    decimals = ((1, 0), (5, 5), (9, 9), (10, 2), (18, 9), (38, 0), (38, 30), *remainders)
    long = ((39, 0), (65, 0), (65, 30))
    kinds = []
    for precision, scale in (*decimals, *long):
        most = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
        least = "0." + "0" * (scale - 1) + "1" if scale else "1"
        delta = f"decimal({precision},{scale})" if precision <= 38 else "string"
        note = "more digits than a Delta decimal has" if precision > 38 else ""
        values = (most, f"-{most}", least, f"-{least}", "0")
        kinds.append(Kind(declared=f"decimal({precision},{scale})", delta=delta, values=values, note=note))
    floats = (
        "0",
        "-0e0",
        "0.1",
        "1.4e-45",
        "-1.1754942e-38",
        "3.4028234e38",
        "-3.4028234e38",
        "1.17549435e-38",
        "16777217",
        "1e-10",
    )
    doubles = (
        "0",
        "0.1",
        "1.7976931348623157e308",
        "-2.2250738585072014e-308",
        "9007199254740993",
        "1e-300",
        "4.9e-324",
        "-2.225073858507201e-308",
    )
    bits = {1: "boolean", 64: "decimal(20,0)"}
    return [
        *kinds,
        Kind(declared="decimal(12,4) unsigned", delta="decimal(12,4)", values=("0", "99999999.9999")),
        Kind(declared="float", delta="float", values=floats, select="{} * 1e0"),
        Kind(declared="float unsigned", delta="float", values=("0", "1.5"), select="{} * 1e0"),
        Kind(declared="float(7,3)", delta="float", values=("0", "1234.568", "-0.001"), select="{} * 1e0"),
        Kind(declared="float(53)", delta="double", values=doubles, select="{} * 1e0"),
        Kind(declared="double", delta="double", values=doubles, select="{} * 1e0"),
        Kind(declared="double(10,2) unsigned", delta="double", values=("0", "1234.56"), select="{} * 1e0"),
        *(
            Kind(declared=f"bit({size})", delta=bits.get(size, "bigint"), select="{} + 0",
                 values=("0", "1", str((1 << size) - 1), str(1 << size - 1)))
            for size in range(1, 65)
        ),
    ]  # fmt: skip


def _times() -> list[Kind]:
    fractions = ("", "(1)", "(2)", "(3)", "(4)", "(5)", "(6)")
    days = ("'0001-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'", "'2024-02-29 12:34:56.123456'", "'9999-12-31 23:59:59'",
            "'0000-00-00 00:00:00'", "'2020-00-00 00:00:00'", "'2020-05-00 10:11:12'", "'0000-01-01 00:00:00'")  # fmt: skip
    instants = ("'1970-01-01 00:00:01'", "'2024-02-29 12:34:56.654321'", "'2038-01-19 03:14:07'", "0")
    clocks = (
        "'00:00:00'",
        "'-00:00:01'",
        "'838:59:59'",
        "'-838:59:59'",
        "'100:00:00.987654'",
        "'-23:59:59.123456'",
        "'-00:00:00.1'",
    )
    lost = "zero and partial dates, year 0: by `zero_dates` (null, error, text)"
    return [
        Kind(declared="date", delta="date", values=tuple(f"{day[:11]}'" for day in days), note=lost),
        *(Kind(declared=f"datetime{f}", delta="timestamp_ntz", values=days, note=lost) for f in fractions),
        *(Kind(declared=f"timestamp{f} NULL", delta="timestamp", values=instants, note="the instant, in UTC") for f in fractions),
        *(Kind(declared=f"time{f}", delta="string", values=clocks) for f in fractions),
        Kind(declared="year", delta="int", values=("1901", "2155", "0"), note="year 0000 is 0"),
    ]  # fmt: skip


TEXTS = ("''", "'a'", "'trailing  '", "'äß€'", "'Ω'", "'中文'", "'😀\\0\\n\\\\'")
LATIN = ("''", "'a'", "'ÄÖß€'", "'ÿ~'")


def _strings() -> list[Kind]:
    wide = ("x''", "x'00'", "x'6100FF'", "repeat(x'AB', 7)")
    sizes = ("tiny", "", "medium", "long")
    return [
        *(Kind(declared=f"char({n})", delta="string", values=TEXTS) for n in (10, 63, 64, 255)),
        Kind(declared="char(0)", delta="string", values=("''",)),
        *(Kind(declared=f"varchar({n})", delta="string", values=TEXTS) for n in (10, 64, 300)),
        Kind(declared="nchar(5)", delta="string", values=LATIN),
        Kind(declared="nvarchar(5)", delta="string", values=LATIN),
        *(Kind(declared=f"{size}text", delta="string", values=TEXTS) for size in sizes),
        *(Kind(declared=f"binary({n})", delta="binary", values=wide, note="padded with zero bytes to its length")
          for n in (7, 16, 255)),
        *(Kind(declared=f"varbinary({n})", delta="binary", values=wide) for n in (7, 300)),
        *(Kind(declared=f"{size}blob", delta="binary", values=wide) for size in sizes),
        Kind(declared="enum('a','b''c','ü,x','')", delta="string", values=("'a'", "3", "4", "0", "'b''c'"),
             note="the error value 0 is the empty string, as SELECT prints it"),
        Kind(declared="enum(" + ",".join(f"'e{n}'" for n in range(300)) + ")", delta="string", values=("1", "256", "300")),
        *(Kind(declared="enum(" + ",".join(f"'n{n}'" for n in range(count)) + ")", delta="string", values=("1", "255", str(count)))
          for count in (255, 256, 257)),
        Kind(declared="set('a','b','c')", delta="string", values=("0", "5", "7", "'a,b'")),
        *(Kind(declared="set(" + ",".join(f"'m{n}'" for n in range(count)) + ")", delta="string",
               values=("0", "1", str((1 << count) - 1), str(1 << count - 1)))
          for count in (8, 9, 16, 17, 24, 25, 32, 33, 40, 48, 56, 63)),
        Kind(declared="set(" + ",".join(f"'s{n}'" for n in range(64)) + ")", delta="string",
             values=("0", "1", "9223372036854775808", "18446744073709551615")),
    ]  # fmt: skip


# One word of each script. Characters that a charset lacks become `?` in it.
SCRIPTS = (
    "Grüße, Ångström 1 €",
    "Łódź Žižek",
    "Ελλάδα",
    "Привіт",
    "Հայաստան",
    "საქართველო",
    "שלום",
    "سلام",
    "ไทย",
    "日本語 カナ ｶﾅ",
    "한국어",
    "简体 繁體",
    "😀",
)


def _charsets() -> tuple[Kind, ...]:
    """Returns texts of each charset, only for the matrix."""
    return tuple(
        Kind(
            declared=f"varchar(40) character set {name}",
            delta="string",
            values=tuple(f"CONVERT(_utf8mb4'{word}' USING {name})" for word in SCRIPTS),
            servers=MYSQL if name == "gb18030" else SERVERS,
        )
        for name in sorted(CHARSETS)
        if name != "binary"
    )


def _others() -> list[Kind]:
    point, line = "ST_GeomFromText('POINT(1 -2.5)')", "ST_GeomFromText('LINESTRING(0 0,1 1)', 4326)"
    polygon = "ST_GeomFromText('POLYGON((0 0,0 1,1 1,0 0))')"
    spatial = {
        "geometry": (point, line, polygon),
        "point": (point,),
        "linestring": (line,),
        "polygon": (polygon,),
        "multipoint": ("ST_GeomFromText('MULTIPOINT(0 0,1 1)')",),
        "multilinestring": ("ST_GeomFromText('MULTILINESTRING((0 0,1 1),(2 2,3 3))')",),
        "multipolygon": ("ST_GeomFromText('MULTIPOLYGON(((0 0,0 1,1 1,0 0)))')",),
        "geometrycollection": (
            "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))')",
            "ST_GeomFromWKB(x'010700000000000000')",
        ),
    }
    documents: tuple[str, ...] = (
        "'null'", "'{}'", "'[]'", "'true'", "'\"text\\\\n\\\\u00e9\"'", "'-1'", "'18446744073709551615'", "'1.5e300'", "'1.0'",
        "'{\"b\": [1, {\"a\": null}], \"a\": \"😀\"}'",
    )  # fmt: skip
    twice = '\'{"a": 1, "a": 2, "b": {"c": 1, "c": [3], "bb": 4}}\''
    many = "'{" + ", ".join(f'"k{n}": {n * 7}' for n in range(3000)) + "}'"
    documents = (*documents, twice, many)
    deep = ("'" + "[" * 99 + "]" * 99 + "'", "'" + '{"a": ' * 99 + "1" + "}" * 99 + "'")
    typed = (
        "(SELECT JSON_ARRAY(y, b, e, s) FROM typed)",
        "(SELECT JSON_OBJECT('y', y, 'b', b, 'e', e, 's', s) FROM typed)",
    )
    opaque = (
        *deep,
        *typed,
        "JSON_OBJECT('d', CAST('2024-02-29' AS DATE), 't', CAST('-12:34:56.789' AS TIME(3)))",
        "JSON_OBJECT('m', CAST('2024-02-29 01:02:03.4' AS DATETIME(1)), 's', TIMESTAMP '2024-02-29 01:02:03.456789')",
        "JSON_ARRAY(1.50, -12345678901234567890.123456789, CAST(0 AS DECIMAL(65,30)), x'00FF', b'1010')",
        "JSON_OBJECT('l', REPEAT('long ', 20000), 'n', JSON_ARRAY(32767, 32768, -32769, 2147483648, 9223372036854775808))",
        "JSON_ARRAY(ST_GeomFromText('POINT(1 2)'), 0.1e0, -0e0, 1e16)",
    )  # fmt: skip
    return [
        *(Kind(declared=name, delta="binary", values=values, note="SRID (4 bytes, little-endian) and WKB")
          for name, values in spatial.items()),
        Kind(declared="json", delta="string", values=(*documents, *opaque), servers=(MYSQL80, MYSQL9),
             select="CAST({} AS CHAR)", note="as the server prints it"),
        Kind(declared="json", delta="string", values=(*documents, *opaque), servers=(MYSQL57,), select="CAST({} AS CHAR)",
             note="as MySQL 8.0 prints it; 5.7 leaves out the `.0` of a whole double", by_value=True),
        Kind(declared="json", delta="string", values=documents, servers=MARIADB,
             note="MariaDB's JSON is a longtext: the text that was written"),
        *(
            Kind(declared=f"{name} compressed", delta=delta, values=("''", "'a'", "repeat('ab', 120)"), servers=MARIADB)
            for name, delta in (("varchar(100)", "string"), ("varchar(300)", "string"), ("text", "string"),
                                ("varbinary(250)", "binary"), ("mediumblob", "binary"))
        ),
        Kind(declared="uuid", delta="string", servers=MARIADB, note="as SELECT prints it",
             values=("'123e4567-e89b-12d3-a456-426655440000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
                     "'00000000-0000-0000-0000-000000000000'", "'01910b91-9a8c-7c5f-8d2e-0123456789ab'",
                     "'f0910b91-9a8c-1c5f-8d2e-0123456789ab'", "'f0910b91-9a8c-6c5f-0d2e-0123456789ab'")),
        Kind(declared="inet6", delta="string", servers=MARIADB, note="as SELECT prints it",
             values=("'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.128'", "'1:0:0:2:0:0:0:3'", "'fe80:0:0:1:0:0:1:0'",
                     "'::192.0.2.1'", "'1:2:3:4:5:6:7:8'", "'1:0:2:3:4:5:6:7'", "'0:1:0:1:0:1:0:1'", "'::2:0:0:0'", "'1::'")),
        Kind(declared="inet4", delta="string", servers=MARIADB, note="as SELECT prints it",
             values=("'0.0.0.0'", "'192.0.2.1'", "'255.255.255.255'", "'127.0.0.1'")),
    ]  # fmt: skip


KINDS: tuple[Kind, ...] = (*_integers(), *_numbers(), *_times(), *_strings(), *_others())
IN_CHARSETS = _charsets()


def kinds_of(server: str) -> tuple[Kind, ...]:
    return tuple(kind for kind in (*KINDS, *IN_CHARSETS) if server in kind.servers)
