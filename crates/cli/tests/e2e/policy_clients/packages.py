"""Makes an index with one package that says hello: packages.py KIND FOLDER.

KIND is pip, npm, cargo or apt. The index is at index.example, and names files at files.example.
"""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

FILES = "https://files.example"


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def archive(files):
    """Returns the files as .tar.gz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def pip(root):
    """A wheel, and a simple index (PEP 427, PEP 503)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("demo.py", "print('hello')\n")
        info = "demo-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"demo.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    name, content = "demo-1.0-py3-none-any.whl", buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    put(root / name, content)
    put(root / "simple/demo/index.html", f'<!DOCTYPE html><a href="{FILES}/{name}#sha256={digest}">{name}</a>')


def npm(root):
    about = {"name": "demo", "version": "1.0.0"}
    content = archive({"package/package.json": json.dumps(about), "package/index.js": "console.log('hello')\n"})
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    about["dist"] = {"tarball": f"{FILES}/demo-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    put(root / "demo-1.0.0.tgz", content)
    put(root / "demo", json.dumps({"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about}}))


def cargo(root):
    """A sparse index (Cargo's book, "Registry Index")."""
    manifest = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
    content = archive({"demo-1.0.0/Cargo.toml": manifest, "demo-1.0.0/src/lib.rs": "//! hello\n"})
    digest = hashlib.sha256(content).hexdigest()
    entry = {"name": "demo", "vers": "1.0.0", "deps": [], "cksum": digest, "features": {}, "yanked": False}
    put(root / "demo.crate", content)
    put(root / "config.json", json.dumps({"dl": f"{FILES}/{{crate}}.crate"}))
    put(root / "de/mo/demo", json.dumps(entry) + "\n")


def apt(root):
    """A flat repository, whose files have moved."""
    tree, package = root / "tree", root / "demo.deb"
    about = "Package: demo\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@a.example>\nDescription: demo\n"
    put(tree / "DEBIAN/control", about)
    put(tree / "usr/share/demo/text", "hello\n")
    subprocess.run(["dpkg-deb", "--build", tree, package], check=True, stdout=subprocess.DEVNULL)
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    about += f"Filename: moved/demo.deb\nSize: {len(content)}\nSHA256: {digest}\n"
    put(root / "Packages.gz", gzip.compress(about.encode()))


globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
