#!/usr/bin/env python3
"""Puts programs and the libraries that they need into one archive that is unpacked anywhere.

    make_bundle.py ARCHIVE --root=FOLDER --version=FILE --command=FILE --license=FILE --readme=FILE [--package=NAME]... [--file=FILE]... PROGRAM...

Each PROGRAM is a file below --root and keeps its place there; the command, the version, the license and the readme go beside them. Shared libraries that the
loader finds for them now go to lib/, where the programs' own search path (.bazelrc) finds them; those of the C and C++ compiler stay
the host's. notices/ has what the makers of each library say of its use: the copyright file of its Debian package, with the licenses
that this names, or the license files of its wheel; and those of each --package, of which only headers or scripts are in the programs.
Each --file of the sources, such as what errors name, keeps its place among them.
Archives of the same files are the same bytes: names are in order, times and owners are none.
"""
import argparse
import concurrent.futures
import glob
import gzip
import io
import os
import re
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


def owner_in_debian(path):
    """The package that has the file, which it may have below / or /usr; None where none has."""
    real = os.path.realpath(path)
    for name in dict.fromkeys([path, real, real.removeprefix('/usr'), '/usr' + real]):
        found = subprocess.run(['dpkg-query', '-S', name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.partition(': ')[0].partition(':')[0].partition(',')[0]
    return None


def notices_of_package(package):
    path = f'/usr/share/doc/{package}/copyright'
    if not os.path.exists(path):
        sys.exit(f'{package} has no {path}: its notice must be in the bundle')
    notices = {f'{package}/copyright': path}
    with open(path, errors='replace') as file:
        # What it leaves to a file that Debian has once for all packages.
        for license in re.findall(r'/usr/share/common-licenses/([\w.-]*\w)', file.read()):
            if os.path.exists('/usr/share/common-licenses/' + license):
                notices['common-licenses/' + license] = '/usr/share/common-licenses/' + license
    return notices


def notices_of_wheel(path):
    """Of the wheel that is unpacked around the file; None where none is."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    while folder != '/':
        for about in sorted(glob.glob(folder + '/*.dist-info')):
            with open(about + '/RECORD') as record:
                if not any(line.startswith(os.path.relpath(real, folder) + ',') for line in record):
                    continue
            name = os.path.basename(about).removesuffix('.dist-info')
            found = [file for file in glob.glob(about + '/**', recursive=True) if os.path.isfile(file) and
                     ('/licenses/' in file or re.match(r'(?i)(licen[cs]e|notice|copying)', os.path.basename(file)))]
            if not found:
                sys.exit(f'{about} has no license file: its notice must be in the bundle')
            return {f'{name}/{os.path.relpath(file, about)}': file for file in found}
        folder = os.path.dirname(folder)
    return None


def notices_of(path):
    package = owner_in_debian(path)
    notices = notices_of_package(package) if package else notices_of_wheel(path)
    if notices is None:
        sys.exit(f'{path} is of no Debian package and of no wheel: its notice must be in the bundle')
    return notices


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
    parser.add_argument('--license', required=True)
    parser.add_argument('--readme', required=True)
    parser.add_argument('--package', action='append', default=[])
    parser.add_argument('--file', action='append', default=[])
    parser.add_argument('programs', nargs='+')
    arguments = parser.parse_args()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        libraries = {name: path for found in pool.map(libraries_of, arguments.programs) for name, path in found.items()}
        notices = {}
        for found in [*pool.map(notices_of, libraries.values()), *map(notices_of_package, arguments.package)]:
            notices.update(found)
    files = {'lib/' + name: (path, 0o644) for name, path in libraries.items()}
    for program in arguments.programs:
        files[os.path.relpath(program, arguments.root)] = (program, 0o755)
    files['quartet'] = (arguments.command, 0o755)
    files.update(('notices/' + name, (path, 0o644)) for name, path in notices.items())
    files.update((name, (name, 0o644)) for name in arguments.file)
    files['LICENSE'] = (arguments.license, 0o644)
    files['README.md'] = (arguments.readme, 0o644)
    files['version.txt'] = (arguments.version, 0o644)
    with open(arguments.archive, 'wb') as raw, gzip.GzipFile(filename='', mode='wb', fileobj=raw, compresslevel=6, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode='w', format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            path, mode = files[name]
            with open(path, 'rb') as file:
                add(archive, name, file.read(), mode)


if __name__ == '__main__':
    main()
