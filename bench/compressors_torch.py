"""Times the steps of compressors in torch, beside those of Tersum on the same GPU.

usage: compressors_torch.py COMPRESSORS_CUDA [--count N] [--repeat N] [--json FILE]

For each method torch's steps are timed, then COMPRESSORS_CUDA is run for it, then torch's steps once more: medians over
both. Torch's steps are what a program without Tersum would write: a call for each step, nothing compiled. For topk with
feedback they are: add the residual, abs, topk, gather, clear the winners in the residual; without feedback topk alone.
Prints a table and writes JSON. Exit status 77 without torch or a GPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

BLOCK = 512
RATIO = 0.01


class Method:
    """Gradients in turn, and their residual."""

    def __init__(self, gradients, feedback):
        self.gradients = gradients
        self.residual = torch.zeros_like(gradients[0]) if feedback else None

    def sent(self, turn):
        """What a step sends: a gradient, or the residual after the gradient has been added to it."""
        gradient = self.gradients[turn % 2]
        return gradient if self.residual is None else self.residual.add_(gradient)


class TopK(Method):
    """The largest magnitudes."""

    values = indices = None

    def encode(self, turn):
        """One step's encoding."""
        x = self.sent(turn)
        kept = int(x.numel() * RATIO)
        if self.residual is None:
            self.values, self.indices = torch.topk(x, kept, sorted=False)
            return
        _, self.indices = torch.topk(x.abs(), kept, sorted=False)
        self.values = x[self.indices]
        x[self.indices] = 0

    def add(self, total):
        """Decodes onto a sum."""
        total.index_add_(0, self.indices, self.values, alpha=0.5)


class QInt4(Method):
    """4 bits and a scale for each block."""

    codes = scales = None

    def encode(self, turn):
        """One step's encoding."""
        x = self.sent(turn).view(-1, BLOCK)
        self.scales = x.abs().amax(1, keepdim=True)
        levels = torch.round(x / self.scales * 7)
        nibbles = levels.to(torch.int8) & 15
        self.codes = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        if self.residual is not None:
            x.sub_(levels * self.scales / 7)

    def add(self, total):
        """Decodes onto a sum."""
        levels = torch.stack((self.codes << 4 >> 4, self.codes >> 4), 2).view(-1, BLOCK)
        total.view(-1, BLOCK).add_(levels * self.scales / 7, alpha=0.5)


class Sign(Method):
    """Signs and the mean magnitude of each block."""

    codes = means = None

    @staticmethod
    def weights():
        """Of the bits in a byte."""
        return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device="cuda")

    def encode(self, turn):
        """One step's encoding."""
        x = self.sent(turn).view(-1, BLOCK)
        self.means = x.abs().mean(1, keepdim=True)
        self.codes = ((x < 0).view(-1, 8) * self.weights()).sum(1, dtype=torch.uint8)
        if self.residual is not None:
            x.sub_(torch.where(x < 0, -self.means, self.means))

    def add(self, total):
        """Decodes onto a sum."""
        negative = (self.codes.unsqueeze(1) & self.weights() != 0).view(-1, BLOCK)
        total.view(-1, BLOCK).add_(torch.where(negative, -self.means, self.means), alpha=0.5)


METHODS = {"topk": TopK, "topk+ef": TopK, "qint:bits=4": QInt4, "qint:bits=4+ef": QInt4, "sign": Sign, "sign+ef": Sign}


def times_of(work, repeat):
    """Microseconds of work(turn), by the GPU's clock."""
    times = []
    for turn in range(repeat + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work(turn)
        end.record()
        end.synchronize()
        if turn >= 2:
            times.append(start.elapsed_time(end) * 1e3)
    return times


def torch_times(spec, gradients, total, repeat):
    """Times of encoding and of decoding onto a sum."""
    method = METHODS[spec](gradients, spec.endswith("+ef"))
    encode = times_of(method.encode, repeat)
    return encode, times_of(lambda turn: method.add(total), repeat)


def tersum_row(bench, spec, count):
    """What compressors_cuda says about a method."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.json"
        subprocess.run([bench, "--count", str(count), "--spec", spec, "--json", str(path)], check=True,
                       stdout=subprocess.DEVNULL)
        document = json.loads(path.read_text(encoding="utf-8"))
    return document["rows"][0]


def compare(bench, spec, count, repeat):
    """One method: torch, Tersum, torch."""
    def half():
        gradients = [torch.randn(count, device="cuda") * 1e-3 for _ in range(2)]
        result = torch_times(spec, gradients, torch.zeros(count, device="cuda"), (repeat + 1) // 2)
        del gradients
        torch.cuda.empty_cache()
        return result

    first, ours, second = half(), tersum_row(bench, spec, count), half()
    encode, add = (statistics.median(first[i] + second[i]) for i in (0, 1))
    return {**ours, "torch_encode_us": round(encode, 3), "torch_decode_add_us": round(add, 3),
            "encode_ratio": round(encode / ours["encode_us"], 3),
            "decode_add_ratio": round(add / ours["decode_add_us"], 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="the program compressors_cuda")
    parser.add_argument("--count", type=int, default=1 << 28)
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--json")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("compressors_torch.py: there is no torch with a GPU here", file=sys.stderr)
        return 77
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, {options.count} fp32 elements")
    print(f"# {'spec':<18} {'encode us':>10} {'/floor':>7} {'torch us':>10} {'ratio':>7} "
          f"{'add us':>10} {'/floor':>7} {'torch us':>10} {'ratio':>7}")
    rows = []
    for spec in METHODS:
        row = compare(options.bench, spec, options.count, options.repeat)
        rows.append({**row, "spec": spec})
        print(f"{spec:<20} {row['encode_us']:>10.1f} {row['encode_us'] / row['encode_floor_us']:>7.2f} "
              f"{row['torch_encode_us']:>10.1f} {row['encode_ratio']:>7.2f} {row['decode_add_us']:>10.1f} "
              f"{row['decode_add_us'] / row['decode_add_floor_us']:>7.2f} {row['torch_decode_add_us']:>10.1f} "
              f"{row['decode_add_ratio']:>7.2f}", flush=True)
    if options.json:
        document = {"tool": "compressors_torch", "device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
