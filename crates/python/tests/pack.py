"""Packs a wheel as `make wheel` does, of a library that is there: it takes seconds, and builds nothing anew.

    pack.py LIBRARY FOLDER

Prints the path of the wheel.
"""

import base64
import hashlib
import pathlib
import sysconfig
import sys
import tomllib
import zipfile

CRATE = pathlib.Path(__file__).parents[1]


def main(library, folder):
    project = tomllib.loads((CRATE / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((CRATE / "../../Cargo.toml").read_text())["workspace"]["package"]["version"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp310-abi3-{platform}"
    scripts = "".join(f"{name} = {function}\n" for name, function in project["scripts"].items())
    about = f"{project['name']}-{version}.dist-info"
    files = {f"millstream/{path.name}": path.read_bytes() for path in sources()}
    files["millstream/_millstream.abi3.so"] = pathlib.Path(library).read_bytes()
    files[f"{about}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {version}\n"
        f"Requires-Python: {project['requires-python']}\n"
    ).encode()
    files[f"{about}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: pack.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    files[f"{about}/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    wheel = pathlib.Path(folder) / f"{project['name']}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in files.items())
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{about}/RECORD", f"{record}{about}/RECORD,,\n")
    print(wheel)


def sources():
    is_source = lambda path: path.suffix in (".py", ".pyi") or path.name == "py.typed"
    return sorted(filter(is_source, (CRATE / "python/millstream").iterdir()))


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


main(*sys.argv[1:])
