"""Runs a command and prints how much memory its whole family of processes took at most: the sum of their proportional
set sizes (PSS, from /proc/PID/smaps_rollup), and each process's own peak. Sampled once a second, or so often that
sampling, for which the kernel walks all page tables, takes a fiftieth of one core.

Usage: measure_pss.py COMMAND [ARGUMENT ...]
"""

import pathlib
import subprocess
import sys
import time


def family(root):
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, []))
    return found


def pss_kib(pid):
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def main():
    process = subprocess.Popen(sys.argv[1:])
    peak, peaks, names = 0, {}, {}
    while process.poll() is None:
        begin, total = time.monotonic(), 0
        for pid in family(process.pid):
            size = pss_kib(pid)
            total += size
            peaks[pid] = max(peaks.get(pid, 0), size)
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
                names[pid] = "/".join(command.split("/")[-2:])
            except OSError:
                pass
        peak = max(peak, total)
        time.sleep(max(1, 50 * (time.monotonic() - begin)))
    for pid, size in sorted(peaks.items(), key=lambda item: -item[1])[:16]:
        print(f"{names.get(pid, '?'):32} {size / 1024:8.0f} MiB", file=sys.stderr)
    print(f"{'all together, at most':32} {peak / 1024:8.0f} MiB", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) > 1 else __doc__)
