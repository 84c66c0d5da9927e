"""Makes plots and one table of what scripts/gpu.sh has measured.

usage: plot_results.py DIRECTORY

Reads DIRECTORY/*.json (of collectives_cuda, compressed_cuda, compressors_cuda, compressors_torch.py, exchange_replay and
tersum-perf) and machine.txt, and writes DIRECTORY/summary.md and an SVG beside each JSON file. Files of other programs
are left alone. Exit status 1 if a file cannot be read or something in it is marked as wrong.
"""

import json
import sys
from pathlib import Path

from svg_chart import Mark, Series, bar_chart, line_chart, size_name

EVEN = Mark(1, "as fast as NCCL")


def table(titles, rows):
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def by_size(rows, name_of, cell_of, first_title):
    """A table with a column for each size, a line for each name, in the order in which they come."""
    sizes = sorted({row["bytes"] for row in rows})
    names = list(dict.fromkeys(name_of(row) for row in rows))
    cells = {(name_of(row), row["bytes"]): cell_of(row) for row in rows}
    return table([first_title] + [size_name(size) for size in sizes],
                 [[name] + [cells.get((name, size), "") for size in sizes] for name in names])


def lines_of(rows, name_of, value_of):
    """A Series for each name."""
    points = {}
    for row in rows:
        points.setdefault(name_of(row), []).append((row["bytes"], value_of(row)))
    return [Series(name, values) for name, values in points.items()]


def short_name(spec):
    """Without what is the default anyway."""
    return spec.replace(",block=512", "").replace(":block=512", "").replace(",rounding=nearest", "")


def time_and_ratio(row):
    return f"{row['us']:.4g} ({row['ratio']:.2f})"


