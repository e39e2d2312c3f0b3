"""Finding and making what runs: our binaries, the peers' environment, Debian's commands."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
REQUIREMENTS = {
    "peers": REPO / "benches" / "requirements.txt",
    # Their dependencies contradict each other.
    "airflow": REPO / "benches" / "requirements-airflow.txt",
    "prefect": REPO / "benches" / "requirements-prefect.txt",
}
DEBIAN = [
    "bash", "curl", "igzip", "java", "kcat", "mariadbd", "nginx", "parallel", "pigz", "redis-server", "rg", "sqlite3",
    "unzip", "wget", "wrk", "xargs", "zcat", "zstd",
]  # fmt: skip


@dataclass(frozen=True)
class Tools:
    """Where everything is. What is not installed is None, and its contenders are left out."""

    millstream: Path
    own: Path
    python: Path | None
    # Another build to compare with, in place of the peers.
    base: Path | None = None
    # The Python of an environment that has our package.
    package: Path | None = None

    def limit(self, name: str) -> str:
        """A program of `benches/limit`."""
        return str(self.own / name)

    def run_job(self, job: Path) -> None:
        """Runs a job that makes data."""
        subprocess.run([str(self.millstream), "run", "--quiet", str(job)], check=True)

    def rapidgzip(self) -> str | None:
        """The command of the peer's package."""
        path = self.python.parent / "rapidgzip" if self.python else None
        return str(path) if path and path.exists() else None


def command(name: str) -> str | None:
    """A command of the system."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")


def missing() -> list[str]:
    """Commands that the benchmarks use and this machine lacks."""
    return [name for name in DEBIAN if not command(name)]


def target_folder() -> Path:
    """Where cargo builds."""
    result = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=REPO, check=True, capture_output=True
    )
    return Path(json.loads(result.stdout)["target_directory"]) / "release"


def build(package: str) -> Path:
    """Builds a package for speed and gives the folder of its programs."""
    subprocess.run(["cargo", "build", "--locked", "--release", "-p", package], cwd=REPO, check=True)
    return target_folder()


def environment(cache: Path, name: str) -> Path:
    """The Python of an environment with the packages that `requirements*.txt` pins; `name` is a key of REQUIREMENTS."""
    requirements = REQUIREMENTS[name]
    recipe = hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]
    folder = cache / f"{name}-{recipe}"
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    if not stamp.exists():
        print(f"installing {', '.join(requirements.read_text().split())}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(requirements)], check=True)
        stamp.touch()
    return python


def package(cache: Path, wheel: Path, peers: Path) -> Path:
    """The Python of an environment with our package from `wheel`, and the peers from their own environment."""
    recipe = hashlib.sha256(wheel.read_bytes()).hexdigest()[:8]
    folder = cache / f"package-{recipe}"
    python, stamp = folder / "bin" / "python", folder / "complete"
    if not stamp.exists():
        for old in cache.glob("package-*"):
            shutil.rmtree(old)
        subprocess.run([str(peers), "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True)
        (own,), (theirs,) = (home.glob("lib/python*/site-packages") for home in (folder, peers.parents[1]))
        (own / "peers.pth").write_text(f"{theirs}\n")
        stamp.touch()
    return python
