"""Tests of scripts/plot_results.py and svg_chart.py on small results.

usage: plot_test.py ROOT [unittest arguments]
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "scripts"))

import svg_chart  # noqa: E402

SIZES = [1 << 10, 1 << 16, 1 << 20]


def collectives(right=True, collective_names=("all_reduce",)):
    """As collectives_cuda writes it."""
    rows = [{"collective": collective, "bytes": size, "mode": "graph", "name": name, "us": us * size / 1024,
             "ratio": ratio, "right": right}
            for collective in collective_names for size in SIZES
            for name, us, ratio in (("tersum", 2.5, 3.0), ("nccl-2.28.9", 7.5, 1.0))]
    return {"tool": "collectives_cuda", "card": "Card <1>", "ranks": 2, "dtype": "fp32", "graph_ops": 50, "rows": rows}


def compressed():
    """As compressed_cuda writes it."""
    rows = [{"bytes": size, "name": name, "us": us, "ratio": 30 / us, "error": 0.1, "right": True}
            for size in SIZES for name, us in (("qint:bits=4+ef", 12), ("nccl-2.28.9", 30))]
    return {"tool": "compressed_cuda", "card": "Card", "ranks": 2, "rows": rows}


def compressors(**more):
    """As compressors_cuda writes it, or with `more` as compressors_torch.py does."""
    row = {"spec": "topk+ef", "count": 1 << 28, "payload_bytes": 5, "encode_us": 1200.0, "encode_floor_us": 800.0,
           "decode_us": 400.0, "decode_floor_us": 300.0, "decode_add_us": 150.0, "decode_add_floor_us": 100.0}
    return {"tool": "compressors_cuda", "device": "Card", "rows": [dict(row, count=1 << 20), {**row, **more}]}


def replay():
    """As exchange_replay writes it."""
    rows = [{"compressor": name, "iteration_ms": ms, "compute_ms": 20.0, "wire_bytes": 1e8, "bound_ms": 25.0}
            for name, ms in (("none", 90.0), ("topk", 26.0))]
    return {"tool": "exchange_replay", "card": "Card", "ranks": 2, "trace": "bert.csv", "link_gbit": 10.0, "rows": rows}


def perf(wrong=0):
    """As tersum-perf writes it."""
    measured = {"time_us": 5.0, "nccl": {"time_us": 12.5, "ratio": 2.5, "wrong": 0}}
    return {"tool": "tersum-perf", "collective": "all_reduce", "ranks": 2, "transport": "auto", "dtype": "fp32",
            "device": "Card", "compressor": "", "nccl": {"version": "2.28.9"}, "out_of_bounds_values": wrong,
            "results": [{"size_bytes": size, "out_of_place": measured, "in_place": None} for size in SIZES]}


class Plots(unittest.TestCase):
    """Every result becomes a section of the summary and well-formed pictures."""

    def run_script(self, **documents):
        """(exit status, summary, {name: SVG}, stderr) of the script on these documents."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "machine.txt").write_text("2026-11-28\nCard, 580.1\nCard, 580.1\n", encoding="utf-8")
            for stem, document in documents.items():
                text = document if isinstance(document, str) else json.dumps(document)
                (folder / f"{stem}.json").write_text(text, encoding="utf-8")
            process = subprocess.run([sys.executable, "-B", ROOT / "scripts/plot_results.py", folder], check=False,
                                     capture_output=True, text=True)
            pictures = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
            summary = folder / "summary.md"
            return process.returncode, summary.read_text(encoding="utf-8"), pictures, process.stderr

    def texts(self, picture):
        """What stands in an SVG, which must be well-formed."""
        return [node.text for node in xml.fromstring(picture).iter() if node.text and node.text.strip()]

    def test_all_results_are_shown(self):
        status, summary, pictures, errors = self.run_script(
            all_reduce=collectives(), others=collectives(collective_names=("broadcast", "reduce")), small=compressed(),
            compressors=compressors(), torch=compressors(torch_encode_us=9600.0, torch_decode_add_us=300.0,
                                                         encode_ratio=8.0, decode_add_ratio=2.0) | {"torch": "2.11"},
            shift=compressors(encode_slowest_us=1600.0, steps=23, missed=20) | {"shift": True},
            replay=replay(), perf=perf(), tests={"tests": 3})
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(set(pictures), {"all_reduce", "all_reduce_time", "others", "small", "compressors", "torch",
                                         "shift", "replay", "perf"})
        self.assertIn("2026-11-28, Card, 580.1", summary)
        self.assertIn("| all_reduce, graph, tersum | 2.5 (3.00) | 160 (3.00) | 2560 (3.00) |", summary)
        self.assertIn("| `qint:bits=4+ef` | 12 (2.50) | 12 (2.50) | 12 (2.50) |", summary)
        self.assertIn("| `topk+ef` | 1200 (1.50) | 400 (1.33) | 150 (1.50) | 9600 (8.0) | 300 (2.0) |", summary)
        self.assertIn("| `topk+ef` | 1200 (1.50) | 400 (1.33) | 150 (1.50) | 1600 (2.00) | 20 of 23 |", summary)
        self.assertIn("| `none` | 90.00 | 70.00 | 25.00 | 100.0 |", summary)
        self.assertIn("| out of place | 5 (2.50) | 5 (2.50) | 5 (2.50) |", summary)
        for name, picture in pictures.items():
            with self.subTest(picture=name):
                self.assertTrue(any("Card" in text for text in self.texts(picture)))
                self.assertIn(f"({name}.svg)", summary)
        self.assertIn("tersum, graph", self.texts(pictures["all_reduce_time"]))
        for size in ("1K", "64K", "1M"):
            self.assertIn(size, self.texts(pictures["all_reduce"]))

    def test_wrong_results_are_named(self):
        status, summary, _, errors = self.run_script(bad=collectives(right=False), worse=perf(wrong=4))
        self.assertEqual(status, 1)
        for text in ("bad: 6 rows are wrong", "worse: 4 wrong values"):
            self.assertIn(text, errors)
            self.assertIn(text, summary)

    def test_files_that_cannot_be_read_are_named(self):
        broken = collectives()
        del broken["rows"][0]["us"]
        status, _, _, errors = self.run_script(cut='{"tool": ', broken=broken, empty={"tool": "exchange_replay"})
        self.assertEqual(status, 1)
        for name in ("cut.json", "broken.json", "empty.json"):
            self.assertIn(name, errors)

    def test_a_folder_is_needed(self):
        process = subprocess.run([sys.executable, ROOT / "scripts/plot_results.py"], check=False, capture_output=True,
                                 text=True)
        self.assertEqual(process.returncode, 1)
        self.assertIn("usage", process.stderr)