class Report:
    """What has been read so far."""

    def __init__(self, folder):
        self.folder = folder
        machine = folder / "machine.txt"
        lines = machine.read_text(encoding="utf-8").splitlines() if machine.exists() else []
        self.machine = ", ".join(dict.fromkeys(lines))  # cards of one kind once
        self.lines = ["# GPU benchmarks", ""] + ([self.machine, ""] if self.machine else [])
        self.wrong = []

    def section(self, title, plots, lines):
        """Writes the plots: {suffix of the file name: SVG}."""
        self.lines += [f"## {title}", ""]
        for name, svg in plots.items():
            (self.folder / f"{name}.svg").write_text(svg, encoding="utf-8")
            self.lines += [f"![{name}]({name}.svg)", ""]
        self.lines += lines + [""]

    def subtitle(self, what):
        """With what machine.txt adds to it."""
        return "; ".join([what, *(part for part in self.machine.split(", ") if part not in what)])

    def check(self, name, rows):
        bad = sum(1 for row in rows if not row.get("right", True))
        if bad:
            self.wrong.append(f"{name}: {bad} rows are wrong")

    def collectives(self, name, document):
        rows = document["rows"]
        self.check(name, rows)
        reference = rows[-1]["name"]  # the last contender
        several = len({row["collective"] for row in rows}) > 1

        def name_of(row):
            return f"{row['collective']}, {row['mode']}" + ("" if several else f", {row['name']}")

        ours = [row for row in rows if row["name"] != reference] or rows
        title = f"Collectives of {document['dtype']} between {document['ranks']} GPUs"
        subtitle = self.subtitle(document["card"])
        plots = {}
        if reference.startswith("nccl"):
            plots[name] = line_chart(title + f" against {reference}", subtitle, "time of NCCL / time of Tersum",
                                     lines_of(ours, name_of, lambda row: row["ratio"]), mark=EVEN)
        if not several:
            plots[name + "_time"] = line_chart(title, subtitle, "microseconds", lines_of(
                rows, lambda row: f"{row['name']}, {row['mode']}", lambda row: row["us"]), logarithmic=True)
        self.section(f"{title} ({name})", plots,
                     ["Microseconds (and the time of the last contender over it).", ""] +
                     by_size(rows, lambda row: f"{row['collective']}, {row['mode']}, {row['name']}", time_and_ratio,
                             "operation"))

    def compressed(self, name, document):
        rows = document["rows"]
        self.check(name, rows)
        reference = rows[-1]["name"]
        title = f"Compressed all-reduces of fp32 between {document['ranks']} GPUs"
        plots = {}
        if reference.startswith("nccl"):
            ours = [row for row in rows if row["name"] != reference]
            plots[name] = line_chart(title + f" against {reference}, dense", self.subtitle(document["card"]),
                                     "time of NCCL / time of Tersum",
                                     lines_of(ours, lambda row: row["name"], lambda row: row["ratio"]), mark=EVEN)
        self.section(f"{title} ({name})", plots,
                     ["Microseconds (and NCCL's dense time over it).", ""] +
                     by_size(rows, lambda row: f"`{row['name']}`", time_and_ratio, "method"))

    def compressors(self, name, document):
        largest = max(row["count"] for row in document["rows"])
        rows = [row for row in document["rows"] if row["count"] == largest]
        kinds = ("encode", "decode", "decode_add")
        over = [[row[f"{kind}_us"] / row[f"{kind}_floor_us"] for row in rows] for kind in kinds]
        titles = ["compressor"] + [f"{kind.replace('_', '-')} µs (/floor)" for kind in kinds]
        cells = [[f"`{row['spec']}`"] + [f"{row[f'{kind}_us']:.0f} ({row[f'{kind}_us'] / row[f'{kind}_floor_us']:.2f})"
                                         for kind in kinds] for row in rows]
        shift = document.get("shift", False)
        if shift:
            titles += ["slowest encode µs (/floor)", "missed guesses"]
            for row, line in zip(rows, cells):
                line += [f"{row['encode_slowest_us']:.0f} ({row['encode_slowest_us'] / row['encode_floor_us']:.2f})",
                         f"{row['missed']} of {row['steps']}"]
        what = ", gradients that change their distribution" if shift else ""
        plots = {name: bar_chart(f"Compressors, {largest} fp32 elements{what}", self.subtitle(document["device"]),
                                 "time / floor", [short_name(row["spec"]) for row in rows],
                                 [Series(kind.replace("_", "-"), values) for kind, values in zip(kinds, over)],
                                 mark=Mark(1, "floor"))}
        if "torch_encode_us" in rows[0]:
            titles += ["torch encode µs (ratio)", "torch decode-add µs (ratio)"]
            for row, line in zip(rows, cells):
                line += [f"{row['torch_encode_us']:.0f} ({row['encode_ratio']:.1f})",
                         f"{row['torch_decode_add_us']:.0f} ({row['decode_add_ratio']:.1f})"]
            plots[name] = bar_chart(f"Compressors against torch, {largest} fp32 elements",
                                    self.subtitle(f"{document['device']}, torch {document['torch']}"),
                                    "time of torch / time of Tersum", [short_name(row["spec"]) for row in rows],
                                    [Series("encode", [row["encode_ratio"] for row in rows]),
                                     Series("decode-add", [row["decode_add_ratio"] for row in rows])])
        self.section(f"Compressors ({name})", plots, table(titles, cells))

    def replay(self, name, document):
        rows = document["rows"]
        has_bound = any(row["bound_ms"] > 0 for row in rows)
        bars = [Series("step", [row["iteration_ms"] for row in rows]),
                Series("exposed communication", [max(0, row["iteration_ms"] - row["compute_ms"]) for row in rows])]
        if has_bound:
            bars.append(Series("bound of the step", [row["bound_ms"] for row in rows]))
        compute = rows[0]["compute_ms"]
        title = f"Replay of {document['trace']} on {document['ranks']} GPUs"
        if document["link_gbit"]:
            title += f", {document['link_gbit']:g} Gbit/s"
        self.section(f"{title} ({name})", {name: bar_chart(
            title, self.subtitle(document["card"]), "milliseconds", [row["compressor"] for row in rows], bars,
            mark=Mark(compute, "compute alone"))},
            table(["compressor", "step ms", "exposed ms", "bound ms", "wire MB"],
                  [[f"`{row['compressor']}`", f"{row['iteration_ms']:.2f}",
                    f"{row['iteration_ms'] - row['compute_ms']:.2f}",
                    f"{row['bound_ms']:.2f}" if row["bound_ms"] > 0 else "", f"{row['wire_bytes'] / 1e6:.1f}"]
                   for row in rows]))

    def perf(self, name, document):
        if document["out_of_bounds_values"]:
            self.wrong.append(f"{name}: {document['out_of_bounds_values']} wrong values")
        if document["compressor"]:
            return
        rows = [{"bytes": result["size_bytes"], "form": form.replace("_", " "), **result[form]}
                for result in document["results"] for form in ("out_of_place", "in_place") if result[form]]

        def cell(row):
            return f"{row['time_us']:.4g}" + (f" ({row['nccl']['ratio']:.2f})" if "nccl" in row else "")

        title = f"{document['collective']} of {document['dtype']} by communicators, {document['ranks']} ranks"
        subtitle = self.subtitle(document["device"] or document["transport"])
        plots = {}
        if len({row["bytes"] for row in rows}) > 1:
            plots[name] = line_chart(title, subtitle, "microseconds",
                                     lines_of(rows, lambda row: row["form"], lambda row: row["time_us"]) + lines_of(
                                         [row for row in rows if "nccl" in row], lambda row: "NCCL, " + row["form"],
                                         lambda row: row["nccl"]["time_us"]), logarithmic=True)
        what = "Microseconds (and NCCL's time over it)." if "nccl" in document else "Microseconds."
        self.section(f"{title} ({name})", plots, [what, ""] + by_size(rows, lambda row: row["form"], cell, "form"))


READERS = {"collectives_cuda": Report.collectives, "compressed_cuda": Report.compressed,
           "compressors_cuda": Report.compressors, "compressors_torch": Report.compressors,
           "exchange_replay": Report.replay, "tersum-perf": Report.perf}


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__.split("\n\n")[1])
    report = Report(Path(sys.argv[1]))
    for path in sorted(report.folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            tool = document.get("tool") if isinstance(document, dict) else None
            if tool in READERS:
                READERS[tool](report, path.stem, document)
        except (ValueError, KeyError, IndexError) as error:
            report.wrong.append(f"{path.name}: cannot be read ({type(error).__name__}: {error})")
    if report.wrong:
        report.lines += ["## Wrong", ""] + [f"- {line}" for line in report.wrong] + [""]
    (report.folder / "summary.md").write_text("\n".join(report.lines), encoding="utf-8")
    for line in report.wrong:
        print(line, file=sys.stderr)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
