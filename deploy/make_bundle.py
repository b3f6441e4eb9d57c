#!/usr/bin/env python3
"""Puts programs and the libraries that they need into one archive that is unpacked anywhere.

    make_bundle.py ARCHIVE --root=FOLDER --version=FILE --command=FILE PROGRAM...

Each PROGRAM is a file below --root and keeps its place there; the command and the version go beside them. Shared libraries that the
loader finds for them now go to lib/, where the programs' own search path (.bazelrc) finds them; those of the C and C++ compiler stay
the host's. Archives of the same files are the same bytes: names are in order, times and owners are none.
"""
import argparse
import concurrent.futures
import glob
import gzip
import io
import os
import subprocess
import sys
import tarfile

# Of the host: the loader comes with its C library, and a C++ library that is newer than ours serves all.
OF_THE_HOST = ('ld-linux', 'libc.so', 'libm.so', 'libdl.so', 'libpthread.so', 'librt.so', 'libresolv.so', 'libutil.so', 'libanl.so',
               'libstdc++.so', 'libgcc_s.so', 'linux-vdso')


def libraries_of(program):
    listed = subprocess.run(['ldd', program], capture_output=True, text=True)
    if listed.returncode != 0:  # no program for the loader: a script
        return {}
    found = {}
    for line in listed.stdout.splitlines():
        name, arrow, rest = line.strip().partition(' => ')
        if not arrow or os.path.basename(name).startswith(OF_THE_HOST):
            continue
        if 'not found' in rest:
            sys.exit(f'{program}: {line.strip()}')
        path = rest.rsplit(' (', 1)[0]
        found[os.path.basename(name)] = path
        if os.path.basename(name).startswith('libcudnn.so'):  # opens its parts by name when it wants them
            found.update((os.path.basename(part), part) for part in glob.glob(os.path.dirname(path) + '/libcudnn_*.so.*'))
    return found


def add(archive, name, data, mode):
    entry = tarfile.TarInfo('quartet/' + name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('archive')
    parser.add_argument('--root', required=True)
    parser.add_argument('--version', required=True)
    parser.add_argument('--command', required=True, help='the script "quartet"')
    parser.add_argument('programs', nargs='+')
    arguments = parser.parse_args()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        libraries = {name: path for found in pool.map(libraries_of, arguments.programs) for name, path in found.items()}
    files = {'lib/' + name: (path, 0o644) for name, path in libraries.items()}
    for program in arguments.programs:
        files[os.path.relpath(program, arguments.root)] = (program, 0o755)
    files['quartet'] = (arguments.command, 0o755)
    files['version.txt'] = (arguments.version, 0o644)
    with open(arguments.archive, 'wb') as raw, gzip.GzipFile(filename='', mode='wb', fileobj=raw, compresslevel=6, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode='w', format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            path, mode = files[name]
            with open(path, 'rb') as file:
                add(archive, name, file.read(), mode)


if __name__ == '__main__':
    main()