class Charts(unittest.TestCase):
    """Points are where their numbers say."""

    def test_a_larger_value_is_higher(self):
        for logarithmic in (False, True):
            picture = svg_chart.line_chart("t", "s", "y", [svg_chart.Series("a", [(1, 2), (2, 4), (4, 8)])],
                                           logarithmic=logarithmic)
            places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)]
            (x1, y1), (x2, y2), (x3, y3) = places
            self.assertAlmostEqual(x3 - x2, x2 - x1, delta=0.2)
            self.assertAlmostEqual((y1 - y2) * (1 if logarithmic else 2), y2 - y3, delta=0.2)
            self.assertLess(y3, y1)

    def test_one_size_and_one_value_are_enough(self):
        picture = svg_chart.line_chart("t", "s", "y", [svg_chart.Series("a", [(8, 1)])], logarithmic=True)
        self.assertEqual(len(re.findall("<circle", picture)), 1)

    def test_ticks_cover_the_values(self):
        for high in (0.03, 1, 1.2, 6, 47, 999, 12345):
            ticks = svg_chart.linear_ticks(high)
            self.assertEqual(ticks[0], 0)
            self.assertGreaterEqual(ticks[-1], high * (1 - 1e-9))
            self.assertLess(len(ticks), 9)
            low = high / 50
            ticks = svg_chart.logarithmic_ticks(low, high)
            self.assertLessEqual(ticks[0], low)
            self.assertGreaterEqual(ticks[-1], high)

    def test_bars_may_be_missing(self):
        picture = svg_chart.bar_chart("t", "s", "y", ["g", "h"], [svg_chart.Series("a", [1, None])])
        self.assertEqual(picture.count("<rect"), 3)  # paper, legend, one bar


if __name__ == "__main__":
    unittest.main()
