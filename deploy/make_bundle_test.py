#!/usr/bin/env python3
"""What a bundle has beside programs and libraries: license, readme and the notices of the libraries."""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

MAKE = pathlib.Path(__file__).resolve().parent / 'make_bundle.py'
PROGRAM = '/usr/bin/dpkg-deb'  # with libraries of Debian packages


def library_of(program, name):
    listed = subprocess.run(['ldd', program], capture_output=True, text=True, check=True).stdout
    return next(line.split(' => ')[1].split(' (')[0] for line in listed.splitlines() if name in line)


class MakeBundleTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ('version', 'command', 'license', 'readme'):
            (self.folder / name).write_text(name)

    def make(self, *more, **environment):
        archive = self.folder / 'bundle.tar.gz'
        made = subprocess.run([sys.executable, MAKE, archive, '--root=' + os.path.dirname(PROGRAM),
                               *(f'--{name}={self.folder / name}' for name in ('version', 'command', 'license', 'readme')), *more, PROGRAM],
                              capture_output=True, text=True, env={**os.environ, **environment})
        if made.returncode:
            return made.stderr
        with tarfile.open(archive) as bundle:
            return {entry.name.removeprefix('quartet/'): bundle.extractfile(entry).read() for entry in bundle}

    def test_it_has_the_license_and_the_notices_of_all_that_it_contains(self):
        files = self.make('--package=nlohmann-json3-dev')
        self.assertIsInstance(files, dict, files)
        self.assertEqual((files['LICENSE'], files['README.md']), (b'license', b'readme'))
        self.assertTrue([name for name in files if name.startswith('lib/libz.so')])
        self.assertEqual(files['notices/zlib1g/copyright'], pathlib.Path('/usr/share/doc/zlib1g/copyright').read_bytes())
        self.assertIn('notices/nlohmann-json3-dev/copyright', files)

    def test_files_of_the_sources_keep_their_places(self):
        (self.folder / 'examples/rewards').mkdir(parents=True)
        (self.folder / 'examples/rewards/mine.py').write_text('a judge')
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual(self.make('--file=examples/rewards/mine.py')['examples/rewards/mine.py'], b'a judge')

    def test_licenses_that_a_notice_leaves_to_debian_are_there(self):
        files = self.make('--package=libgmp-dev')
        self.assertIn(b'LESSER', files['notices/common-licenses/LGPL-3'])

    def test_a_library_of_a_wheel_has_the_wheels_files(self):
        (self.folder / 'zipper/lib').mkdir(parents=True)
        library = library_of(PROGRAM, 'libz.so')
        shutil.copy(library, self.folder / 'zipper/lib' / os.path.basename(library))
        about = self.folder / 'zipper-1.0.dist-info'
        (about / 'licenses').mkdir(parents=True)
        (about / 'RECORD').write_text(f'zipper/lib/{os.path.basename(library)},sha256=x,1\n')
        (about / 'licenses/LICENSE').write_text('as you like')
        files = self.make(LD_LIBRARY_PATH=str(self.folder / 'zipper/lib'))
        self.assertEqual(files['notices/zipper-1.0/licenses/LICENSE'], b'as you like')
        self.assertNotIn('notices/zlib1g/copyright', files)

    def test_a_library_without_a_notice_makes_no_bundle(self):
        library = library_of(PROGRAM, 'libz.so')
        shutil.copy(library, self.folder)
        said = self.make(LD_LIBRARY_PATH=str(self.folder))
        self.assertIn('is of no Debian package and of no wheel', said)
        self.assertIn('/usr/share/doc/no-such-package/copyright', self.make('--package=no-such-package'))


if __name__ == '__main__':
    unittest.main()
