"""Writes core/data/testdata: Parquet files in the forms of real data sets, and the rows that are in them, as JSONL.

Usage: python3 tools/golden/make_parquet.py core/data/testdata   (pyarrow 26.0.1, polars 2.1.0)
       python3 tools/golden/make_parquet.py --rows=N FOLDER         N rows of the form `verl`, FOLDER/N.parquet and N.jsonl

X.parquet has the rows of X.jsonl, as pyarrow reads them back:
  verl      as verl's examples write GSM8K: nested columns, several row groups, snappy
  openrlhf  `input` and `context_messages`, by polars, whose writer is no Arrow; zstd
  trl       `prompt` as a list of messages, fields that only some rows have; dictionary-encoded texts, gzip
  types     a column of each type that is read, nulls, empty lists and texts that JSON escapes
"""

import datetime
import decimal
import json
import math
import pathlib
import sys

import polars
import pyarrow as pa
import pyarrow.parquet as pq


def verl_rows(count=70):
    for i in range(count):
        yield {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"What is {i} + {i}?\nThink \u2192 then answer \"#### n\"."}],
            "ability": "math",
            "reward_model": {"ground_truth": str(2 * i), "style": "rule"},
            "extra_info": {"index": i, "split": "train", "answer": None if i % 2 else f"It is {2 * i}."},
        }


def openrlhf_rows():
    for i in range(20):
        messages = [{"role": "system", "content": "Be brief."}] if i % 3 == 0 else []
        messages.append({"role": "user", "content": f"Name a prime above {i}."})
        yield {"input": f"Name a prime above {i}.", "context_messages": messages, "datasource": "primes", "label": i + 0.5}


def trl_rows():
    for i in range(10):
        yield {
            "prompt": [
                {"role": "user", "content": f"{i}?", "name": None},
                {"role": "assistant", "content": "Pardon?", "name": None},
                {"role": "user", "content": f"I said {i}.", "name": "ada" if i == 3 else None},
            ],
            "completion": [{"role": "assistant", "content": str(i), "name": None}],
            "source": "x" if i < 5 else "y",
        }


def types_table():
    decimals = [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]
    columns = {
        "bool": pa.array([True, None, False]),
        "int8": pa.array([-128, None, 127], pa.int8()),
        "uint8": pa.array([0, None, 255], pa.uint8()),
        "int16": pa.array([-(2**15), None, 2**15 - 1], pa.int16()),
        "uint16": pa.array([0, None, 2**16 - 1], pa.uint16()),
        "int32": pa.array([-(2**31), None, 2**31 - 1], pa.int32()),
        "uint32": pa.array([0, None, 2**32 - 1], pa.uint32()),
        "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
        "double": pa.array([0.1, 1e300, -3.0]),
        "not finite": pa.array([math.nan, math.inf, None]),
        "float": pa.array([0.5, None, -3.0], pa.float32()),
        "text": pa.array(["", 'quote " slash \\ tab \t null \0 end', "Größe \U0001f600\n"]),
        "large_text": pa.array(["a", None, "c"], pa.large_string()),
        "text_view": pa.array(["a", None, "c, which is longer than twelve bytes"], pa.string_view()),
        "binary": pa.array([b"a", None, b"c"]),
        "category": pa.array(["x", None, "x"]).dictionary_encode(),
        "list": pa.array([[], None, [1, None, 3]], pa.list_(pa.int64())),
        "large_list": pa.array([[[]], None, [["a"], ["b", "c"]]], pa.large_list(pa.list_(pa.string()))),
        "fixed_list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"a": 1, "b": {"c": []}}, None, {"a": None, "b": {"c": [{"d": "e"}]}}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "int_map": pa.array([[(1, "one"), (2, None)], None, []], pa.map_(pa.int64(), pa.string())),
        "null": pa.nulls(3),
        "decimal": pa.array(decimals, pa.decimal128(5, 2)),
        "date": pa.array([datetime.date(2026, 1, 2), None, datetime.date(1969, 12, 31)]),
    }
    return pa.table(columns)


def plain(value):
    """What JSON has for a value of Python, as core/data/parquet.h says."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (decimal.Decimal, datetime.date)):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            texts = all(isinstance(key, str) for key, _ in value)
            return {k: plain(v) for k, v in value} if texts else [{"key": k, "value": plain(v)} for k, v in value]
        return [plain(item) for item in value]
    return value


def main(folder):
    tables = {name: pa.Table.from_pylist(list(rows())) for name, rows in
              [("verl", verl_rows), ("openrlhf", openrlhf_rows), ("trl", trl_rows)]}
    tables["types"] = types_table()
    pq.write_table(tables["verl"], folder / "verl.parquet", row_group_size=32, compression="snappy")
    polars.from_arrow(tables["openrlhf"]).write_parquet(folder / "openrlhf.parquet", compression="zstd")
    pq.write_table(tables["trl"], folder / "trl.parquet", compression="gzip", data_page_version="2.0")
    pq.write_table(tables["types"], folder / "types.parquet")
    for name in tables:
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for row in pq.read_table(folder / f"{name}.parquet").to_pylist():
                row = plain(row)
                if name == "types":
                    row["map"] = {} if row["map"] == [] else row["map"]
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_many(count, folder):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(verl_rows(count))), folder / f"{count}.parquet")
    with open(folder / f"{count}.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in verl_rows(count))


if __name__ == "__main__":
    if sys.argv[1].startswith("--rows="):
        write_many(int(sys.argv[1].split("=")[1]), pathlib.Path(sys.argv[2]))
    else:
        main(pathlib.Path(sys.argv[1]))
