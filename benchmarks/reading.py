"""A request log of one GiB: seconds and peak memory of reading it.

    python benchmarks/reading.py [--mib N]

Writes made-up JSON lines of N MiB, with usage in OpenAI's convention and interleaved sessions, and
reads them in a process of its own.
"""

import argparse
import platform
import random
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import jax

SESSIONS = 400_000
LIMIT_MIB = 1024.0

READ = """
import resource, sys, time
from jaxroute.load.traces import read_trace
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
imports, began = peak(), time.process_time()
frame = read_trace(sys.argv[1]).frame
took_s = time.process_time() - began
sessions = int((frame.turn == 0).sum())
print(f"log       {len(frame):,} requests of {sessions:,} sessions")
print(f"time      {took_s:.0f} s of the processor")
print(f"memory    {peak()} MiB at most, {imports} MiB of it before reading")
sys.exit(peak() > float(sys.argv[2]))
"""


def write(path: Path, mib: float) -> None:
    """Writes a log of at least so many MiB."""
    rng, context, size, time_s = random.Random(0), dict[int, int](), 0, 1_700_000_000.0
    with path.open("w") as file:
        while size < mib * 2**20:
            session, time_s = rng.randrange(SESSIONS), time_s + 0.2
            prompt = context.get(session, 0) + rng.randrange(20, 400)
            output = rng.randrange(10, 500)
            context[session] = prompt + output
            size += file.write(
                f'{{"session_id":"conversation-{session:06}","timestamp":{time_s:.1f},'
                f'"request_id":"request-{rng.getrandbits(48):012x}","model":"m","status":"ok",'
                f'"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output},'
                f'"prompt_tokens_details":{{"cached_tokens":{prompt // 2}}},'
                f'"completion_tokens_details":null,"total_tokens":{prompt + output}}}}}\n'
            )


def main() -> None:
    """Prints what reading a log takes; status 1 if it is more than a GiB of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        write(log, arguments.mib)
        print(f"versions  python {platform.python_version()}, jax {jax.__version__}")
        print(f"date      {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
        print(f"sizes     {log.stat().st_size / 2**20:,.0f} MiB of JSON lines", flush=True)
        done = subprocess.run([sys.executable, "-c", READ, log, str(LIMIT_MIB)], check=False)
    print(f"target: less than {LIMIT_MIB:,.0f} MiB: {'missed' if done.returncode else 'met'}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
